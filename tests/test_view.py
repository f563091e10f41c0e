"""cuda/view.cc: dimensions of a buffer as a batch of matrices, against NumPy's strides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxgemm._native import _core
from tests.helpers import dims, problem

Groups = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def addresses(sizes: Sequence[int], order: Sequence[int], groups: Groups) -> np.ndarray:
    """Where element (b, i, j) lies, by NumPy: (batch, rows, cols) of offsets."""
    memory = np.arange(int(np.prod(sizes))).reshape([sizes[d] for d in order])
    logical = memory.transpose(np.argsort(order).astype(int)) if order else memory
    batch, rows, cols = groups
    extents = [int(np.prod([sizes[d] for d in group], dtype=int)) for group in groups]
    return logical.transpose(batch + rows + cols).reshape(extents)


def lhs_problem(sizes: Sequence[int], order: Sequence[int], groups: Groups) -> _core.Problem:
    """A GEMM whose lhs is the operand under test; rhs is K x 1 and shared."""
    batch, rows, cols = (int(np.prod([sizes[d] for d in group], dtype=int)) for group in groups)
    return problem(
        0, 0, 0,
        lhs_sizes=list(sizes), lhs_dims=dims(order, *groups),
        rhs_sizes=[cols, 1], rhs_dims=dims((0, 1), (), (0,), (1,)),
        out_sizes=[batch, rows, 1], out_dims=dims((0, 1, 2), (0,), (1,), (2,)),
    )  # fmt: skip


def view_addresses(asked: _core.Problem) -> np.ndarray:
    """Where element (b, i, j) of lhs lies, by the view (cuda/gemm.h)."""
    stride, ld = asked.lhs_stride
    b, i, j = np.ogrid[: asked.batch, : asked.m, : asked.k]
    return b * stride + (j * ld + i if asked.layout[0] == "T" else i * ld + j)


def is_batch_of_matrices(where: np.ndarray) -> bool:
    """Whether offsets are those of row- or column-major matrices a constant stride apart."""
    if where.size == 0:
        return True
    steps = [np.diff(where, axis=axis) for axis in range(3)]
    if any(step.size and (step != step.flat[0]).any() for step in steps):
        return False
    return any(step.size == 0 or step.flat[0] == 1 for step in steps[1:])


def arrangements(rank: int) -> list[Groups]:
    """Every way to give each of ``rank`` dimensions a role and to order them within it."""
    found = []
    for roles in itertools.product(range(3), repeat=rank):
        members = [[d for d in range(rank) if roles[d] == role] for role in range(3)]
        found += list(itertools.product(*(list(itertools.permutations(m)) for m in members)))
    return found


def check(sizes: Sequence[int], order: Sequence[int], groups: Groups) -> bool:
    """Whether the arrangement is accepted, after comparing the verdict and every address with NumPy's."""
    where = addresses(sizes, order, groups)
    if not is_batch_of_matrices(where):
        with pytest.raises(ValueError, match=r"in memory|contiguous"):
            lhs_problem(sizes, order, groups)
        return False
    asked = lhs_problem(sizes, order, groups)
    assert (asked.batch, asked.m, asked.k) == where.shape
    if where.size:
        np.testing.assert_array_equal(view_addresses(asked), where, err_msg=f"{sizes} {order} {groups}")
    return True


@pytest.mark.parametrize("sizes", [(), (5,), (1,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1)])
def test_every_arrangement_of_small_ranks(sizes: tuple[int, ...]) -> None:
    verdicts = [
        check(sizes, order, groups)
        for order in itertools.permutations(range(len(sizes)))
        for groups in arrangements(len(sizes))
    ]
    assert any(verdicts)
    if len(sizes) == 3 and 1 not in sizes:
        assert not all(verdicts)


def test_random_arrangements_of_larger_ranks(rng: np.random.Generator) -> None:
    accepted = 0
    for _ in range(4000):
        rank = int(rng.integers(3, 7))
        sizes = tuple(int(s) for s in rng.choice([1, 1, 2, 3, 4, 5], rank))
        order = tuple(int(d) for d in rng.permutation(rank))
        # Mostly arrangements near memory order, else nearly all would be refused.
        listed = order if rng.random() < 0.7 else tuple(int(d) for d in rng.permutation(rank))
        cuts = sorted(int(c) for c in rng.integers(0, rank + 1, 2))
        groups = [listed[: cuts[0]], listed[cuts[0] : cuts[1]], listed[cuts[1] :]]
        if rng.random() < 0.4:
            groups[1], groups[2] = groups[2], groups[1]
        accepted += check(sizes, order, (groups[0], groups[1], groups[2]))
    assert 500 < accepted < 3900


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 4), (0, 0, 0), (0, 1, 1)])
def test_empty_operands_in_memory_order_are_views(sizes: tuple[int, ...]) -> None:
    for cuts in itertools.combinations_with_replacement(range(4), 2):
        listed = (0, 1, 2)
        assert check(sizes, listed, (listed[: cuts[0]], listed[cuts[0] : cuts[1]], listed[cuts[1] :]))


def test_a_shared_operand_has_no_batch_stride() -> None:
    asked = problem(
        0, 0, 0,
        lhs_sizes=[3, 4], lhs_dims=dims((0, 1), (), (0,), (1,)),
        rhs_sizes=[4, 5], rhs_dims=dims((0, 1), (), (0,), (1,)),
        out_sizes=[7, 3, 5], out_dims=dims((0, 1, 2), (0,), (1,), (2,)),
    )  # fmt: skip
    assert (asked.batch, asked.m, asked.n, asked.k) == (7, 3, 5, 4)
    assert (asked.lhs_stride, asked.rhs_stride, asked.out_stride) == ((0, 4), (0, 5), (15, 5))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_layouts(layout: str) -> None:
    asked = problem(3, 5, 7, batch=2, layout=layout)
    assert (asked.batch, asked.m, asked.n, asked.k, asked.layout) == (2, 3, 5, 7, layout)
    assert asked.lhs_stride == (21, 7 if layout[0] == "N" else 3)
    assert asked.rhs_stride == (35, 5 if layout[1] == "N" else 7)
    assert asked.out_stride == (15, 5)
    assert repr(asked) == f"float32 x float32 -> float32, M=3 N=5 K=7 batch=2 {layout}"


PLAIN = ((0, 1), (), (0,), (1,))
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("order repeats", {"lhs_dims": ((0, 0), (), (0,), (1,))}, r"lhs: order \[0, 0\] is no permutation of 2 dimensions"),
    ("order out of range", {"lhs_dims": ((0, 2), (), (0,), (1,))}, r"lhs: order \[0, 2\] is no permutation"),
    ("order negative", {"rhs_dims": ((0, -1), (), (0,), (1,))}, r"rhs: order \[0, -1\] is no permutation"),
    ("order short", {"lhs_dims": ((0,), (), (0,), (1,))}, r"lhs: order \[0\] does not list 2 dimensions"),
    ("order long", {"out_dims": ((0, 1, 2), (), (0,), (1,))}, r"out: order \[0, 1, 2\] is no permutation of 2"),
    ("dimension used twice", {"lhs_dims": ((0, 1), (), (0, 1), (1,))}, r"lhs: dimension 1 is .* or used twice"),
    ("dimension out of range", {"lhs_dims": ((0, 1), (5,), (0,), (1,))}, r"lhs: dimension 5 is out of range"),
    ("dimension negative", {"rhs_dims": ((0, 1), (), (-1,), (1,))}, r"rhs: dimension -1 is out of range"),
    ("dimension without role", {"rhs_dims": ((0, 1), (), (0,), ())}, r"rhs: dimension 1 of shape \[4, 5\] has no role"),
    ("K", {"rhs_sizes": [6, 5]}, r"lhs 3x4 times rhs 6x5 does not give out 3x5"),
    ("M", {"lhs_sizes": [2, 4]}, r"lhs 2x4 times rhs 4x5 does not give out 3x5"),
    ("N", {"out_sizes": [3, 6]}, r"lhs 3x4 times rhs 4x5 does not give out 3x6"),
    ("transposed out", {"out_dims": ((1, 0), (), (0,), (1,))}, "out is not row-major"),
    ("negative size", {"lhs_sizes": [-3, 4]}, r"lhs: shape \[-3, 4\] has too many elements"),
    ("too large", {"lhs_sizes": [2**40, 2**40]}, r"lhs: shape \[\d+, \d+\] has too many elements"),
    ("too large by far", {"rhs_sizes": [2**62, 2**62]}, r"rhs: shape \[\d+, \d+\] has too many elements"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_is_refused(change: dict[str, Any], sentence: str) -> None:
    settings: dict[str, Any] = {"lhs_sizes": [3, 4], "rhs_sizes": [4, 5], "out_sizes": [3, 5]}
    settings |= dict.fromkeys(("lhs_dims", "rhs_dims", "out_dims"), PLAIN)

    def ask(**kwargs: Any) -> _core.Problem:
        return problem(0, 0, 0, **{n: dims(*v) if n.endswith("dims") else v for n, v in kwargs.items()})

    assert repr(ask(**settings)).endswith("M=3 N=5 K=4 batch=1 NN")
    with pytest.raises(ValueError, match=sentence):
        ask(**(settings | change))


def test_batches_that_do_not_fit() -> None:
    batched = dims((0, 1, 2), (0,), (1,), (2,))
    for lhs, rhs in [(2, 3), (3, 2), (1, 3)]:
        with pytest.raises(ValueError, match=f"batches of lhs {lhs} and rhs {rhs} do not fit out 3"):
            problem(
                0, 0, 0, lhs_sizes=[lhs, 4, 5], lhs_dims=batched, rhs_sizes=[rhs, 5, 6], rhs_dims=batched,
                out_sizes=[3, 4, 6], out_dims=batched,
            )  # fmt: skip


def test_sizes_near_the_limit_do_not_wrap() -> None:
    huge = problem(2**31, 2**30, 1)
    assert (huge.m, huge.n, huge.out_stride) == (2**31, 2**30, (0, 2**30))
    assert problem(2**20, 2**20, 3, batch=2**20).out_stride == (2**40, 2**20)
    with pytest.raises(ValueError, match="too many elements"):
        problem(2**31, 2**31, 1, batch=2)


def test_a_single_column_of_out_is_row_major() -> None:
    column = problem(
        0, 0, 0,
        lhs_sizes=[3, 4], lhs_dims=dims((0, 1), (), (0,), (1,)), rhs_sizes=[4], rhs_dims=dims((0,), (), (0,), ()),
        out_sizes=[3], out_dims=dims((0,), (), (0,), ()),
    )  # fmt: skip
    assert (column.m, column.n, column.k, column.out_stride) == (3, 1, 4, (0, 1))
