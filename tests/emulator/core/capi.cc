// Runs what Python asks for (core/request.h) on the emulated GPU.
#include <dlfcn.h>

#include <cstring>
#include <sstream>

#include "core/request.h"
#include "core/runtime.h"
#include "core/session.h"

namespace {

using emu::list;
using emu::quoted;
using jaxgemm::Kernel;
using jaxgemm::Problem;

// Addresses in the kernels' code as offsets into this library, which is what addr2line wants; 0: none.
int64_t code_offset(emu::Pc where) {
  Dl_info info;
  if (where == nullptr || dladdr(where, &info) == 0) return 0;
  return static_cast<const char*>(where) - static_cast<const char*>(info.dli_fbase);
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
       << ", \"switches\": " << session.switches.load() << ", \"launches\": " << session.launches
       << ", \"stopped\": " << (session.stopped ? "true" : "false");
  return json.str();
}

// EmuSchedule as the core has it.
emu::Schedule to_schedule(const EmuSchedule& from) {
  emu::Schedule schedule = {from.seed, from.workers, from.conflicts != 0, {}, from.multiprocessors};
  for (size_t i = 0; i < std::size(schedule.latency); ++i) {
    schedule.latency[i] = static_cast<emu::Latency>(from.latency[i]);
  }
  return schedule;
}

void copy_in(emu::Tensor& tensor, const void* from) { std::memcpy(tensor.data, from, tensor.bytes); }

void write_owners(const emu::Tensor& out, size_t element_bytes, int64_t* owners) {
  for (size_t i = 0; i * element_bytes < out.bytes; ++i) {
    const uint32_t writer = out.writer[i * element_bytes];
    owners[i] = writer == 0 ? -1 : static_cast<int64_t>(emu::thread_of(writer));
  }
}

std::string run(const EmuRequest& request) {
  const Kernel& kernel = emu::kernel_named(request.kernel);
  const Problem problem = emu::to_problem(request);
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
  const auto place_vector = [&](const char* name, const void* from, int64_t bytes) -> const void* {
    if (from == nullptr) return nullptr;
    emu::Tensor& tensor = session.allocate(name, static_cast<size_t>(bytes), false);
    copy_in(tensor, from);
    return tensor.data;
  };
  args.alpha = static_cast<const float*>(place_vector("alpha", request.alpha, sizeof(float)));
  args.bias_dtype = emu::bias_dtype(request);
  args.bias_batch_stride = request.bias_batch_stride;
  const int64_t bias_numbers = (request.bias_batch_stride == 0 ? 1 : request.batch) * request.N;
  args.bias = place_vector("bias", request.bias, bias_numbers * jaxgemm::size_bytes(args.bias_dtype));
  const jaxgemm::Codes& codes = problem.codes;
  args.scales = place_vector("scales", request.scales, request.parameters * jaxgemm::size_bytes(codes.scale_dtype));
  const int64_t zero_bytes = codes.zeros == jaxgemm::Zeros::kInteger ? 1 : jaxgemm::size_bytes(codes.scale_dtype);
  args.zeros = place_vector("zeros", request.zeros, request.parameters * zero_bytes);
  const int64_t workspace_bytes = problem.empty() ? 0 : kernel.workspace_bytes(problem);
  args.workspace = session.allocate("workspace", static_cast<size_t>(workspace_bytes), true).data;

  emu::host_session() = &session;
  const std::string error = problem.empty() ? "" : kernel.launch(args);
  emu::host_session() = nullptr;

  std::memcpy(request.out.data, out.data, out.bytes);
  if (request.owners) {
    write_owners(out, static_cast<size_t>(jaxgemm::size_bytes(problem.out_dtype)), request.owners);
  }
  return "{\"error\": " + quoted(error) + ", \"damaged_guards\": " + quoted(session.damaged_guards()) + ", " +
         findings_json(session) + "}";
}

std::string run_probe(const char* name, const uint32_t* in, uint32_t* out, const EmuSchedule& schedule) {
  const jaxgemm::probes::Probe& probe = emu::probe_named(name);
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

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* emu_run(const EmuRequest* request) {
  return emu::guarded([&] { return run(*request); });
}

__attribute__((visibility("default"))) const char* emu_run_probe(const char* name, const uint32_t* in, uint32_t* out,
                                                                 const EmuSchedule* schedule) {
  return emu::guarded([&] { return run_probe(name, in, out, *schedule); });
}

}  // extern "C"
