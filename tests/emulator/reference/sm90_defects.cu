// The kernels of sm90.cuh that have a planted defect: a file of their own, which no GPU build needs.
#include "reference/sm90.cuh"

#define JAXGEMM_ROW(id, variant, text) &kKernel<Variant::k##variant, Defect::k##id>,
JAXGEMM_FAMILY(sm90_defects, JAXGEMM_SM90_DEFECTS(JAXGEMM_ROW))
#undef JAXGEMM_ROW
