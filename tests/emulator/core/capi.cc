// What Python calls (tests/emulator/library.py): the registry, one kernel on one problem, one probe. Answers are JSON.
#include <dlfcn.h>

#include <cstring>
#include <exception>
#include <sstream>

#include "core/runtime.h"
#include "core/session.h"
#include "gemm.h"
#include "probes/probe.h"
#include "reference/reference.h"

namespace {

using jaxgemm::Kernel;
using jaxgemm::Problem;

// --- JSON
// -------------------------------------------------------------------------------------------------------------

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return json + "\"";
}

template <class Range, class Write>
std::string list(const Range& range, Write&& write) {
  std::string json = "[";
  for (const auto& element : range) json += (json.size() > 1 ? ", " : "") + write(element);
  return json + "]";
}

// Addresses in the kernels' code as offsets into this library, which is what addr2line wants; 0: none.
int64_t code_offset(emu::Pc where) {
  Dl_info info;
  if (where == nullptr || dladdr(where, &info) == 0) return 0;
  return static_cast<const char*>(where) - static_cast<const char*>(info.dli_fbase);
}

std::string tile_json(const jaxgemm::Tile& tile) {
  return list(std::array{tile.m, tile.n, tile.k}, [](int size) { return std::to_string(size); });
}

std::string kernel_json(const Kernel& kernel) {
  const jaxgemm::KernelInfo& info = kernel.info;
  std::ostringstream json;
  json << "{\"name\": " << quoted(info.full_name) << ", \"family\": " << quoted(info.family)
       << ", \"cta_tile\": " << tile_json(info.cta_tile) << ", \"warp_tile\": " << tile_json(info.warp_tile)
       << ", \"stages\": " << info.stages << ", \"threads\": " << info.threads << ", \"min_sm\": " << info.min_sm
       << ", \"dtypes\": "
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

std::string findings_json(const emu::Session& session) {
  const std::string findings = list(session.findings.all(), [](const emu::Finding& finding) {
    std::ostringstream json;
    json << "{\"kind\": " << quoted(emu::name(finding.kind)) << ", \"text\": " << quoted(finding.text)
         << ", \"count\": " << finding.count << ", \"where\": [" << code_offset(finding.where) << ", "
         << code_offset(finding.other) << "]}";
    return json.str();
  });
  const std::string wavefronts = list(session.findings.wavefronts(), [](const auto& entry) {
    const auto& [where, what, sum] = entry;
    std::ostringstream json;
    json << "{\"where\": " << code_offset(where) << ", \"what\": " << quoted(what) << ", \"accesses\": " << sum.accesses
         << ", \"wavefronts\": " << sum.wavefronts << ", \"ideal\": " << sum.ideal << "}";
    return json.str();
  });
  std::ostringstream json;
  json << "\"findings\": " << findings << ", \"wavefronts\": " << wavefronts
       << ", \"switches\": " << session.switches.load() << ", \"launches\": " << session.launches;
  return json.str();
}

// The caller's copy lives until its OS thread's next call.
const char* answer(std::string json) {
  static thread_local std::string kept;
  kept = std::move(json);
  return kept.c_str();
}

// --- requests
// ---------------------------------------------------------------------------------------------------------

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
#undef EMU_COUNT

std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> rows(jaxgemm::kernels().begin(), jaxgemm::kernels().end());
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

std::vector<jaxgemm::probes::Probe> all_probes() {
  std::vector<jaxgemm::probes::Probe> probes;
  for (auto group : jaxgemm::probes::all()) probes.insert(probes.end(), group.begin(), group.end());
  return probes;
}

}  // namespace

extern "C" {

struct EmuOperand {
  void* data;
  int64_t bytes, rows, cols, ld, batch_stride;
  int32_t transposed;
  int32_t misalignment;  // bytes past a 256-byte boundary
};

struct EmuSchedule {
  uint64_t seed;
  int32_t workers, conflicts;
  int32_t latency[4];  // emu::Latency by emu::Engine
};

struct EmuRequest {
  const char* kernel;
  int64_t batch, M, N, K;
  EmuOperand lhs, rhs, out;
  const char *lhs_dtype, *rhs_dtype, *out_dtype, *precision, *activation;
  const float* bias;  // N elements, or null
  EmuSchedule schedule;
  int64_t* owners;  // per element of out: CTA * threads + thread that wrote it, -1 if none; or null
};

}  // extern "C"

namespace {

// EmuSchedule as the core has it.
emu::Schedule to_schedule(const EmuSchedule& from) {
  emu::Schedule schedule = {from.seed, from.workers, from.conflicts != 0, {}};
  for (size_t i = 0; i < std::size(schedule.latency); ++i) {
    schedule.latency[i] = static_cast<emu::Latency>(from.latency[i]);
  }
  return schedule;
}

Problem to_problem(const EmuRequest& request) {
  const auto view = [](const EmuOperand& operand) {
    return jaxgemm::MatrixView{operand.rows, operand.cols, operand.ld, operand.batch_stride, operand.transposed != 0};
  };
  constexpr int kNewest = 90;  // the emulated GPU
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
          .has_bias = request.bias != nullptr,
          .sm = kNewest};
}

void copy_in(emu::Tensor& tensor, const void* from) { std::memcpy(tensor.data, from, tensor.bytes); }

void write_owners(const emu::Tensor& out, size_t element_bytes, int64_t* owners) {
  for (size_t i = 0; i * element_bytes < out.bytes; ++i) {
    const uint32_t writer = out.writer[i * element_bytes];
    owners[i] = writer == 0 ? -1 : static_cast<int64_t>(emu::thread_of(writer));
  }
}

std::string run(const EmuRequest& request) {
  const Kernel& kernel = kernel_named(request.kernel);
  const Problem problem = to_problem(request);
  if (std::string error = why_not(kernel, problem); !error.empty()) {
    return "{\"refused\": " + quoted("kernel '" + std::string(kernel.info.full_name) + "' " + error) + "}";
  }
  emu::Session session(to_schedule(request.schedule));
  const auto place = [&](const char* name, const EmuOperand& operand, bool writable) -> emu::Tensor& {
    return session.allocate(name, static_cast<size_t>(operand.bytes), writable,
                            static_cast<size_t>(operand.misalignment));
  };
  emu::Tensor& lhs = place("lhs", request.lhs, false);
  emu::Tensor& rhs = place("rhs", request.rhs, false);
  emu::Tensor& out = place("out", request.out, true);
  copy_in(lhs, request.lhs.data);
  copy_in(rhs, request.rhs.data);
  jaxgemm::GemmArgs args = {.problem = problem, .lhs = lhs.data, .rhs = rhs.data, .out = out.data};
  if (request.bias) {
    emu::Tensor& bias = session.allocate("bias", static_cast<size_t>(request.N) * sizeof(float), false);
    copy_in(bias, request.bias);
    args.bias = reinterpret_cast<const float*>(bias.data);
  }
  const int64_t workspace_bytes = problem.empty() ? 0 : kernel.workspace_bytes(problem);
  args.workspace = session.allocate("workspace", static_cast<size_t>(workspace_bytes), true).data;

  emu::host_session() = &session;
  const std::string error = problem.empty() ? "" : kernel.launch(args);
  emu::host_session() = nullptr;

  std::memcpy(request.out.data, out.data, out.bytes);
  if (request.owners) {
    write_owners(out, static_cast<size_t>(jaxgemm::size_bytes(problem.out_dtype)), request.owners);
  }
  return "{\"error\": " + quoted(error) + ", \"damaged_guards\": " + quoted(session.damaged_guards()) +
         ", \"workspace_bytes\": " + std::to_string(workspace_bytes) + ", " + findings_json(session) + "}";
}

std::string run_probe(const char* name, const uint32_t* in, uint32_t* out, const EmuSchedule& schedule) {
  for (const auto& probe : all_probes()) {
    if (probe.name != name) continue;
    emu::Session session(to_schedule(schedule));
    emu::Tensor& input = session.allocate("in", static_cast<size_t>(probe.in_words) * sizeof(uint32_t), false);
    emu::Tensor& output = session.allocate("out", static_cast<size_t>(probe.out_words) * sizeof(uint32_t), true);
    copy_in(input, in);
    emu::host_session() = &session;
    const std::string error =
        probe.launch(reinterpret_cast<const uint32_t*>(input.data), reinterpret_cast<uint32_t*>(output.data), nullptr);
    emu::host_session() = nullptr;
    std::memcpy(out, output.data, output.bytes);
    return "{\"error\": " + quoted(error) + ", \"damaged_guards\": " + quoted(session.damaged_guards()) + ", " +
           findings_json(session) + "}";
  }
  throw std::invalid_argument(std::string("no probe is called ") + name);
}

// Python is no place for exceptions to arrive in.
template <class F>
const char* guarded(F&& body) {
  try {
    return answer(body());
  } catch (const std::exception& error) {
    return answer("{\"exception\": " + quoted(error.what()) + "}");
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* emu_kernels() {
  return guarded([] { return list(all_kernels(), [](const Kernel* kernel) { return kernel_json(*kernel); }); });
}

__attribute__((visibility("default"))) const char* emu_run(const EmuRequest* request) {
  return guarded([&] { return run(*request); });
}

__attribute__((visibility("default"))) const char* emu_probes() {
  return guarded([] {
    return list(all_probes(), [](const jaxgemm::probes::Probe& probe) {
      return "{\"name\": " + quoted(probe.name) + ", \"in_words\": " + std::to_string(probe.in_words) +
             ", \"out_words\": " + std::to_string(probe.out_words) + "}";
    });
  });
}

__attribute__((visibility("default"))) const char* emu_run_probe(const char* name, const uint32_t* in, uint32_t* out,
                                                                 const EmuSchedule* schedule) {
  return guarded([&] { return run_probe(name, in, out, *schedule); });
}

}  // extern "C"
