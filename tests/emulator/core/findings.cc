#include "core/findings.h"

namespace emu {

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kOutOfBounds: return "out of bounds";
    case Kind::kMisaligned: return "misaligned";
    case Kind::kReadOnly: return "read-only";
    case Kind::kRace: return "race";
    case Kind::kUninitialised: return "uninitialised";
    case Kind::kDeadlock: return "deadlock";
    case Kind::kDivergence: return "divergence";
    case Kind::kProtocol: return "protocol";
  }
  return "?";
}

bool Findings::count(Kind kind, Pc where, Pc other) {
  std::lock_guard lock(mutex_);
  ++total_;
  Finding& finding = findings_[{kind, where, other}];
  finding.kind = kind;
  finding.where = where;
  finding.other = other;
  return ++finding.count == 1;
}

void Findings::explain(Kind kind, Pc where, Pc other, const std::string& text) {
  std::lock_guard lock(mutex_);
  findings_[{kind, where, other}].text = text;
}

void Findings::add_wavefronts(Pc where, const char* what, const Wavefronts& more) {
  std::lock_guard lock(mutex_);
  Wavefronts& sum = wavefronts_[{where, what}];
  sum.accesses += more.accesses;
  sum.wavefronts += more.wavefronts;
  sum.ideal += more.ideal;
}

std::vector<Finding> Findings::all() const {
  std::lock_guard lock(mutex_);
  std::vector<Finding> list;
  for (const auto& [key, finding] : findings_) list.push_back(finding);
  return list;
}

std::vector<std::tuple<Pc, std::string, Wavefronts>> Findings::wavefronts() const {
  std::lock_guard lock(mutex_);
  std::vector<std::tuple<Pc, std::string, Wavefronts>> list;
  for (const auto& [key, sum] : wavefronts_) list.emplace_back(key.first, key.second, sum);
  return list;
}

}  // namespace emu
