// Stand-in for CUDA's header, as far as the kernels use it: the emulator's g++ finds this one.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

#include "core/runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ EMU_INLINE
#define __noinline__ EMU_NOINLINE
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

// --- built-in variables
// -----------------------------------------------------------------------------------------------

namespace emu {

// Grids and CTAs have one dimension, x.
template <unsigned (*kValue)()>
struct BuiltIn {
  struct X {
    EMU_INLINE operator unsigned() const { return kValue(); }
  } x;
};

}  // namespace emu

inline constexpr emu::BuiltIn<emu::thread_index> threadIdx;
inline constexpr emu::BuiltIn<emu::block_index> blockIdx;
inline constexpr emu::BuiltIn<emu::block_threads> blockDim;
inline constexpr emu::BuiltIn<emu::grid_blocks> gridDim;
inline constexpr int warpSize = 32;

// --- vectors
// ----------------------------------------------------------------------------------------------------------

// Copying a vector from or to memory is one access of its whole width, so the copies are not left to the compiler,
// which would take them apart.
#define EMU_VECTOR_COPIES(Vector)                         \
  Vector() = default;                                     \
  EMU_INLINE Vector(const Vector& from) { *this = from; } \
  EMU_INLINE Vector& operator=(const Vector& from) {      \
    emu::copy_vector(this, &from, sizeof(Vector));        \
    return *this;                                         \
  }
#define EMU_VECTOR2(Vector, Element)                        \
  struct alignas(2 * sizeof(Element)) Vector {              \
    Element x, y;                                           \
    EMU_VECTOR_COPIES(Vector)                               \
    EMU_INLINE Vector(Element x, Element y) : x(x), y(y) {} \
  };                                                        \
  EMU_INLINE Vector make_##Vector(Element x, Element y) { return Vector(x, y); }
#define EMU_VECTOR4(Vector, Element)                                                          \
  struct alignas(4 * sizeof(Element)) Vector {                                                \
    Element x, y, z, w;                                                                       \
    EMU_VECTOR_COPIES(Vector)                                                                 \
    EMU_INLINE Vector(Element x, Element y, Element z, Element w) : x(x), y(y), z(z), w(w) {} \
  };                                                                                          \
  EMU_INLINE Vector make_##Vector(Element x, Element y, Element z, Element w) { return Vector(x, y, z, w); }

EMU_VECTOR2(float2, float)
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR4(float4, float)
EMU_VECTOR4(int4, int)
EMU_VECTOR4(uint4, unsigned)

// --- functions of device code
// -----------------------------------------------------------------------------------------

EMU_INLINE void __syncthreads() { emu::sync_threads(); }
EMU_INLINE void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emu::sync_warp(mask); }
[[noreturn]] EMU_NOINLINE inline void __trap() {
  emu::fatal(emu::Kind::kProtocol, EMU_CALLER, "the kernel stops itself");
}

template <class T>
EMU_INLINE T __ldg(const T* pointer) {
  return *pointer;
}

EMU_INLINE float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
EMU_INLINE unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
EMU_INLINE float __fdividef(float x, float y) { return x / y; }
// Four bytes of y:x, each named by a digit of the selector. CUDA Math API, "Integer Intrinsics".
EMU_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i) picked |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return picked;
}

namespace emu {

template <class T>
EMU_INLINE T shuffle_value(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
EMU_INLINE int lane() { return static_cast<int>(thread_index() % 32); }

}  // namespace emu

template <class T>
EMU_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emu::shuffle_value(mask, value, emu::lane() / width * width + source % width);
}
template <class T>
EMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return emu::shuffle_value(mask, value, (emu::lane() ^ lane_mask) & 31);
}
// Lanes whose source would lie outside of the warp keep their own value.
template <class T>
EMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const int source = emu::lane() + static_cast<int>(delta);
  return emu::shuffle_value(mask, value, source < 32 ? source : emu::lane());
}
template <class T>
EMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const int source = emu::lane() - static_cast<int>(delta);
  return emu::shuffle_value(mask, value, source >= 0 ? source : emu::lane());
}
EMU_INLINE unsigned __ballot_sync(unsigned mask, bool vote) { return emu::ballot(mask, vote); }
EMU_INLINE bool __any_sync(unsigned mask, bool vote) { return emu::ballot(mask, vote) != 0; }
EMU_INLINE bool __all_sync(unsigned mask, bool vote) { return emu::ballot(mask, vote) == 0xFFFFFFFFu; }

// --- the runtime
// ------------------------------------------------------------------------------------------------------

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorSymbolNotFound = 500 };
using cudaStream_t = void*;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaLaunchAttributeID { cudaLaunchAttributeIgnore = 0, cudaLaunchAttributeClusterDimension = 4 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

namespace emu {

// Why the last launch of this OS thread was refused.
inline std::string& last_error() {
  static thread_local std::string text;
  return text;
}

// Dynamic shared memory that a kernel may have: 48 KiB until it asks for more.
inline std::map<const void*, int>& smem_limits() {
  static thread_local std::map<const void*, int> limits;
  return limits;
}

template <class... Params>
struct Call {
  void (*kernel)(Params...);
  std::tuple<Params...> params;
  static void run(void* call) {
    const auto& self = *static_cast<const Call*>(call);
    std::apply(self.kernel, self.params);
  }
};

}  // namespace emu

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  constexpr int kMaxSmemBytes = 227 * 1024;  // CUDA C++ programming guide, "Technical specifications", 9.0
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > kMaxSmemBytes) {
      emu::last_error() = "cudaFuncSetAttribute: " + std::to_string(value) + " bytes of shared memory";
      return cudaErrorInvalidValue;
    }
    emu::smem_limits()[reinterpret_cast<const void*>(kernel)] = value;
  }
  return cudaSuccess;
}

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  constexpr int kDefaultSmemBytes = 48 * 1024;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim.x;
  }
  const auto limit = emu::smem_limits().find(reinterpret_cast<const void*>(kernel));
  emu::Call<Params...> call = {kernel, std::tuple<Params...>(static_cast<Args&&>(args)...)};
  const bool one_dimension =
      config->gridDim.y == 1 && config->gridDim.z == 1 && config->blockDim.y == 1 && config->blockDim.z == 1;
  emu::last_error() = one_dimension ? emu::launch(config->gridDim.x, static_cast<int>(config->blockDim.x),
                                                  static_cast<int>(config->dynamicSmemBytes), static_cast<int>(cluster),
                                                  limit == emu::smem_limits().end() ? kDefaultSmemBytes : limit->second,
                                                  &emu::Call<Params...>::run, &call, sizeof call)
                                    : "grids and CTAs of more than one dimension are not modelled";
  return emu::last_error().empty() ? cudaSuccess : cudaErrorInvalidValue;
}

// Of three multiprocessors, whatever the schedule says, as kernels keep the answer. For a grid of more than a cluster,
// as many as it has CTAs, or one fewer.
template <class... Params>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*)(Params...), const cudaLaunchConfig_t* config) {
  constexpr int kFew = 3;
  const int grid = static_cast<int>(config->gridDim.x), room = grid <= 8 ? kFew : grid / 2 * 2;
  const int ctas = static_cast<int>(config->attrs->val.clusterDim.x);
  *clusters = ctas < room ? room / ctas : 1;
  return cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = emu::multiprocessors();
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return emu::last_error().c_str(); }

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
inline constexpr unsigned long long cudaEnableDefault = 0;

inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned /*version*/,
                                                    unsigned long long /*flags*/,
                                                    cudaDriverEntryPointQueryResult* result = nullptr) {
  *function = emu::driver_entry_point(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : cudaErrorSymbolNotFound;
}
