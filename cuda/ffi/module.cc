// The Python module jaxgemm._core: what the registry knows, and the FFI handlers as capsules.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "gemm.h"
#include "gemm_ffi.h"
#include "peers/peer_sum.h"
#include "select_mixed.h"
#include "source_hash.h"
#include "view.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jaxgemm {
namespace {

using DTypeNames = std::tuple<std::string, std::string, std::string>;
using TileSizes = std::tuple<int, int, int>;

TileSizes sizes(const Tile& tile) { return {tile.m, tile.n, tile.k}; }

std::vector<DTypeNames> dtype_names(const KernelInfo& info) {
  std::vector<DTypeNames> names;
  for (const DTypes& d : info.dtypes) names.emplace_back(name(d.lhs), name(d.rhs), name(d.out));
  return names;
}

std::vector<std::string> layout_names(const KernelInfo& info) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kLayoutNames.size(); ++i) {
    if (info.layouts[i]) names.emplace_back(kLayoutNames[i]);
  }
  return names;
}

const Kernel& find_or_throw(std::string_view full_name) {
  if (const Kernel* kernel = find(full_name)) return *kernel;
  throw std::invalid_argument("no kernel is called '" + std::string(full_name) + "'");
}

// Names of all values of an enum, in order.
#define JAXGEMM_LIST_NAME(id, text, ...) text,
constexpr std::string_view kDTypeNames[] = {JAXGEMM_DTYPES(JAXGEMM_LIST_NAME)};
constexpr std::string_view kActivationNames[] = {JAXGEMM_ACTIVATIONS(JAXGEMM_LIST_NAME)};
constexpr std::string_view kPrecisionNames[] = {JAXGEMM_PRECISIONS(JAXGEMM_LIST_NAME)};
constexpr std::string_view kZerosNames[] = {JAXGEMM_ZEROS(JAXGEMM_LIST_NAME)};
#undef JAXGEMM_LIST_NAME

template <class Enum, size_t kCount>
Enum parse(std::string_view text, const std::string_view (&names)[kCount], const char* what) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  throw std::invalid_argument(std::string("no ") + what + " is called '" + std::string(text) + "'");
}

template <size_t kCount>
std::vector<std::string> to_list(const std::string_view (&names)[kCount]) {
  return {std::begin(names), std::end(names)};
}

// OperandDims that own their lists.
struct DimsLists {
  std::vector<int64_t> order, batch, rows, cols;
  operator OperandDims() const { return {order, batch, rows, cols}; }
};

Problem build_problem(const std::vector<int64_t>& lhs_sizes, const DimsLists& lhs_dims,
                      const std::vector<int64_t>& rhs_sizes, const DimsLists& rhs_dims,
                      const std::vector<int64_t>& out_sizes, const DimsLists& out_dims, std::string_view lhs_dtype,
                      std::string_view rhs_dtype, std::string_view out_dtype, std::string_view precision,
                      std::string_view activation, bool has_alpha, bool has_bias, int sm,
                      std::pair<int64_t, int64_t> split, bool may_copy) {
  Problem p;
  p.lhs_dtype = parse<DType>(lhs_dtype, kDTypeNames, "dtype");
  p.rhs_dtype = parse<DType>(rhs_dtype, kDTypeNames, "dtype");
  p.out_dtype = parse<DType>(out_dtype, kDTypeNames, "dtype");
  p.precision = parse<Precision>(precision, kPrecisionNames, "precision");
  p.activation = parse<Activation>(activation, kActivationNames, "activation");
  p.has_alpha = has_alpha;
  p.has_bias = has_bias;
  p.sm = sm;
  p.split = {split.first, split.second};
  p.may_copy = may_copy;
  if (std::string error = make_problem(lhs_sizes, lhs_dims, rhs_sizes, rhs_dims, out_sizes, out_dims, p);
      !error.empty()) {
    throw std::invalid_argument(error);
  }
  return p;
}

Problem build_mixed_problem(int64_t batch, int64_t m, int64_t n, int64_t k, std::string_view lhs_dtype,
                            std::string_view out_dtype, std::string_view activation, bool has_alpha, bool has_bias,
                            int bits, int64_t group_size, std::string_view scale_dtype, std::string_view zeros, int sm,
                            std::pair<int64_t, int64_t> split) {
  Problem p;
  p.batch = batch;
  p.M = m;
  p.N = n;
  p.K = k;
  p.lhs = {m, k, k, m * k, false};
  p.rhs = {k, n, n, k * n, false};
  p.out = {m, n, n, m * n, false};
  p.lhs_dtype = p.rhs_dtype = parse<DType>(lhs_dtype, kDTypeNames, "dtype");
  p.out_dtype = parse<DType>(out_dtype, kDTypeNames, "dtype");
  p.activation = parse<Activation>(activation, kActivationNames, "activation");
  p.has_alpha = has_alpha;
  p.has_bias = has_bias;
  p.sm = sm;
  p.split = {split.first, split.second};
  p.codes = {bits, group_size, parse<DType>(scale_dtype, kDTypeNames, "dtype"),
             parse<Zeros>(zeros, kZerosNames, "zeros")};
  return p;
}

std::vector<KernelInfo> infos(std::span<const Kernel* const> rows) {
  std::vector<KernelInfo> infos;
  for (const Kernel* kernel : rows) infos.push_back(kernel->info);
  return infos;
}

}  // namespace
}  // namespace jaxgemm

NB_MODULE(_core, m) {
  using namespace jaxgemm;
  m.doc() = "The compiled half of jaxgemm: kernel registry and XLA FFI handlers.";

  nb::class_<KernelInfo>(m, "KernelInfo", "What one kernel is and what it can take (cuda/gemm.h).")
      .def_prop_ro("name", [](const KernelInfo& i) { return std::string(i.full_name); })
      .def_prop_ro("family", [](const KernelInfo& i) { return std::string(i.family); })
      .def_prop_ro("config", [](const KernelInfo& i) { return std::string(i.config); })
      .def_ro("min_sm", &KernelInfo::min_sm)
      .def_ro("max_sm", &KernelInfo::max_sm)
      .def_prop_ro("dtypes", &dtype_names)
      .def_prop_ro("layouts", &layout_names)
      .def_prop_ro("cta_tile", [](const KernelInfo& i) { return sizes(i.cta_tile); })
      .def_prop_ro("warp_tile", [](const KernelInfo& i) { return sizes(i.warp_tile); })
      .def_ro("stages", &KernelInfo::stages)
      .def_ro("threads", &KernelInfo::threads)
      .def_ro("smem_bytes", &KernelInfo::smem_bytes)
      .def_ro("tf32", &KernelInfo::tf32)
      .def_ro("highest", &KernelInfo::highest)
      .def_ro("split_k", &KernelInfo::split_k)
      .def_ro("stream_k", &KernelInfo::stream_k)
      .def_ro("cluster_ctas", &KernelInfo::cluster_ctas)
      .def_ro("tma", &KernelInfo::tma)
      .def_ro("fused_epilogue", &KernelInfo::fused_epilogue)
      .def_ro("bits", &KernelInfo::bits)
      .def_ro("tiles_at_once", &KernelInfo::tiles_at_once)
      .def_ro("group_multiple", &KernelInfo::group_multiple)
      .def_prop_ro("max_ctas", [](const KernelInfo&) { return kMaxCtas; })
      .def("__repr__", [](const KernelInfo& i) { return "KernelInfo('" + std::string(i.full_name) + "')"; });

  nb::class_<DimsLists>(m, "OperandDims", "The role of each dimension of one operand (cuda/view.h).")
      .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>>(),
           "order"_a, "batch"_a, "rows"_a, "cols"_a)
      .def_ro("order", &DimsLists::order)
      .def_ro("batch", &DimsLists::batch)
      .def_ro("rows", &DimsLists::rows)
      .def_ro("cols", &DimsLists::cols);

  nb::class_<Problem>(m, "Problem", "One GEMM as the kernels see it (cuda/gemm.h).")
      .def(nb::new_(&build_problem), "lhs_sizes"_a, "lhs_dims"_a, "rhs_sizes"_a, "rhs_dims"_a, "out_sizes"_a,
           "out_dims"_a, "lhs_dtype"_a, "rhs_dtype"_a, "out_dtype"_a, "precision"_a, "activation"_a, "has_alpha"_a,
           "has_bias"_a, "sm"_a, "split"_a = std::pair(0, 0), "may_copy"_a = true)
      .def_ro("batch", &Problem::batch)
      .def_ro("m", &Problem::M)
      .def_ro("n", &Problem::N)
      .def_ro("k", &Problem::K)
      .def_ro("sm", &Problem::sm)
      .def_prop_ro("layout", [](const Problem& p) { return std::string(kLayoutNames[static_cast<int>(p.layout())]); })
      .def_prop_ro("lhs_stride", [](const Problem& p) { return std::tuple{p.lhs.batch_stride, p.lhs.ld}; })
      .def_prop_ro("rhs_stride", [](const Problem& p) { return std::tuple{p.rhs.batch_stride, p.rhs.ld}; })
      .def_prop_ro("out_stride", [](const Problem& p) { return std::tuple{p.out.batch_stride, p.out.ld}; })
      .def("__repr__", [](const Problem& p) { return describe(p); });

  m.def("kernels", [] { return infos(kernels()); }, "Every kernel of dense operands, in ladder order.");
  m.def("mixed_kernels", [] { return infos(mixed_kernels()); }, "Every kernel of quantised weights.");
  m.def("mixed_problem", &build_mixed_problem, "batch"_a, "m"_a, "n"_a, "k"_a, "lhs_dtype"_a, "out_dtype"_a,
        "activation"_a, "has_alpha"_a, "has_bias"_a, "bits"_a, "group_size"_a, "scale_dtype"_a, "zeros"_a, "sm"_a,
        "split"_a = std::pair(0, 0), "The Problem of dense operands and quantised weights.");
  m.attr("FEW_PRODUCTS") = kFewProducts;
  m.attr("PACKED_TILE_K") = kPackedTileK;
  m.attr("MOST_MIXED_CLUSTER_SPLITS") = kMostMixedClusterSplits;
  m.attr("PACKED_TILE_N") = kPackedTileN;
  m.attr("MOST_ZERO") = kMostZero;
  m.def(
      "scales_sums",
      [](int tokens, int columns, int groups) { return scales_sums({tokens, columns, kPackedTileK}, groups); },
      "tokens"_a, "columns"_a, "groups"_a,
      "Whether int4_wgmma with warp tiles of tokens x columns scales sums, not weights, of so many groups to a "
      "k-tile.");
  m.def(
      "why_not", [](std::string_view full_name, const Problem& p) { return why_not(find_or_throw(full_name), p); },
      "name"_a, "problem"_a, "'' if the kernel can run the problem, else the sentence that says why not.");
  m.def(
      "select",
      [](const Problem& p, std::string_view family) {
        const Kernel* kernel = select(p, family);
        return std::string(kernel == nullptr ? "" : kernel->info.full_name);
      },
      "problem"_a, "family"_a = "", "The kernel to run, '' if none can; of one family if one is given.");
  m.def(
      "rung", [](std::string_view full_name, const Problem& p) { return rung(find_or_throw(full_name), p); }, "name"_a,
      "problem"_a, "What select() maximises first: of kernels of one rung that are rivals on cost, the same number.");
  m.def(
      "estimated_cost",
      [](std::string_view full_name, const Problem& p) { return estimated_cost(find_or_throw(full_name), p); },
      "name"_a, "problem"_a, "What select() minimises within a rung: about the microseconds on an H200.");
  m.def(
      "k_split",
      [](std::string_view full_name, const Problem& p) {
        const KSplit split = k_split(find_or_throw(full_name).info, p);
        return std::pair(split.whole, split.splits);
      },
      "name"_a, "problem"_a, "How many tiles are one CTA's each, and how many CTAs share K of every other one.");
  m.def(
      "workspace_bytes",
      [](std::string_view full_name, const Problem& p) {
        const int64_t bytes = find_or_throw(full_name).workspace_bytes(p);
        return bytes == 0 ? 0 : bytes + kWorkspaceAlignment;
      },
      "name"_a, "problem"_a, "Bytes of the uint8 workspace result that the custom call must have, alignment included.");
  m.def("planned_multiprocessors", &planned_multiprocessors, "sm"_a, "For how many multiprocessors the model plans.");
  m.def("dtypes", [] { return to_list(kDTypeNames); }, "NumPy names of the element types that problems may have.");
  m.def(
      "bias_dtypes",
      [] {
        std::vector<std::string> names;
        for (size_t i = 0; i < std::size(kDTypeNames); ++i) {
          if (takes_bias(static_cast<DType>(i))) names.emplace_back(kDTypeNames[i]);
        }
        return names;
      },
      "NumPy names of the element types that a bias may have.");
  m.def("activations", [] { return to_list(kActivationNames); }, "Names of the activations that problems may have.");
  m.def("precisions", [] { return to_list(kPrecisionNames); }, "Names of the precisions that problems may have.");
  m.def(
      "handlers",
      [] {
        nb::dict handlers;
        handlers["jaxgemm_gemm"] = nb::capsule(gemm_handler());
        handlers["jaxgemm_gemm_check"] = nb::capsule(gemm_check_handler());
        handlers["jaxgemm_mixed"] = nb::capsule(mixed_handler());
        handlers["jaxgemm_mixed_check"] = nb::capsule(mixed_check_handler());
        handlers["jaxgemm_peer_sum_check"] = nb::capsule(peer_sum_handlers().check);
        return handlers;
      },
      "FFI handlers by target name.");
  m.def(
      "peer_sum_handlers",
      [] {
        const PeerSumHandlers all = peer_sum_handlers();
        nb::dict handlers;
        handlers["instantiate"] = nb::capsule(all.instantiate);
        handlers["initialize"] = nb::capsule(all.initialize);
        handlers["execute"] = nb::capsule(all.execute);
        nb::dict type;
        type["type_id"] = nb::capsule(all.type_id);
        type["type_info"] = nb::capsule(all.type_info);
        return std::pair(handlers, type);
      },
      "Of sums over GPUs: the FFI handlers by stage, and the type that they share.");
  m.def(
      "why_no_peer_sum",
      [](const std::vector<int64_t>& devices, std::string_view dtype, int64_t elements) {
        return why_no_peer_sum(devices, parse<DType>(dtype, kDTypeNames, "dtype"), elements);
      },
      "devices"_a, "dtype"_a, "elements"_a,
      "'' if these GPUs add up parts of so many elements, else the sentence that says why not.");
  m.def(
      "peers_reach", [](const std::vector<int64_t>& devices) { return peers_reach(devices); }, "devices"_a,
      "Whether GPUs, by CUDA's numbers in this process, reach the memory of each other.");
  m.def(
      "handler_metadata",
      [] {
        const HandlerMetadata metadata = gemm_handler_metadata();
        return std::tuple{metadata.api_major, metadata.api_minor, metadata.command_buffer_compatible};
      },
      "(FFI API major, minor, CUDA-graph compatible) of the handler of jaxgemm_gemm.");
  m.def("source_hash", [] { return std::string(source_hash()); }, "SHA-256 of the sources that this was built from.");
}
