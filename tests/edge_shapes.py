"""Shapes at which a kernel can go wrong, made from its own tile sizes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

Batch: TypeAlias = Literal["none", "both", "lhs_shared", "rhs_shared"]
BATCHES: tuple[Batch, ...] = get_args(Batch)
BATCH_SIZE = 3
LAYOUTS = ("NN", "NT", "TN", "TT")
BAND_TILES = 8
"""Tile rows that the scheduler visits together (cuda/tile/scheduler.cuh): more of them make a second band."""


@dataclass(frozen=True)
class Shape:
    """One GEMM: (m x k) times (k x n), batched in one of the four ways."""

    m: int
    n: int
    k: int
    batch: Batch = "none"


@dataclass(frozen=True)
class Case:
    """A shape with the storage order of both operands, as ``dot_general`` takes it."""

    shape: Shape
    layout: str

    @property
    def lhs_shape(self) -> tuple[int, ...]:
        s = self.shape
        matrix = (s.m, s.k) if self.layout[0] == "N" else (s.k, s.m)
        return ((BATCH_SIZE,) if s.batch in ("both", "rhs_shared") else ()) + matrix

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        s = self.shape
        matrix = (s.k, s.n) if self.layout[1] == "N" else (s.n, s.k)
        return ((BATCH_SIZE,) if s.batch in ("both", "lhs_shared") else ()) + matrix

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Of ``dot_general``: with a shared lhs the batch comes after the rows, that is in a view with ld > N."""
        s = self.shape
        if s.batch == "none":
            return (s.m, s.n)
        return (s.m, BATCH_SIZE, s.n) if s.batch == "lhs_shared" else (BATCH_SIZE, s.m, s.n)

    @property
    def dimension_numbers(self) -> Any:
        batch = ((0,), (0,)) if self.shape.batch == "both" else ((), ())
        lhs_first, rhs_first = len(self.lhs_shape) - 2, len(self.rhs_shape) - 2
        lhs_k = lhs_first + (1 if self.layout[0] == "N" else 0)
        rhs_k = rhs_first + (0 if self.layout[1] == "N" else 1)
        return ((lhs_k,), (rhs_k,)), batch

    def product(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """What ``dot_general`` gives, computed by NumPy in float64."""
        a, b = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
        a = a if self.layout[0] == "N" else np.swapaxes(a, -1, -2)
        b = b if self.layout[1] == "N" else np.swapaxes(b, -1, -2)
        with np.errstate(all="ignore"):
            out = a @ b
        return np.swapaxes(out, 0, 1) if self.shape.batch == "lhs_shared" else out

    def __str__(self) -> str:
        s = self.shape
        return f"{s.m}x{s.n}x{s.k} {self.layout} batch {s.batch}"


def edge_sizes(tile: int) -> list[int]:
    """Rows or columns: one, around one tile and two, and a multiple of 8 that is no multiple of the tile."""
    return sorted({1, max(tile - 1, 1), tile, tile + 1, tile + 8, 2 * tile, 2 * tile + 1})


def edge_depths(tile_k: int, stages: int) -> list[int]:
    """Lengths of K: one, around one k-tile, fewer k-tiles than stages, as many, and more, with and without a rest."""
    ends = (tile_k, stages * tile_k, (stages + 1) * tile_k, (stages + 3) * tile_k)
    near = {end + offset for end in ends for offset in (0, 1)} | {tile_k - 1, (stages + 1) * tile_k - 1, 3 * tile_k, 1}
    return sorted(k for k in near if k > 0)


def pairwise(
    levels: Sequence[Sequence[Any]],
    cost: Callable[[tuple[Any, ...]], int] = lambda _: 0,
    seed: int = 0,
    tries: int = 60,
) -> list[tuple[Any, ...]]:
    """Combinations in which every two levels of different factors meet at least once (greedy, reproducible).

    Among combinations that are equally good the cheapest is taken.
    """
    draw = random.Random(seed)
    factors = range(len(levels))
    missing = {
        ((i, a), (j, b)) for i, j in itertools.combinations(factors, 2) for a in levels[i] for b in levels[j]
    }  # fmt: skip

    def new_pairs(row: tuple[Any, ...]) -> set[Any]:
        return {((i, row[i]), (j, row[j])) for i, j in itertools.combinations(factors, 2)} & missing

    rows = []
    while missing:
        (i, a), (j, b) = min(missing, key=repr)  # what every try contains, so that each row makes progress
        candidates = [
            tuple(a if f == i else b if f == j else draw.choice(levels[f]) for f in factors) for _ in range(tries)
        ]
        best = max(candidates, key=lambda row: (len(new_pairs(row)), -cost(row)))
        missing -= new_pairs(best)
        rows.append(best)
    return rows


def tiled_work(info: Any, shape: Shape) -> int:
    """Multiply-adds of all tiles, whole as kernels compute them; a tile's result counts as 32 steps of K."""
    m, n, k = (-(-size // tile) * tile for size, tile in zip((shape.m, shape.n, shape.k), info.cta_tile, strict=True))
    return (1 if shape.batch == "none" else BATCH_SIZE) * m * n * (k + 32)


def pairwise_shapes(info: Any) -> list[Shape]:
    """Every two of (rows, columns, depth, kind of batch) at the edges of a kernel's tile."""
    tile_m, tile_n, tile_k = info.cta_tile
    levels = (edge_sizes(tile_m), edge_sizes(tile_n), edge_depths(tile_k, info.stages), BATCHES)
    return [Shape(*row) for row in pairwise(levels, lambda row: tiled_work(info, Shape(*row)))]


def deep_shape(info: Any) -> Shape:
    """One tile with so many k-tiles that a kernel which can split K does so, into unequal parts."""
    tile_m, tile_n, tile_k = info.cta_tile
    return Shape(tile_m // 2 + 1, tile_n // 2 + 3, 27 * tile_k + 3)


def long_shape(info: Any) -> Shape:
    """One tile with so many k-tiles that a kernel which can split K gives each split several of them."""
    tile_m, tile_n, tile_k = info.cta_tile
    return Shape(tile_m // 2 + 1, tile_n // 2 + 3, 96 * tile_k + 3)


def fixed_shapes(info: Any, number: int) -> list[Shape]:
    """What every test of a kernel has: primes, K = 0, whole tiles, several bands, leading dimensions 8a + r, long K."""
    tile_m, tile_n, tile_k = info.cta_tile
    rest = 1 + number % 7
    return [
        Shape(127, 131, 521),
        Shape(tile_m + 1, tile_n + 1, 0),
        Shape(2 * tile_m, 2 * tile_n, 3 * tile_k, "both"),
        Shape((BAND_TILES + 1) * tile_m + 1, 2 * tile_n + 1, tile_k + 1),
        Shape(tile_m + 8 + rest, tile_n + 16 + rest, 8 * (tile_k // 8 + 2) + rest, "both"),
        deep_shape(info),
    ]


def cases(info: Any, dtype_index: int, layout: str) -> list[Case]:
    """The cases of one test. The pairwise list is dealt to the layouts, another share for each dtype: all of it is
    run for every dtype, and, with four dtypes, in every layout.
    """
    hands = len(LAYOUTS)
    hand = (LAYOUTS.index(layout) + dtype_index) % hands
    shapes = [*fixed_shapes(info, dtype_index * hands + LAYOUTS.index(layout)), *pairwise_shapes(info)[hand::hands]]
    return [Case(shape, layout) for shape in dict.fromkeys(shapes)]


def ragged_case(info: Any, layout: str, batch: Batch = "none") -> Case:
    """One case with a rest in every dimension and more k-tiles than stages."""
    tile_m, tile_n, tile_k = info.cta_tile
    return Case(Shape(tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3, batch), layout)
