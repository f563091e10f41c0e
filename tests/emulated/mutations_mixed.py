"""Defects of the kernels of quantised weights."""

from __future__ import annotations

from tests.emulated.mutation import Mutation

_LOOP, _PACKED = "mainloop/sm90_codes.cuh", "tile/packed.cuh"
_PARKED, _TURNED, _SHARE = "epilogue/parked_sums.cuh", "epilogue/turned_sums.cuh", "tile/cluster_share.cuh"
_SHARED, _TWO = "16x128", "32x128>"  # warps that share a ring of tokens; two warpgroups

MIXED = [
    Mutation("int4_mma", "no barrier of a shared ring", "__syncthreads();  // not of", "// not of", tile=_SHARED),
    Mutation("int4_mma", "no barrier of a warp's ring", "__syncwarp();", ""),
    Mutation("int4_mma", "sums before all have read", "wait_all();\n  __syncthreads();", "wait_all();"),
    Mutation("int4_mma", "sums read too early", "__syncthreads();\n  constexpr int kQuads", "constexpr int kQuads"),
    Mutation("int4_mma", "tokens read too early", "wait<Config::kStages - 2>", "wait<Config::kStages - 1>"),
    Mutation("int4_mma", "codes beyond the last tile", "k / kPackedTileK + i < codes.tiles_k", "true"),
    Mutation("int4_mma", "sums of one warp forgotten", "w < Config::kWarpsK;", "w < Config::kWarpsK - 1;"),
    Mutation("int4_mma", "columns beyond N", "column < columns;", "true;", file=_PACKED),
    Mutation("int4_mma", "codes of the upper half byte 16 times", "kSixteenth, minus[1]", "kOnce, minus[1]",
             file=_PACKED),
    Mutation("int4_mma", "registers of codes swapped", "0f000f>(pair, kBase), offset)", "0f000f>(word, kBase), offset)",
             file=_PACKED),
    Mutation("int4_mma", "sums of bfloat16 codes not multiplied", "sums[r][t][i] * CodePairs<T>::kFactor",
             "sums[r][t][i]"),
    Mutation("int4_wgmma", "tokens of the first half twice", "k + half * kPackedTileK, row", "k, row"),
    Mutation("int4_wgmma", "bytes expected of too few tokens", "sizeof(Config::Stage::tokens) +", "128 +"),
    Mutation("int4_wgmma", "sums read too early", "wait<0>();\n        ptx::pin_registers(products)",
             "wait<1>();\n        ptx::pin_registers(products)", file=_LOOP),
    Mutation("int4_wgmma", "one parity for all rounds", "parity ^= stage == 0 ? 1u : 0u;", "", file=_LOOP),
    Mutation("int4_wgmma", "groups of the first part for all", "part * kSegments % kParts == 0", "part == 0",
             file=_LOOP),
    Mutation("int4_wgmma", "scales of the first block for both", "const int at = column + block * ptx::kWgmmaM +",
             "const int at = column +", file=_LOOP),
    Mutation("int4_wgmma", "fragments overwritten that are read", "if (!kScalesSums || part > 0) ptx::wgmma_wait<1>();",
             "", file=_LOOP),
    Mutation("int4_wgmma", "sums of bfloat16 codes not multiplied", "sum *= CodePairs<T>::kFactor;", "sum *= 1.0f;",
             file=_LOOP),
    Mutation("int4_wgmma", "a stage is not released", "release(pipeline, old);\n#pragma unroll", "#pragma unroll",
             file=_LOOP),
    Mutation("int4_wgmma", "exit before its sums are read", "if (work.share.ctas > 1) ptx::cluster_sync_relaxed();",
             ""),
    Mutation("int4_wgmma", "sums before all have read",
             "if (at_.end_of(at_.rank) <= end) ptx::barrier_sync(1, Config::kConsumerThreads);", "", file=_PARKED,
             tile=_TWO),
    Mutation("int4_wgmma", "sums over stages that are needed", "if (at_.end_of(rank) <= end) return", "return",
             file=_PARKED),
    Mutation("int4_wgmma", "sums of the last CTA forgotten", "(end - 1) / at_.share;  // ranks",
             "(end - 1) / at_.share - 1;", file=_PARKED),
    Mutation("int4_wgmma", "rows beyond M added up", "tile.row + i / kQuadsPerRow < M", "true", file=_PARKED),
    Mutation("int4_wgmma", "the second tile that is shared forgotten",
             "if (last_tile != tile && end % k_tiles != 0)", "if (false)", file=_PARKED),
    Mutation("int4_wgmma", "turned rows read too early", "__syncwarp();\n      if (inside", "if (inside", file=_TURNED),
    Mutation("int4_wgmma", "rows beyond M", "inside && first + row < rows_", "inside", file=_TURNED),
    Mutation("int4_wgmma", "columns beyond N", "&& element.row < cols_", "", file=_TURNED),
    Mutation("int4_wgmma", "a cluster's second tile forgotten", "number < tiles; number += clusters",
             "number < clusters; number += clusters", file=_SHARE),
]  # fmt: skip
