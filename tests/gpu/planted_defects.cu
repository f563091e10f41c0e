// Four defects, one for each tool of compute-sanitizer, in kernels that are named like ours: test_sanitizer.py checks
// that the tools, with the options that it gives them, find each.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

namespace jaxgemm {
namespace {

constexpr int kThreads = 64;

__global__ void memcheck_kernel(float* out) { out[threadIdx.x + 1] = 1.0f; }  // one element past the end

__global__ void racecheck_kernel(float* out) {
  __shared__ float s_values[kThreads];
  s_values[threadIdx.x] = out[threadIdx.x];
  out[threadIdx.x] = s_values[(threadIdx.x + 32) % kThreads];  // of the other warp, and no barrier in between
}

__global__ void initcheck_kernel(float* out) { out[threadIdx.x] += 1.0f; }  // nobody wrote it before

__global__ void synccheck_kernel(float* out) {
  __shared__ float s_values[kThreads];
  s_values[threadIdx.x] = out[threadIdx.x];
  if (threadIdx.x % 32 < 16) {  // the halves of a warp meet at different barriers
    __syncthreads();
    out[threadIdx.x] = s_values[kThreads - 1 - threadIdx.x];
  } else {
    __syncthreads();
    out[threadIdx.x] = s_values[kThreads - 1 - threadIdx.x] + 1.0f;
  }
}

}  // namespace
}  // namespace jaxgemm

int main(int argc, char** argv) {
  using namespace jaxgemm;
  const char* tool = argc > 1 ? argv[1] : "";
  float* out = nullptr;
  if (cudaMalloc(&out, kThreads * sizeof(float)) != cudaSuccess) return 2;
  if (std::strcmp(tool, "initcheck") != 0) cudaMemset(out, 0, kThreads * sizeof(float));
  if (std::strcmp(tool, "memcheck") == 0) memcheck_kernel<<<1, kThreads>>>(out);
  if (std::strcmp(tool, "racecheck") == 0) racecheck_kernel<<<1, kThreads>>>(out);
  if (std::strcmp(tool, "initcheck") == 0) initcheck_kernel<<<1, kThreads>>>(out);
  if (std::strcmp(tool, "synccheck") == 0) synccheck_kernel<<<1, kThreads>>>(out);
  std::printf("%s: %s\n", tool, cudaGetErrorString(cudaDeviceSynchronize()));
  return 0;
}
