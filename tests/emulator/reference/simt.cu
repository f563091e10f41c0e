// The kernel of simt.cuh that is as it should be.
#include "reference/simt.cuh"

JAXGEMM_FAMILY(simt, &kKernel<Defect::kNone>)
