"""jaxgemm/_plan.py: every arrangement of dimension numbers becomes a batch of matrices that gives einsum's result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from jaxgemm._native import _core
from jaxgemm._plan import DimensionNumbers, OperandPlan, Plan, free_dims, make_plan
from tests.helpers import problem

Arrangement = tuple[int, int, DimensionNumbers]


def arrangements(lhs_ndim: int, rhs_ndim: int) -> Iterator[Arrangement]:
    """Every dimension_numbers of two ranks, in every order that a user may write them."""
    for pairs in range(min(lhs_ndim, rhs_ndim) + 1):
        for nb in range(pairs + 1):
            for left in itertools.permutations(range(lhs_ndim), pairs):
                for right in itertools.permutations(range(rhs_ndim), pairs):
                    # The order of the pairs matters within the batch only: contracted ones are listed once each way.
                    if list(left[nb:]) == sorted(left[nb:]) or list(right[nb:]) == sorted(right[nb:]):
                        yield lhs_ndim, rhs_ndim, ((left[nb:], right[nb:]), (left[:nb], right[:nb]))


def sizes_of(arrangement: Arrangement, rng: np.random.Generator, choices: list[int]) -> tuple[list[int], list[int]]:
    """Random sizes that fit together."""
    lhs_ndim, rhs_ndim, ((lc, rc), (lb, rb)) = arrangement
    lhs, rhs = ([int(s) for s in rng.choice(choices, ndim)] for ndim in (lhs_ndim, rhs_ndim))
    for left, right in zip(lc + lb, rc + rb, strict=True):
        rhs[right] = lhs[left]
    return lhs, rhs


def out_sizes(arrangement: Arrangement, lhs: list[int], rhs: list[int]) -> list[int]:
    _, _, ((lc, rc), (lb, rb)) = arrangement
    m, n = free_dims(len(lhs), lc, lb), free_dims(len(rhs), rc, rb)
    return [lhs[d] for d in (*lb, *m)] + [rhs[d] for d in n]


def expected(arrangement: Arrangement, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The result by np.einsum."""
    _, _, ((lc, rc), (lb, rb)) = arrangement
    left, right = list(range(lhs.ndim)), list(range(10, 10 + rhs.ndim))
    for a, b in zip(lc + lb, rc + rb, strict=True):
        right[b] = left[a]
    m, n = free_dims(lhs.ndim, lc, lb), free_dims(rhs.ndim, rc, rb)
    return np.einsum(lhs, left, rhs, right, [left[d] for d in (*lb, *m)] + [right[d] for d in n])


def planned_problem(plan: Plan, lhs: list[int], rhs: list[int], out: list[int]) -> _core.Problem:
    return problem(
        0, 0, 0, lhs_sizes=lhs, lhs_dims=plan.lhs.native(), rhs_sizes=rhs, rhs_dims=plan.rhs.native(),
        out_sizes=out, out_dims=plan.out.native(),
    )  # fmt: skip


def matrices(memory: np.ndarray, shape: tuple[int, int, int], stride: tuple[int, int], transposed: bool) -> np.ndarray:
    """The view that a kernel has: (batch, rows, cols) of a flat buffer, checked to stay inside it."""
    batch_stride, ld = stride
    steps = (batch_stride, 1, ld) if transposed else (batch_stride, ld, 1)
    if math.prod(shape) == 0:
        return np.zeros(shape, memory.dtype)
    assert sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) < memory.size
    return np.lib.stride_tricks.as_strided(memory, shape, [step * memory.itemsize for step in steps])


def run(plan: Plan, lhs: np.ndarray, rhs: np.ndarray, shape: list[int]) -> np.ndarray:
    """The custom call in NumPy: operands as XLA would lay them out, matrices as the kernel would see them."""
    asked = planned_problem(plan, list(lhs.shape), list(rhs.shape), shape)
    batch, m, n, k = asked.batch, asked.m, asked.n, asked.k
    lhs_memory = np.ascontiguousarray(lhs.transpose(plan.lhs.order)).ravel()
    rhs_memory = np.ascontiguousarray(rhs.transpose(plan.rhs.order)).ravel()
    out_memory = np.full(math.prod(shape), -(10**9))
    left = matrices(lhs_memory, (batch, m, k), asked.lhs_stride, asked.layout[0] == "T")
    right = matrices(rhs_memory, (batch, k, n), asked.rhs_stride, asked.layout[1] == "T")
    out = matrices(out_memory, (batch, m, n), asked.out_stride, transposed=False)
    if out.size:
        out[...] = left @ right
    return out_memory.reshape([shape[d] for d in plan.out.order]).transpose(np.argsort(plan.out.order).astype(int))


def check(arrangement: Arrangement, rng: np.random.Generator, choices: list[int]) -> None:
    lhs_sizes, rhs_sizes = sizes_of(arrangement, rng, choices)
    lhs, rhs = rng.integers(-9, 10, lhs_sizes), rng.integers(-9, 10, rhs_sizes)
    want = expected(arrangement, lhs, rhs)
    got = run(make_plan(*arrangement), lhs, rhs, out_sizes(arrangement, lhs_sizes, rhs_sizes))
    np.testing.assert_array_equal(got, want, err_msg=f"{arrangement} {lhs_sizes} {rhs_sizes}")


RANKS = list(itertools.product(range(5), range(5)))


@pytest.mark.parametrize(("lhs_ndim", "rhs_ndim"), RANKS)
def test_every_arrangement_gives_einsum(lhs_ndim: int, rhs_ndim: int, rng: np.random.Generator) -> None:
    found = list(arrangements(lhs_ndim, rhs_ndim))
    if len(found) > 700:
        found = [found[i] for i in rng.choice(len(found), 700, replace=False)]
    for arrangement in found:
        check(arrangement, rng, [2, 3, 4])
        check(arrangement, rng, [1, 1, 3])


def test_higher_ranks_and_empty_sizes(rng: np.random.Generator) -> None:
    for _ in range(600):
        lhs_ndim, rhs_ndim = (int(r) for r in rng.integers(2, 7, 2))
        pairs = int(rng.integers(0, min(lhs_ndim, rhs_ndim) + 1))
        nb = int(rng.integers(0, pairs + 1))
        left = tuple(int(d) for d in rng.permutation(lhs_ndim)[:pairs])
        right = tuple(int(d) for d in rng.permutation(rhs_ndim)[:pairs])
        arrangement = (lhs_ndim, rhs_ndim, ((left[nb:], right[nb:]), (left[:nb], right[:nb])))
        check(arrangement, rng, [1, 2, 3])
        check(arrangement, rng, [0, 1, 2, 3])


def is_view(plan: OperandPlan, sizes: list[int]) -> bool:
    """Whether the operand is a batch of matrices as it lies in memory, by the compiled module."""
    identity = OperandPlan(tuple(range(len(sizes))), plan.batch, plan.rows, plan.cols)
    batch, rows, cols = (math.prod(sizes[d] for d in group) for group in (plan.batch, plan.rows, plan.cols))
    three = _core.OperandDims([0, 1, 2], [0], [1], [2])
    try:
        problem(
            0, 0, 0, lhs_sizes=sizes, lhs_dims=identity.native(), rhs_sizes=[batch, cols, 1], rhs_dims=three,
            out_sizes=[batch, rows, 1], out_dims=three,
        )  # fmt: skip
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("lhs_ndim", "rhs_ndim"), [r for r in RANKS if sum(r) <= 6])
def test_no_operand_is_relaid_without_need(lhs_ndim: int, rhs_ndim: int, rng: np.random.Generator) -> None:
    found = list(arrangements(lhs_ndim, rhs_ndim))
    if len(found) > 150:
        found = [found[i] for i in rng.choice(len(found), 150, replace=False)]
    for arrangement in found:
        _, _, ((lc, rc), (lb, rb)) = arrangement
        m, n = free_dims(lhs_ndim, lc, lb), free_dims(rhs_ndim, rc, rb)
        lhs, rhs = sizes_of(arrangement, rng, [2, 3])
        splits = [(0, 0)] if lb else [(i, 0) for i in range(len(m) + 1)] + [(0, j) for j in range(len(n) + 1)]
        best = min(
            (not is_view(OperandPlan((), lb + m[:i], m[i:], tuple(lc[p] for p in order)), lhs))
            + (not is_view(OperandPlan((), rb + n[:j], tuple(rc[p] for p in order), n[j:]), rhs))
            for i, j in splits
            for order in itertools.permutations(range(len(lc)))
        )
        plan = make_plan(*arrangement)
        assert plan.lhs.relaid + plan.rhs.relaid == best, arrangement
        for operand in (plan.lhs, plan.rhs):
            last = len(operand.order) - 1
            if operand.relaid and last not in operand.batch:
                # What must move keeps its fastest index the fastest: the copy then reads and writes whole lines.
                fast = operand.rows if last in operand.rows else operand.cols
                assert operand.order[-len(fast) :] == fast, arrangement


# (what, lhs_ndim, rhs_ndim, dimension_numbers, layout, batch, with sizes b=2 m=3 k=4 n=5)
FREE: list[tuple[str, list[int], list[int], DimensionNumbers, str, int]] = [
    ("mk,kn NN", [3, 4], [4, 5], (((1,), (0,)), ((), ())), "NN", 1),
    ("mk,nk NT", [3, 4], [5, 4], (((1,), (1,)), ((), ())), "NT", 1),
    ("km,kn TN", [4, 3], [4, 5], (((0,), (0,)), ((), ())), "TN", 1),
    ("km,nk TT", [4, 3], [5, 4], (((0,), (1,)), ((), ())), "TT", 1),
    ("bmk,bkn", [2, 3, 4], [2, 4, 5], (((2,), (1,)), ((0,), (0,))), "NN", 2),
    ("bmk,bnk", [2, 3, 4], [2, 5, 4], (((2,), (2,)), ((0,), (0,))), "NT", 2),
    ("bkm,bkn", [2, 4, 3], [2, 4, 5], (((1,), (1,)), ((0,), (0,))), "TN", 2),
    ("bkm,bnk", [2, 4, 3], [2, 5, 4], (((1,), (2,)), ((0,), (0,))), "TT", 2),
    ("mbk,bkn: batch in the middle", [3, 2, 4], [2, 4, 5], (((2,), (1,)), ((1,), (0,))), "NN", 2),
    ("bmk,knb would interleave; bmk,kbn does not", [2, 3, 4], [4, 2, 5], (((2,), (0,)), ((0,), (1,))), "NN", 2),
    ("bmk,kn folds b into m", [2, 3, 4], [4, 5], (((2,), (0,)), ((), ())), "NN", 1),
    ("mk,bkn shares lhs", [3, 4], [2, 4, 5], (((1,), (1,)), ((), ())), "NN", 2),
    ("bkm,kn shares rhs", [2, 4, 3], [4, 5], (((1,), (0,)), ((), ())), "TN", 2),
    ("mk,bnk is one long N", [3, 4], [2, 5, 4], (((1,), (2,)), ((), ())), "NT", 1),
    ("mk0k1,k0k1n", [3, 2, 2], [2, 2, 5], (((1, 2), (0, 1)), ((), ())), "NN", 1),
    ("contracted pairs listed backwards", [3, 2, 2], [2, 2, 5], (((2, 1), (1, 0)), ((), ())), "NN", 1),
    ("k,kn", [4], [4, 5], (((0,), (0,)), ((), ())), "NN", 1),
    ("mk,k", [3, 4], [4], (((1,), (0,)), ((), ())), "NT", 1),
    ("k,k", [4], [4], (((0,), (0,)), ((), ())), "NT", 1),
    ("outer product", [3], [5], (((), ()), ((), ())), "TN", 1),
]


@pytest.mark.parametrize(("lhs", "rhs", "numbers", "layout", "batch"), [f[1:] for f in FREE], ids=[f[0] for f in FREE])
def test_arrangements_that_move_nothing(
    lhs: list[int], rhs: list[int], numbers: DimensionNumbers, layout: str, batch: int
) -> None:
    plan = make_plan(len(lhs), len(rhs), numbers)
    assert not (plan.lhs.relaid or plan.rhs.relaid or plan.out.relaid)
    asked = planned_problem(plan, lhs, rhs, out_sizes((len(lhs), len(rhs), numbers), lhs, rhs))
    assert asked.batch == batch
    # A vector is a matrix of either kind.
    assert all(got == want or 1 in (asked.m, asked.n) for got, want in zip(asked.layout, layout, strict=True))


@pytest.mark.parametrize(
    ("lhs_ndim", "rhs_ndim", "numbers", "relaid"),
    [
        (3, 3, (((2,), (1,)), ((0,), (2,))), (False, True)),  # the batch is rhs's fastest dimension
        (3, 2, (((0, 2), (0, 1)), ((), ())), (True, False)),  # M between the contracted dimensions
        (4, 3, (((0, 2), (0, 1)), ((), ())), (True, False)),
    ],
)
def test_arrangements_that_must_move(
    lhs_ndim: int, rhs_ndim: int, numbers: DimensionNumbers, relaid: tuple[bool, bool]
) -> None:
    plan = make_plan(lhs_ndim, rhs_ndim, numbers)
    assert (plan.lhs.relaid, plan.rhs.relaid) == relaid


def test_layouts_in_the_notation_of_xla() -> None:
    plan = make_plan(3, 3, (((2,), (1,)), ((0,), (2,))))
    assert plan.rhs.minor_to_major == plan.rhs.order[::-1]
    assert plan.lhs.minor_to_major == (2, 1, 0)
    attribute = plan.rhs.attribute()
    assert list(attribute) == ["order", "batch", "rows", "cols"]
    assert all(value.dtype == np.int64 for value in attribute.values())
