// The kernels of sm80.cuh that have a planted defect: a file of their own, which no GPU build needs.
#include "reference/sm80.cuh"

#define JAXGEMM_ROW(id, text) &kKernel<Defect::k##id>,
JAXGEMM_FAMILY(sm80_defects, JAXGEMM_SM80_DEFECTS(JAXGEMM_ROW))
#undef JAXGEMM_ROW
