"""What test_kernel_mutations.py breaks, one place at a time. Every barrier of the kernels is one of the places."""

from __future__ import annotations

import dataclasses

from tests.emulated.mutation import Mutation
from tests.emulated.mutations_at_once import AT_ONCE
from tests.emulated.mutations_hopper import FLOAT32 as FLOAT32_COPIED
from tests.emulated.mutations_hopper import HOPPER, K_COPY
from tests.emulated.mutations_mixed import MIXED
from tests.emulator.build import CUDA

BARRIER = "__syncthreads();"


def _without_barriers() -> list[Mutation]:
    files = [(path.stem, path, "") for path in sorted(CUDA.glob("kernels/*.cu")) if not path.stem.startswith("int4")]
    files += [("mma_multistage", CUDA / MAINLOOP, ""), ("mma_multistage", CUDA / SPLIT_K, "")]
    files += [("wgmma", CUDA / K_COPY, FLOAT32_COPIED)]
    return [
        Mutation(family, f"no barrier {i} in {path.name}", BARRIER, "", i, str(path.relative_to(CUDA)), tile)
        for family, path, tile in files
        for i in range(path.read_text().count(BARRIER))
    ]


MAINLOOP, MMA_OP = "mainloop/sm80_cp_async.cuh", "tile/mma_op.cuh"
OPERAND_TILE, SHIFTED_TILE, FRAGMENT = "tile/operand_tile.cuh", "tile/shifted_tile.cuh", "tile/fragment.cuh"
STAGED, EPILOGUE, RECOMPUTE = "epilogue/staged.cuh", "epilogue/epilogue.cuh", "epilogue/recompute.cuh"
MMA_FAMILY, PAD_COPY, SPLIT_K = "tile/mma_family.cuh", "tile/pad_copy.cu", "tile/split_k.cu"
SHIFTED_VECTOR, ALIGNMENT = "tile/shifted_vector.cuh", "tile/alignment.h"
FLOAT32 = {"mma": "64x64x16", "mma_ldmatrix": "64x64x32", "mma_multistage": "64x64x32"}
WARPS_K = "128x128x64"  # mma_multistage's in which warps share a tile along K
INT8 = {"mma": "64x64x64", "mma_ldmatrix": "64x64x128", "mma_multistage": "64x64x128"}

_SIMT = [
    Mutation("naive", "a row too many", "m >= M ||", "m > M ||"),
    Mutation("naive", "a step of K too many", "k < K;", "k <= K;"),
    Mutation("smem_tiled", "a column too many", "row < M && col < N", "row < M && col <= N"),
    Mutation("smem_tiled", "K tail of rhs read", "rhs_inside && k_tile + rhs_k < K ?", "rhs_inside ?"),
    Mutation("register_tiled", "stage overwritten that is read", "store(stage ^ 1);", "store(stage);"),
    Mutation("register_tiled", "128-bit loads of misaligned rows", "&& is_aligned(g_tile) && ld % kVector == 0", ""),
    Mutation("register_tiled", "K tail loaded whole", "interior && k_left >= kTileK", "interior && k_left > 0"),
]  # fmt: skip

_GEMV_OF_ALL_WAYS = [
    Mutation("gemv", "an element of out too many", "if (out >= outs) return;", "if (out > outs) return;"),
    Mutation("gemv", "K tail of the row read", "= k_step < left ? __ldg(g_row", "= true ? __ldg(g_row"),
    Mutation("gemv", "K tail of the row's vectors read", "load_vector(stage.row, g_row, left > 0);",
             "load_vector(stage.row, g_row, true);"),
    Mutation("gemv", "K tail of elements read", "k_step < left && mine.out(i) < outs;", "mine.out(i) < outs;"),
    Mutation("gemv", "elements of the next columns", "k_step < left && mine.out(i) < outs;", "k_step < left;"),
    Mutation("gemv", "K tail of vectors read", "left > 0 && mine.out(0) < outs", "mine.out(0) < outs"),
    Mutation("gemv", "vectors of the next columns", "left > 0 && mine.out(0) < outs", "left > 0"),
    Mutation("gemv", "vectors of misaligned rows", "return runs_aligned(", "return true || runs_aligned("),
    Mutation("gemv", "vectors over the end of a run", "cols % Config::kVector == 0)", "cols % 1 == 0)"),
    Mutation("gemv", "vectors of a misaligned row", "(along_k ? row_fits :", "(along_k ? row_along_k :"),
    Mutation("gemv", "vectors of a row that lies apart", "row_fits = row_along_k &&", "row_fits ="),
    Mutation("gemv", "elements next to each other taken for apart", "kVectors ? 1 : kLanes;", "1;"),
    Mutation("gemv", "k-tiles of the matrix again", "g_elements += kAlongK ?", "g_elements += false ?"),
    Mutation("gemv", "k-tiles of the row again", "g_row += kTileK * k_stride;", ""),
    Mutation("gemv", "more of K than there is", "left -= kTileK;", ""),
    Mutation("gemv", "a k-tile of the ring left out", "stage < kStages; ++stage", "stage < kStages - 1; ++stage"),
    Mutation("gemv", "an element of a run left out", "i < Mine::kRun; ++i) sum += sums[i];",
             "i < Mine::kRun - 1; ++i) sum += sums[i];"),
    Mutation("gemv", "a warp's sums left out", "i < kSharedBy;", "i < kSharedBy - 1;"),
    Mutation("gemv", "lanes of other columns added up", "int apart = kSharers;", "int apart = 1;"),
    Mutation("gemv", "half of a run's lanes left out", "apart < kSharers;", "apart < kSharers / 2;"),
    Mutation("gemv", "a column written as a row", "column ? at : tile.row, column ? tile.row : at", "tile.row, at"),
    Mutation("gemv", "a column's matrix the other way", "view.transposed != column,", "view.transposed,"),
    Mutation("gemv", "a column's row the other way", "row_view.transposed == column;", "!row_view.transposed;"),
]  # fmt: skip
# Of a tile with all ways to load, and of one that is narrower than a vector.
_GEMV = [
    *(dataclasses.replace(mutation, tile="1x16x128") for mutation in _GEMV_OF_ALL_WAYS),
    Mutation("gemv", "the same k for all runs of a thread", "run + i / kRun;", "run;"),
]

_WMMA = [
    Mutation("wmma_naive", "a row too many", "tile.row + row < M", "tile.row + row <= M"),
    Mutation("wmma_naive", "misaligned fragments", "% wmma::kAlignmentBytes == 0 &&", "% 2 == 0 &&"),
    Mutation("wmma_naive", "operands not padded", "return view.rows % kTile == 0 &&", "return"),
    Mutation("wmma_tiled", "every slice of K twice", "(slice * Config::kWarpsK + warp_k) * kTile", "slice * kTile"),
    Mutation("wmma_tiled", "stage read before it is stored", "    multiply(stage);", "    multiply(stage ^ 1);"),
    Mutation("wmma_tiled", "rhs tail not zeroed", "valid > 0 ? *reinterpret_cast", "true ? *reinterpret_cast"),
    Mutation("wmma_tiled", "a partial sum left out", "part < Config::kWarpsK", "part < 1"),
    Mutation("wmma_tiled", "rows swapped within a vector", "return low | high << 16;", "return high | low << 16;"),
]  # fmt: skip

_MMA = [
    Mutation(
        "mma", "rows and halves of K swapped", "[2 * i + r % 2][2 * step + r / 2]", "[2 * i + r / 2][2 * step + r % 2]"
    ),
    Mutation("mma", "another order of K in rhs", "rhs[j][2 * step + r]", "rhs[j][2 * step + 1 - r]"),
    Mutation("mma", "K tail in vectors", "k + kWarp.k <= K;", "k < K;"),
    Mutation("mma", "K tail not zeroed", "static_cast<int>(k_left) - k_ : kElems", "kElems : kElems"),
    Mutation("mma", "rows beyond the edge read", "mn(slot, 0) < mn_left_);", "true);"),
    Mutation("mma", "vectors beyond the edge read", "first < last ? first : last", "first"),
    Mutation("mma", "the vector after the last read", "(mn_left_ - 1) &", "mn_left_ &", 0),
    Mutation("mma", "the last vector read for all", "first < last ? first : last", "last"),
    Mutation("mma", "vectors of misaligned operands", "(data) % kVectorBytes == 0", "(data) % 1 == 0", file=ALIGNMENT),
    Mutation(
        "mma", "vectors of misaligned rows", "&& made_of_vectors(view, size_bytes(dtype))", "", file="tile/pad_copy.h"
    ),
    Mutation("mma", "elements of int8 swapped", "? 0x5140 : 0x7362", "? 0x5041 : 0x7362", tile=INT8["mma"]),
    Mutation("mma", "columns of out swapped", "g * kGroup + slot % kGroup", "slot % kGroup * 8 + g", file=FRAGMENT),
]  # fmt: skip

_TILES = [
    Mutation("mma_ldmatrix", "no wait", "ptx::cp_async_wait_all();", ""),
    Mutation(
        "mma_ldmatrix", "k-tile read elsewhere", "lane_offset_ ^ vectors % 8", "lane_offset_ + vectors % 8",
        file=OPERAND_TILE,
    ),
    Mutation("mma_ldmatrix", "an aligned operand moved", "if (!rhs_aligned) rhs.move", "rhs.move"),
    Mutation("mma_ldmatrix", "copied to where it is not moved from", "lhs_aligned ? tiles.lhs : tiles.copied_lhs",
             "tiles.lhs"),
    Mutation(
        "mma_multistage", "k-tile written elsewhere", "Tile::offset(run_, vector_)",
        "run_ * Tile::kRunBytes + vector_ * kVectorBytes", 0, OPERAND_TILE,
    ),
    Mutation("mma_ldmatrix", "half a swizzle", "return run % 8;", "return run % 4;", file=OPERAND_TILE, conflicts=True),
    Mutation(
        "mma_ldmatrix", "half a swizzle of float32", "return run % 4 * 2;", "return run % 2 * 2;", file=OPERAND_TILE,
        tile=FLOAT32["mma_ldmatrix"], conflicts=True,
    ),
    Mutation(
        "mma_ldmatrix", "matrices of a swapped", "kIsLhs ? matrix % 2 :", "kIsLhs ? matrix / 2 :", 0, OPERAND_TILE
    ),
    Mutation(
        "mma_multistage", "tail not zeroed", "left < Tile::kVectorElems ? left :", "false ? left :", file=OPERAND_TILE
    ),
    Mutation(
        "mma_ldmatrix", "16-byte copies of misaligned operands", "at_vector(data) && begins_at_vectors",
        "begins_at_vectors", file=ALIGNMENT,
    ),
    Mutation(
        "mma_ldmatrix", "copies of rows that are no vectors", "return view.ld * element_bytes % kVectorBytes == 0 &&",
        "return", file=ALIGNMENT,
    ),
    Mutation("mma_ldmatrix", "bytes swapped", "0x6420", "0x6240", file=OPERAND_TILE, tile=INT8["mma_ldmatrix"]),
    Mutation("mma_ldmatrix", "columns of out swapped", "lane % 4 * 2 + i % 2}", "lane % 4 + i % 2 * 4}", file=FRAGMENT),
]  # fmt: skip

_SHIFTED = [
    Mutation("mma_multistage", "no shift by bytes", "bytes % 4 * 0x1111", "bytes % 2 * 0x1111", file=SHIFTED_VECTOR),
    Mutation("mma_multistage", "no shift by 4", "bytes & 4 ?", "false ?", file=SHIFTED_VECTOR),
    Mutation("mma_multistage", "no shift by 8", "bytes & 8 ?", "false ?", file=SHIFTED_VECTOR),
    Mutation("mma_multistage", "moved too early", "cp_async_wait<kAhead - 1>", "cp_async_wait<kAhead>", file=MAINLOOP),
    Mutation(
        "mma_multistage", "an aligned operand moved", "if (!rhs.aligned()) rhs.move", "rhs.move", file=MAINLOOP,
    ),
    Mutation(
        "mma_multistage", "a place too few in turn", "in_turn = in_turn == kAhead ?",
        "in_turn = in_turn + 1 == kAhead ?", file=MAINLOOP,
    ),
    Mutation(
        "mma_multistage", "moved by as much as another run", "shifted(here, next, own_past_)",
        "shifted(here, next, past_)", file=SHIFTED_TILE,
    ),
    Mutation(
        "mma_multistage", "last vectors of runs not copied", "valid_bytes(exist, own_past_, kVectors) : 0", "0 : 0",
        file=SHIFTED_TILE,
    ),
    Mutation(
        "mma_multistage", "read before the operand begins", "here > 0 && g_vector < g_operand_", "false",
        file=SHIFTED_TILE,
    ),
    Mutation(
        "mma_multistage", "first elements in the wrong place", "<< at % 4 * 8;", "<< at % 2 * 8;", file=SHIFTED_TILE,
    ),
    Mutation(
        "mma_multistage", "read past the end of runs", "left < kVectorBytes ? left : kVectorBytes", "kVectorBytes",
        file=SHIFTED_TILE,
    ),
    Mutation(
        "mma_multistage", "runs that do not exist", "i * kRunsPerStep + run() < runs ? valid : 0", "valid",
        file=SHIFTED_TILE,
    ),
]  # fmt: skip

_PIPELINE = [
    Mutation(
        "mma_multistage", "a wait too short", "cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>", 0, MAINLOOP
    ),
    Mutation("mma_multistage", "zeros still on their way", "ptx::cp_async_wait_all();", "", 0, MAINLOOP),
    Mutation("mma_multistage", "stage overwritten that is read", "i < kStages - 1;", "i < kStages;", file=MAINLOOP),
    Mutation(
        "mma_multistage", "the first stage read always", "stage = stage + 1 == kStages ?",
        "stage = stage + 1 != kStages ?", 0, MAINLOOP,
    ),
    Mutation("mma_multistage", "K tail copied whole", "tiles_left == 1 ? last_k : 0", "kCta.k", file=MAINLOOP),
    Mutation("mma_multistage", "fragments of this step twice", "(kStep + 1) % kSteps;", "kStep;", file=MAINLOOP),
    Mutation(
        "mma_multistage", "all of lhs for each share of K", "lhs_loader(warp_row(), warp_k() * kSteps)",
        "lhs_loader(warp_row())", 0, MAINLOOP, WARPS_K,
    ),
    Mutation(
        "mma_multistage", "all of rhs for each share of K", "rhs_loader(warp_col(), warp_k() * kSteps)",
        "rhs_loader(warp_col())", 1, MAINLOOP, WARPS_K,
    ),
    Mutation("mma_multistage", "sums of the last share of K", "phases, part > 0)", "phases, false)", tile=WARPS_K),
    Mutation("mma_multistage", "shares of K at once", "if (Loop::warp_k() == part)", "if (true)", tile=WARPS_K),
    Mutation(
        "mma_multistage", "first column of a pair not added", "Pair{s_pair.x + pair.x,", "Pair{pair.x,", file=STAGED,
        tile=WARPS_K,
    ),
    Mutation(
        "mma_multistage", "moved sums not added", "add ? s_sums[i] + sum(i) : sum(i)", "sum(i)", file=STAGED,
        tile=WARPS_K,
    ),
    Mutation(
        "mma_multistage", "2xTF32", "ptx::mma_m16n8k8_tf32(d[j], small, b.big[j]);", ";", file=MMA_OP,
        tile=FLOAT32["mma_multistage"],
    ),
]  # fmt: skip

_STAGED = [
    Mutation("mma_ldmatrix", "one phase for all rows", "+ static_cast<unsigned>(row) * ld) % 4", ") % 4", file=STAGED),
    Mutation("mma_ldmatrix", "phases of another batch", "epilogue.phase(tile.batch,", "epilogue.phase(0,", file=STAGED),
    Mutation("mma_ldmatrix", "phases of the warp tile", "phases.of(tile_row)", "phases.of(row)", file=STAGED),
    Mutation("mma_ldmatrix", "rows moved, and taken as not", "first % 4 == 0 && ld % 4", "first % 4", file=STAGED),
    Mutation("mma_ldmatrix", "tile moved, and taken as not", "first % 4 == 0 && ld % 4", "ld % 4", file=STAGED),
    Mutation("mma_ldmatrix", "columns left over", "if (phases.all_zero()) return;", "return;", file=STAGED),
    Mutation("mma_ldmatrix", "right end taken from the left", "? kCols + at % 4 :", "? at % 4 :", file=STAGED),
    Mutation("mma_ldmatrix", "a column left over too many", "at % 4 < phase ?", "at % 4 <= phase ?", file=STAGED),
    Mutation("mma_ldmatrix", "rows begin too early", "if (quad == 0 && phase > 0) continue;", "", file=STAGED),
    Mutation("mma_ldmatrix", "no room for moved rows", "kStride = kCols + 8", "kStride = kCols", file=STAGED),
    Mutation(
        "mma_ldmatrix", "staged rows in the same banks", "kStride = kCols + 8", "kStride = kCols + 32", file=STAGED,
        conflicts=True,
    ),
    Mutation("mma_ldmatrix", "a pair swapped", "pair = {sum(0), sum(1)}", "pair = {sum(1), sum(0)}", file=STAGED),
    Mutation("mma", "a quad swapped", "{sum(0), sum(1), sum(2),", "{sum(0), sum(2), sum(1),", file=STAGED),
    Mutation("mma_ldmatrix", "ragged rows written whole", "tile.row + kRows <= M &&", "", file=MMA_FAMILY),
    Mutation(
        "mma_ldmatrix", "ragged columns written whole", "tile.col + kCols <= N;", "tile.col < N;", file=MMA_FAMILY
    ),
    Mutation("mma_ldmatrix", "bias left out of whole tiles", "epilogue.plain() &&", "", file=MMA_FAMILY),
    Mutation("mma_ldmatrix", "moved rows written plain", "whole = phases.all_zero() &&", "whole =", file=MMA_FAMILY),
    Mutation("mma_ldmatrix", "a row too many of a part", "if (row >= rows ||", "if (row > rows ||", file=MMA_FAMILY),
    Mutation("mma_ldmatrix", "a quad over the edge of a part", "if (col + 4 <= cols)", "if (true)", file=MMA_FAMILY),
    Mutation(
        "mma_ldmatrix", "columns of a part left out", "if (col + i < cols) round1", "if (false) round1",
        file=MMA_FAMILY,
    ),
    Mutation(
        "mma_ldmatrix", "a column of a part behind the edge", "if (row < rows && col < cols)", "if (row < rows)",
        file=MMA_FAMILY,
    ),
    Mutation("mma_ldmatrix", "float32 written as 16 bits", "!= DType::kF32)", "!= DType::kS32)", file=MMA_FAMILY),
    Mutation(
        "mma_ldmatrix", "a row too many", "if (m >= M || n >= N) return;", "if (m > M || n >= N) return;", 0, STAGED
    ),
    Mutation(
        "mma_ldmatrix", "a column left over behind the edge", "if (m >= M || n >= N) return;", "if (m >= M) return;", 1,
        STAGED,
    ),
    Mutation(
        "mma_ldmatrix", "no recomputing in whole tiles", "fix(sums, tile.batch, tile.row + row, tile.col + col, N);",
        "", 0, MMA_FAMILY, tile=FLOAT32["mma_ldmatrix"],
    ),
    Mutation(
        "mma_ldmatrix", "no recomputing in quads", "fix(sums, tile.batch, m, n, N);", "", file=STAGED,
        tile=FLOAT32["mma_ldmatrix"],
    ),
    Mutation(
        "mma_ldmatrix", "no recomputing of what is left over", "fix(sums, tile.batch, m, n, n + 1);", "",
        file=STAGED, tile=FLOAT32["mma_ldmatrix"],
    ),
    Mutation(
        "mma_multistage", "infinities not recomputed", "rest == 0.0f && !few)", "!few)", file=RECOMPUTE,
        tile=FLOAT32["mma_multistage"],
    ),
    Mutation(
        "mma_ldmatrix", "sums of few products not recomputed", "few = K <= kFewProducts;", "few = false;",
        file=RECOMPUTE, tile=FLOAT32["mma_ldmatrix"],
    ),
    Mutation(
        "mma_ldmatrix", "recomputing behind the edge", "good || col + i >= N ?", "good ?", file=RECOMPUTE,
        tile=FLOAT32["mma_ldmatrix"],
    ),
]  # fmt: skip

_EPILOGUE = [
    Mutation("mma_ldmatrix", "out taken as aligned", "(first_phase + static_cast", "(static_cast", file=EPILOGUE),
    Mutation("mma_ldmatrix", "a quad over the edge", "aligned && col + 4 <= N", "aligned && col < N", file=EPILOGUE),
    Mutation("mma_ldmatrix", "bias read behind its end", "if (col + i < N) x[i] =", "x[i] =", file=EPILOGUE),
    Mutation(
        "mma_ldmatrix", "one bias for four columns", "+ bias_of(batch, col + i);", "+ bias_of(batch, col);",
        file=EPILOGUE,
    ),
    Mutation("naive", "the first matrix's bias for all", "batch * bias_batch_stride + col", "col", file=EPILOGUE),
    Mutation(
        "mma_ldmatrix", "quads with the first matrix's bias", "+ bias_of(batch, col + i);", "+ bias_of(0, col + i);",
        file=EPILOGUE,
    ),
    Mutation("naive", "alpha left out", "factor() * accumulator;", "accumulator;", file=EPILOGUE),
    Mutation(
        "naive", "alpha after the bias", "bias ? scaled + bias_of(batch, col) :",
        "bias ? factor() * (accumulator + bias_of(batch, col)) :", file=EPILOGUE,
    ),
    Mutation(
        "mma_ldmatrix", "alpha left out beside a bias", "factor() * x[i] + bias", "x[i] + bias", file=EPILOGUE
    ),
    Mutation(
        "mma_ldmatrix", "alpha after the bias of four columns", "factor() * x[i] + bias_of(batch, col + i);",
        "factor() * (x[i] + bias_of(batch, col + i));", file=EPILOGUE,
    ),
    Mutation("mma_ldmatrix", "alpha left out without a bias", "else if (alpha)", "else if (false)", file=EPILOGUE),
    Mutation(
        "mma_ldmatrix", "alpha left out of whole tiles", "return alpha == nullptr && bias", "return bias", file=EPILOGUE
    ),
    Mutation("mma_ldmatrix", "activations do not rotate", "x[2] = x[3];", "", file=EPILOGUE),
    Mutation(
        "mma_ldmatrix", "halves swapped", "__floats2half2_rn(value[2], value[3])",
        "__floats2half2_rn(value[3], value[2])", file=EPILOGUE,
    ),
    Mutation("wmma_tiled", "quads of misaligned rows", "quads_aligned(ld % 4 == 0 &&", "quads_aligned(", file=EPILOGUE),
]  # fmt: skip

_PAD_COPY = [
    Mutation(
        "mma_ldmatrix", "vectors swapped", "shifted(vectors[0], vectors[1], past)",
        "shifted(vectors[1], vectors[0], past)", file=PAD_COPY,
    ),
    Mutation("mma_ldmatrix", "vector before the run", "inner > 0 && valid >=", "valid >=", file=PAD_COPY),
    Mutation(
        "mma_ldmatrix", "vector behind the run", "valid >= 2 * kVectorElems", "valid >= kVectorElems", file=PAD_COPY
    ),
    Mutation("mma_ldmatrix", "vectors of misaligned rows", "past == 0 && valid", "valid", file=PAD_COPY),
    Mutation("mma_ldmatrix", "run not zeroed behind its end", "i < valid ?", "true ?", file=PAD_COPY),
    Mutation("mma_ldmatrix", "runs next to each other", "* (shape.to_ld / kVectorElems)", "* vectors_per_run",
             file=PAD_COPY),
    Mutation("mma_ldmatrix", "runs behind the last", "outer < shape.from_outer ?", "true ?", file=PAD_COPY),
    Mutation("mma_ldmatrix", "one matrix for every batch", "batch * shape.from_batch_stride +", "", file=PAD_COPY),
    Mutation("mma_ldmatrix", "one copy for every batch", "== 0 ? 1 : batch", "== 0 ? 1 : 1", file=PAD_COPY),
]  # fmt: skip

_SPLIT_K = [
    Mutation("mma_multistage", "K of the next split too", "rest < depth ? rest : depth", "rest",
             file="tile/split_k.h"),
    Mutation("mma_multistage", "splits of one k-tile each", "tile, part * depth", "tile, part * 64",
             file="tile/split_k.h"),
    Mutation(
        "mma_multistage", "a split left out", "split = group; split < splits;", "split = group; split < splits - 1;",
        file=SPLIT_K,
    ),
    Mutation("mma_multistage", "splits counted twice", "split += groups)", "split += 1)", file=SPLIT_K),
    Mutation("mma_multistage", "a group left out", "other < groups;", "other < groups - 1;", file=SPLIT_K),
    Mutation(
        "mma_multistage", "a group's sums of another quad", "s_sums[other * quads_per_cta + thread]",
        "s_sums[other * quads_per_cta]", file=SPLIT_K,
    ),
    Mutation("mma_multistage", "a row too many", "if (row >= M || col >= N)", "if (row > M || col >= N)", file=SPLIT_K),
    Mutation("mma_multistage", "partial tiles of another split", "+ split * split_stride)", "+ split)", file=SPLIT_K),
    Mutation(
        "mma_multistage", "no recomputing of sums of splits", "fix(sum, tile.batch, row, col, N);", "", file=SPLIT_K,
        tile=FLOAT32["mma_multistage"],
    ),
]  # fmt: skip


MUTATIONS = [
    *_without_barriers(), *_SIMT, *_GEMV, *_WMMA, *_MMA, *AT_ONCE, *_TILES, *_SHIFTED, *_PIPELINE, *_STAGED, *_EPILOGUE,
    *_PAD_COPY, *_SPLIT_K, *HOPPER, *MIXED,
]  # fmt: skip
