"""Defects of mma's tiles that load several k-tiles at once, and of the way from registers to out."""

from __future__ import annotations

from tests.emulated.mutation import Mutation

LANE_OUT, EPILOGUE = "epilogue/lane_out.cuh", "epilogue/epilogue.cuh"
TILE, LARGE, FLOAT32 = "32x32x32", "64x64x32_at_once", "32x32x16"


def _loads(what: str, old: str, new: str, occurrence: int | None = None) -> Mutation:
    return Mutation("mma", f"at once, {what}", old, new, occurrence, tile=TILE)


def _way_out(what: str, old: str, new: str, tile: str = TILE, file: str = LANE_OUT) -> Mutation:
    return Mutation("mma", f"from registers, {what}", old, new, file=file, tile=tile)


AT_ONCE = [
    _loads("K tail of vectors read", "g_slot, inside > 0);", "g_slot, true);"),
    _loads("K tail of rows read", "if (k < k_inside) runs", "if (true) runs"),
    _loads("K tail of elements read", "if (k < inside)", "if (k <= inside)"),
    _loads("rows beyond the edge read", "mn(slot, 0) < mn_left_ ? k_inside : 0", "k_inside", 1),
    _loads("vectors beyond the edge read", "mn_left_ > 0 ? 0 :", "true ? 0 :"),
    _loads("the vector after the last read", "(mn_left_ - 1) &", "mn_left_ &", 1),
    _loads("the first k-tile of rhs for all", "lhs_words[i], rhs_words[i]);", "lhs_words[i], rhs_words[0]);"),
    _loads("all but the first left out", "if (i * kTile < k_left)", "if (i == 0)"),
    _loads("K tail left out", "k < K; k += kAtOnce", "k + kTile <= K; k += kAtOnce"),
    _loads("elements as vectors", "if (whole_vectors) {\n      multiply", "if (true) {\n      multiply"),
    _way_out("neighbours swapped", "at % kColGroup, at / kColGroup % 2}", "at / 2 % kColGroup, at % 2}"),
    _way_out("a row too many", "tile.row + row < M ?", "tile.row + row <= M ?"),
    _way_out("over the edge", "cols >= Runs::kElems)", "cols > 0)"),
    _way_out("neighbours left out", "if (i < cols) round1", "if (false) round1"),
    _way_out("at any element", "if (epilogue.quads_aligned && cols", "if (cols"),
    _way_out("a run for another", "run % kRunsOfRow * kElems + i", "i"),
    _way_out("columns of a half for those of the other", "at / kColGroup % 2}", "0}", LARGE),
    _way_out("whole rows read that are not laid down yet", "__syncthreads();\n  run", "run", LARGE),
    _way_out("columns behind the last of whole rows", "if (col + j < cols) round1(s_", "if (true) round1(s_", LARGE),
    _way_out("whole rows behind the last", "M - tile.row < kCta.m ? M - tile.row : kCta.m", "kCta.m", LARGE),
    _way_out("rows that lie apart as if end to end", " && epilogue.ld == N", ""),
    _way_out("parts of rows as if whole", " && N <= kCta.n", ""),
    _way_out("the epilogue left out", "!epilogue.plain() ||", ""),
    _way_out("runs beyond the edge", "if (row < M && col < N)", "if (col < N)"),
    _way_out("runs not in turn", "values[next - 1][i] = runs", "values[next][i] = runs"),
    _way_out("float32 as 16 bits", "!= DType::kF32)", "!= DType::kS32)"),
    _way_out("nothing recomputed", "|| any_wanted(runs, fix))", ")", FLOAT32),
    _way_out("the last run asked alone", "wanted = wanted || fix", "wanted = fix", FLOAT32),
    _way_out("a pair swapped", "float2(value[0], value[1])", "float2(value[1], value[0])", FLOAT32, EPILOGUE),
]
