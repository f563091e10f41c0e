// The kernels of sm90.cuh that are as they should be.
#include "reference/sm90.cuh"

#define JAXGEMM_ROW(id, text) &kKernel<Variant::k##id, Defect::kNone>,
JAXGEMM_FAMILY(sm90, JAXGEMM_SM90_VARIANTS(JAXGEMM_ROW))
#undef JAXGEMM_ROW
