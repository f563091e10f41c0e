#include "core/request.h"

#include <array>
#include <sstream>
#include <stdexcept>

#include "reference/reference.h"

namespace emu {
namespace {

using jaxgemm::Kernel;
using jaxgemm::Problem;
using jaxgemm::probes::Probe;

std::string tile_json(const jaxgemm::Tile& tile) {
  return list(std::array{tile.m, tile.n, tile.k}, [](int size) { return std::to_string(size); });
}

std::string kernel_json(const Kernel& kernel) {
  const jaxgemm::KernelInfo& info = kernel.info;
  std::ostringstream json;
  json << "{\"name\": " << quoted(info.full_name) << ", \"family\": " << quoted(info.family)
       << ", \"cta_tile\": " << tile_json(info.cta_tile) << ", \"warp_tile\": " << tile_json(info.warp_tile)
       << ", \"stages\": " << info.stages << ", \"threads\": " << info.threads
       << ", \"split_k\": " << (info.split_k ? "true" : "false")
       << ", \"stream_k\": " << (info.stream_k ? "true" : "false") << ", \"cluster_ctas\": " << info.cluster_ctas
       << ", \"min_sm\": " << info.min_sm << ", \"tf32\": " << (info.tf32 ? "true" : "false")
       << ", \"highest\": " << (info.highest ? "true" : "false") << ", \"bits\": " << info.bits
       << ", \"group_multiple\": " << info.group_multiple << ", \"dtypes\": "
       << list(info.dtypes,
               [](const jaxgemm::DTypes& d) {
                 return list(std::array{d.lhs, d.rhs, d.out},
                             [](jaxgemm::DType t) { return quoted(jaxgemm::name(t)); });
               })
       << ", \"layouts\": [";
  const char* comma = "";
  for (size_t i = 0; i < info.layouts.size(); ++i) {
    if (!info.layouts[i]) continue;
    json << comma << quoted(jaxgemm::kLayoutNames[i]);
    comma = ", ";
  }
  json << "]}";
  return json.str();
}

template <class Enum>
Enum by_name(const char* text, int count) {
  for (int i = 0; i < count; ++i) {
    if (jaxgemm::name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  throw std::invalid_argument(std::string("no such name: ") + text);
}
#define EMU_COUNT(...) +1
constexpr int kDTypeCount = 0 JAXGEMM_DTYPES(EMU_COUNT);
constexpr int kActivationCount = 0 JAXGEMM_ACTIVATIONS(EMU_COUNT);
constexpr int kPrecisionCount = 0 JAXGEMM_PRECISIONS(EMU_COUNT);
constexpr int kZerosCount = 0 JAXGEMM_ZEROS(EMU_COUNT);
#undef EMU_COUNT
constexpr int kNewest = 90;  // the emulated GPU

}  // namespace

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return json + "\"";
}

const char* answer(std::string json) {
  static thread_local std::string kept;
  kept = std::move(json);
  return kept.c_str();
}

std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> rows(jaxgemm::kernels().begin(), jaxgemm::kernels().end());
  rows.insert(rows.end(), jaxgemm::mixed_kernels().begin(), jaxgemm::mixed_kernels().end());
  for (std::span<const Kernel* const> family : reference_families()) {
    rows.insert(rows.end(), family.begin(), family.end());
  }
  return rows;
}

const Kernel& kernel_named(const char* name) {
  for (const Kernel* kernel : all_kernels()) {
    if (kernel->info.full_name == name) return *kernel;
  }
  throw std::invalid_argument(std::string("no kernel is called ") + name);
}

std::vector<Probe> all_probes() {
  std::vector<Probe> probes;
  for (auto group : jaxgemm::probes::all()) probes.insert(probes.end(), group.begin(), group.end());
  return probes;
}

const Probe& probe_named(const char* name) {
  for (auto group : jaxgemm::probes::all()) {
    for (const Probe& probe : group) {
      if (probe.name == name) return probe;
    }
  }
  throw std::invalid_argument(std::string("no probe is called ") + name);
}

std::string why_not_with(int smem_bytes, int sm) {
  Kernel kernel = *jaxgemm::kernels().front();
  kernel.info.smem_bytes = smem_bytes;
  const jaxgemm::DTypes& dtypes = kernel.info.dtypes.front();
  Problem problem = {};
  problem.lhs_dtype = dtypes.lhs;
  problem.rhs_dtype = dtypes.rhs;
  problem.out_dtype = dtypes.out;
  problem.sm = sm;
  return why_not(kernel, problem);
}

jaxgemm::DType bias_dtype(const EmuRequest& request) {
  return by_name<jaxgemm::DType>(request.bias_dtype, kDTypeCount);
}

Problem to_problem(const EmuRequest& request) {
  const auto view = [](const EmuOperand& operand) {
    return jaxgemm::MatrixView{operand.rows, operand.cols, operand.ld, operand.batch_stride, operand.transposed != 0};
  };
  return {.batch = request.batch,
          .M = request.M,
          .N = request.N,
          .K = request.K,
          .lhs = view(request.lhs),
          .rhs = view(request.rhs),
          .out = view(request.out),
          .lhs_dtype = by_name<jaxgemm::DType>(request.lhs_dtype, kDTypeCount),
          .rhs_dtype = by_name<jaxgemm::DType>(request.rhs_dtype, kDTypeCount),
          .out_dtype = by_name<jaxgemm::DType>(request.out_dtype, kDTypeCount),
          .precision = by_name<jaxgemm::Precision>(request.precision, kPrecisionCount),
          .activation = by_name<jaxgemm::Activation>(request.activation, kActivationCount),
          .has_alpha = request.alpha != nullptr,
          .has_bias = request.bias != nullptr,
          .sm = kNewest,
          .split = {request.whole, request.splits},
          .codes = {static_cast<int>(request.bits), request.group_size,
                    by_name<jaxgemm::DType>(request.scale_dtype, kDTypeCount),
                    by_name<jaxgemm::Zeros>(request.zeros_kind, kZerosCount)}};
}

}  // namespace emu

extern "C" {

__attribute__((visibility("default"))) const char* emu_kernels() {
  using namespace emu;
  return guarded(
      [] { return list(all_kernels(), [](const jaxgemm::Kernel* kernel) { return kernel_json(*kernel); }); });
}

__attribute__((visibility("default"))) const char* emu_why_not(int smem_bytes, int sm) {
  using namespace emu;
  return guarded([&] { return "{\"why_not\": " + quoted(why_not_with(smem_bytes, sm)) + "}"; });
}

__attribute__((visibility("default"))) const char* emu_probes() {
  using namespace emu;
  return guarded([] {
    return list(all_probes(), [](const jaxgemm::probes::Probe& probe) {
      return "{\"name\": " + quoted(probe.name) + ", \"in_words\": " + std::to_string(probe.in_words) +
             ", \"out_words\": " + std::to_string(probe.out_words) + "}";
    });
  });
}

}  // extern "C"
