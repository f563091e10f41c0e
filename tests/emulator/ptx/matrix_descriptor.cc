#include "ptx/matrix_descriptor.h"

#include <cstdio>

namespace emu {
namespace {

using namespace jaxgemm::ptx;

constexpr uint64_t kFieldMask = 0x3FFF;
constexpr uint64_t kKnownBits = kFieldMask | kFieldMask << kDescriptorLeadingBit | kFieldMask << kDescriptorStrideBit |
                                uint64_t{7} << kDescriptorBaseOffsetBit | uint64_t{3} << kDescriptorSwizzleBit;

struct Decoded {
  uint32_t start;
  MatrixLayout layout;
};

std::string hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(bits));
  return text;
}

Decoded decode(uint64_t descriptor, const char* what, Pc where) {
  const auto bytes = [&](int bit) { return static_cast<uint32_t>((descriptor >> bit & kFieldMask) << 4); };
  if ((descriptor & ~kKnownBits) != 0) {
    fatal(Kind::kProtocol, where,
          std::string(what) + ": matrix descriptor " + hex(descriptor) + " has bits outside of its fields");
  }
  if ((descriptor >> kDescriptorBaseOffsetBit & 7) != 0) {
    fatal(Kind::kProtocol, where,
          std::string(what) + ": matrix descriptor " + hex(descriptor) + " with a base offset, which is not modelled");
  }
  return {bytes(0),
          {bytes(kDescriptorLeadingBit), bytes(kDescriptorStrideBit),
           static_cast<Swizzle>(descriptor >> kDescriptorSwizzleBit)}};
}

// The canonical layouts, PTX ISA, "Shared Memory Matrix Layout", "Strides"; the table is at MatrixLayout.
uint32_t chunk_offset(const MatrixLayout& layout, Major major, uint32_t element_bytes, uint32_t mn, uint32_t k) {
  constexpr uint32_t kRows = 8;  // of an atom
  const auto span = static_cast<uint32_t>(span_bytes(layout.swizzle));
  const uint32_t span_elems = span / element_bytes;
  const bool plain = layout.swizzle == Swizzle::kNone;
  if (major == Major::kK) {
    const uint32_t row = mn % kRows * span + mn / kRows * layout.stride_bytes;
    return row + (plain ? k / span_elems * layout.leading_bytes : k * element_bytes);
  }
  const uint32_t in_atom = k % kRows * span + mn % span_elems * element_bytes;
  return in_atom + mn / span_elems * (plain ? layout.stride_bytes : layout.leading_bytes) +
         k / kRows * (plain ? layout.leading_bytes : layout.stride_bytes);
}

}  // namespace

std::vector<OperandChunk> operand_chunks(uint64_t descriptor, Major major, int element_bytes, int extent,
                                         const char* what, Pc where) {
  const int elems = kChunkBytes / element_bytes, depth = kWgmmaStepBytes / element_bytes;
  const Decoded decoded = decode(descriptor, what, where);
  const int mn_step = major == Major::kMN ? elems : 1, k_step = major == Major::kMN ? 1 : elems;
  std::vector<OperandChunk> chunks;
  chunks.reserve(static_cast<size_t>(extent * kWgmmaStepBytes / kChunkBytes));
  for (int mn = 0; mn < extent; mn += mn_step) {
    for (int k = 0; k < depth; k += k_step) {
      const uint32_t plain = decoded.start + chunk_offset(decoded.layout, major, static_cast<uint32_t>(element_bytes),
                                                          static_cast<uint32_t>(mn), static_cast<uint32_t>(k));
      const uint32_t address = swizzled(decoded.layout.swizzle, plain);
      chunks.push_back({shared_address(address, kChunkBytes, kChunkBytes, what, where), mn, k});
    }
  }
  return chunks;
}

}  // namespace emu
