// Which lane holds what is not documented for wmma, so the distribution here is one that no GPU has: nobody can come to
// rely on it. An operand's fragment keeps the order of memory: lane i has, of every other run of 16 elements, the
// element i % 16. Of an accumulator, a lane has eight neighbours of a row.
//
// Accesses to memory are a lane's own, 16 bytes or 8 floats each, and also in an order that no GPU is known to have:
// that a lane reads what it has written itself, so that __syncwarp() would not be missed, is then unlikely.
#include "ptx/wmma.cuh"

#include <cstring>

#include "ptx/float_formats.h"
#include "ptx/shared_rows.h"

namespace emu {
namespace {

using jaxgemm::wmma::kAlignmentBytes;
using jaxgemm::wmma::kGlobalLdElems;
using jaxgemm::wmma::kTile;

constexpr int kLanes = 32, kElemBytes = 2;
constexpr int kPerLane = kTile * kTile / kLanes;
constexpr int kOwnWords = kPerLane * kElemBytes / 4;  // registers of an operand that hold anything

// The half of a run (of 16 contiguous elements) that a lane accesses.
struct Part {
  int run, first;
};
constexpr Part part_of(int lane) {
  const int part = kLanes - 1 - lane;
  return {part / 2, part % 2 * kPerLane};
}

struct MemoryLane {
  void* regs;
  const void* tile;
  int ld;
  SharedAddress part;  // of a tile in shared memory
};

std::string text(const char* op, const char* rule, int ld) {
  return std::string(op) + " with a leading dimension of " + std::to_string(ld) + ", " + rule;
}

// All lanes give the same operands. PTX ISA, "wmma.load", "wmma.store".
template <class Lanes>
void check_uniform(Lanes&& lane, const char* op, Pc where) {
  for (int i = 1; i < kLanes; ++i) {
    if (lane(i).tile == lane(0).tile && lane(i).ld == lane(0).ld) continue;
    fatal(Kind::kProtocol, where,
          std::string(op) + ": lane " + std::to_string(i) + " gives another address or leading dimension than lane 0");
  }
}

// The executing lane's part of a tile in shared memory.
SharedAddress touch_shared_part(const void* tile, int ld, int elem_bytes, Access access, const char* op, Pc where) {
  if (ld * elem_bytes % 16 != 0) {
    fatal(Kind::kMisaligned, where, text(op, "which is not a multiple of 16 bytes", ld));
  }
  const Part part = part_of(lane_of(self()));
  const auto bytes = static_cast<size_t>(kPerLane * elem_bytes);
  own_shared_address(tile, bytes, kAlignmentBytes, op, where);
  const auto* first = static_cast<const unsigned char*>(tile) + (ptrdiff_t{part.run} * ld + part.first) * elem_bytes;
  const SharedAddress address = own_shared_address(first, bytes, 16, op, where);
  touch_shared(this_thread(op, where), address, bytes, access);
  return address;
}

void touch_global_part(const void* tile, int ld, const char* op, Pc where) {
  if (ld % kGlobalLdElems != 0) {
    fatal(Kind::kMisaligned, where, text(op, "which is not a multiple of 16 elements", ld));
  }
  const Part part = part_of(lane_of(self()));
  const auto* run = static_cast<const unsigned char*>(tile) + ptrdiff_t{part.run} * ld * kElemBytes;
  // The alignment of a run counts, and its first half has it.
  touch_global(run + part.first * kElemBytes, kPerLane * kElemBytes, part.first == 0 ? kAlignmentBytes : 16,
               Access::kRead, op, where);
}

const char* load_name(WmmaFragment type) {
  if (type.is_a) return type.col_major ? "wmma.load.a.col" : "wmma.load.a.row";
  return type.col_major ? "wmma.load.b.col" : "wmma.load.b.row";
}

// Loads go by 8 x 8 matrices, as ldmatrix does.
template <class Lanes>
void count_load(Lanes&& lane, const char* op, Pc where) {
  count_matrix_wavefronts(where, op, 4, [&](int row) {
    const int run = row / 16 * 8 + row % 8, first = row / 8 % 2 * kPerLane;
    return lane(kLanes - 1 - (run * 2 + first / kPerLane)).part;
  });
}

// A store goes by four rows of eight floats. They are as eight rows of four floats to the banks.
template <class Lanes>
void count_store(Lanes&& lane, const char* op, Pc where) {
  for (int phase = 0; phase < 8; ++phase) {
    std::array<uint32_t, kMatrixRows> offsets;
    for (int i = 0; i < kMatrixRows; ++i) {
      const int run = phase / 2 * 4 + i / 2;
      const SharedAddress part = lane(kLanes - 1 - (run * 2 + phase % 2)).part;
      offsets[static_cast<size_t>(i)] = part.offset + static_cast<uint32_t>(i % 2 * kMatrixRowBytes);
    }
    count_wavefronts(where, op, matrix_wavefronts(offsets), 1);
  }
}

uint16_t element_of(const uint32_t* regs, int i) { return static_cast<uint16_t>(regs[i / 2] >> 16 * (i % 2)); }

// Elements of the tile in the order of memory: runs[i][j] is element j of run i.
using Runs = float[kTile][kTile];

template <class Regs>
void gather(Runs& runs, bool bf16, Regs&& regs) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < kPerLane; ++i) {
      const uint16_t bits = element_of(regs(lane), i);
      runs[2 * i + lane / kTile][lane % kTile] = bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
  }
}

void transpose(Runs& runs) {
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < i; ++j) std::swap(runs[i][j], runs[j][i]);
  }
}

// d += a * b: sums are rounded to float32 after each product, in the order of K.
void multiply(Runs& d, const Runs& a, const Runs& b) {
  for (int row = 0; row < kTile; ++row) {
    for (int k = 0; k < kTile; ++k) {
      for (int col = 0; col < kTile; ++col) d[row][col] += a[row][k] * b[k][col];
    }
  }
}

const char* mma_name(bool bf16, bool a_col_major, bool b_col_major) {
  static constexpr const char* kNames[2][2][2] = {
      {{"wmma.mma.row.row.f16", "wmma.mma.row.col.f16"}, {"wmma.mma.col.row.f16", "wmma.mma.col.col.f16"}},
      {{"wmma.mma.row.row.bf16", "wmma.mma.row.col.bf16"}, {"wmma.mma.col.row.bf16", "wmma.mma.col.col.bf16"}}};
  return kNames[bf16][a_col_major][b_col_major];
}

}  // namespace

void wmma_load(WmmaFragment type, uint32_t* regs, const void* tile, int ld, bool shared) {
  const Pc where = EMU_CALLER;
  const char* op = load_name(type);
  MemoryLane mine = {regs, tile, ld, {}};
  if (shared) {
    mine.part = touch_shared_part(tile, ld, kElemBytes, Access::kRead, op, where);
  } else {
    touch_global_part(tile, ld, op, where);
  }
  if (!type.bf16) std::memset(regs + kOwnWords, 0xFF, kOwnWords * sizeof *regs);  // the second copy: not kept here
  warp_together(op, where, mine, [&](auto&& lane) {
    check_uniform(lane, op, where);
    if (shared) count_load(lane, "wmma.load", where);
    const auto* from = static_cast<const unsigned char*>(tile);
    for (int i = 0; i < kLanes; ++i) {
      uint16_t elements[kPerLane];
      for (int j = 0; j < kPerLane; ++j) {
        const ptrdiff_t at = ptrdiff_t{2 * j + i / kTile} * ld + i % kTile;
        std::memcpy(&elements[j], from + at * kElemBytes, kElemBytes);
      }
      std::memcpy(lane(i).regs, elements, sizeof elements);
    }
  });
}

namespace {

struct MmaLane {
  float* d;
  const uint32_t *a, *b;
};

}  // namespace

void wmma_mma(bool bf16, bool a_col_major, bool b_col_major, float* d, const uint32_t* a, const uint32_t* b) {
  const Pc where = EMU_CALLER;
  MmaLane mine = {d, a, b};
  warp_together(mma_name(bf16, a_col_major, b_col_major), where, mine, [&](auto&& lane) {
    Runs a_runs, b_runs, sums;
    gather(a_runs, bf16, [&](int i) { return lane(i).a; });
    gather(b_runs, bf16, [&](int i) { return lane(i).b; });
    if (a_col_major) transpose(a_runs);
    if (b_col_major) transpose(b_runs);
    for (int i = 0; i < kLanes; ++i) std::memcpy(&sums[i / 2][i % 2 * kPerLane], lane(i).d, kPerLane * sizeof(float));
    multiply(sums, a_runs, b_runs);
    for (int i = 0; i < kLanes; ++i) std::memcpy(lane(i).d, &sums[i / 2][i % 2 * kPerLane], kPerLane * sizeof(float));
  });
}

void wmma_store(float* tile, const float* d, int ld) {
  const Pc where = EMU_CALLER;
  constexpr const char* kOp = "wmma.store.d.row";
  MemoryLane mine = {const_cast<float*>(d), tile, ld, {}};
  mine.part = touch_shared_part(tile, ld, sizeof(float), Access::kWrite, kOp, where);
  warp_together(kOp, where, mine, [&](auto&& lane) {
    check_uniform(lane, kOp, where);
    count_store(lane, "wmma.store", where);
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(tile + ptrdiff_t{i / 2} * ld + i % 2 * kPerLane, lane(i).regs, kPerLane * sizeof(float));
    }
  });
}

}  // namespace emu
