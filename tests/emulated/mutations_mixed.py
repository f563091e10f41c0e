"""Defects of the kernels of quantised weights."""

from __future__ import annotations

from tests.emulated.mutation import Mutation

_LOOP, _PACKED = "mainloop/sm90_codes.cuh", "tile/packed.cuh"
_SHARED, _TWO = "16x128", "32x128x128>"  # warps that share a ring of tokens; two warpgroups

MIXED = [
    Mutation("int4_mma", "no barrier of a shared ring", "__syncthreads();  // not of", "// not of", tile=_SHARED),
    Mutation("int4_mma", "no barrier of a warp's ring", "__syncwarp();", ""),
    Mutation("int4_mma", "sums before all have read", "wait_all();\n  __syncthreads();", "wait_all();"),
    Mutation("int4_mma", "sums read too early", "__syncthreads();\n  constexpr int kQuads", "constexpr int kQuads"),
    Mutation("int4_mma", "tokens read too early", "wait<Config::kStages - 2>", "wait<Config::kStages - 1>"),
    Mutation("int4_mma", "codes beyond the last tile", "k / kPackedTileK + i < codes.tiles_k", "true"),
    Mutation("int4_mma", "sums of one warp forgotten", "w < Config::kWarpsK;", "w < Config::kWarpsK - 1;"),
    Mutation("int4_mma", "columns beyond N", "column < columns;", "true;", file=_PACKED),
    Mutation("int4_mma", "registers of codes swapped", "0f000f>(word >> (4 * i)", "0f000f>(word >> (4 * (i ^ 1))",
             file=_PACKED),
    Mutation("int4_wgmma", "sums before all have read", "ptx::barrier_sync(1, Config::kConsumerThreads);", "",
             tile=_TWO),
    Mutation("int4_wgmma", "tokens of the first half twice", "k + half * kPackedTileK, row", "k, row"),
    Mutation("int4_wgmma", "bytes expected of too few tokens", "sizeof(Config::Stage::tokens) +", "128 +"),
    Mutation("int4_wgmma", "sums read too early", "wait<0>();\n        ptx::pin_registers(products)",
             "wait<1>();\n        ptx::pin_registers(products)", file=_LOOP),
    Mutation("int4_wgmma", "one parity for all rounds", "parity ^= stage == 0 ? 1u : 0u;", "", file=_LOOP),
    Mutation("int4_wgmma", "groups of the first half twice", "half == 0 || kSegments >= kHalves", "half == 0",
             file=_LOOP),
]  # fmt: skip
