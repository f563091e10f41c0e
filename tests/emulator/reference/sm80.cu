// The kernel of sm80.cuh that is as it should be.
#include "reference/sm80.cuh"

JAXGEMM_FAMILY(sm80, &kKernel<Defect::kNone>)
