// The kernels of simt.cuh that have a planted defect: a file of their own, which no GPU build needs.
#include "reference/simt.cuh"

#define JAXGEMM_ROW(id, text) &kKernel<Defect::k##id>,
JAXGEMM_FAMILY(simt_defects, JAXGEMM_SIMT_DEFECTS(JAXGEMM_ROW))
#undef JAXGEMM_ROW
