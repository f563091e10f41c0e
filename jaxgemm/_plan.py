"""From dimension numbers to the batch of matrices that a kernel multiplies.

A kernel sees each operand as a batch of row- or column-major matrices with any leading dimension and any batch stride.
Most arrangements of dimensions are such a batch as they lie in memory: then nothing moves. The rest asks XLA for an
operand in another dimension order, which costs nothing if XLA's producer of the operand can write it so, else a copy.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from jaxgemm._native import _core

Dims = tuple[int, ...]
DimensionNumbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]


@dataclasses.dataclass(frozen=True)
class OperandPlan:
    """The role of each dimension of one operand: ``OperandDims`` of cuda/view.h.

    Attributes:
      order: all dimensions, from the slowest to the fastest in memory.
      batch, rows, cols: the dimensions that together form that index, slowest first. An operand without batch
        dimensions is shared by all batches.
    """

    order: Dims
    batch: Dims
    rows: Dims
    cols: Dims

    @property
    def relaid(self) -> bool:
        """Whether memory order differs from the logical order."""
        return self.order != tuple(range(len(self.order)))

    @property
    def minor_to_major(self) -> Dims:
        """The layout in XLA's notation."""
        return self.order[::-1]

    def attribute(self) -> dict[str, np.ndarray]:
        """The dictionary attribute of the custom call."""
        return {name: np.asarray(dims, np.int64) for name, dims in dataclasses.asdict(self).items()}

    def native(self) -> _core.OperandDims:
        """The same for the compiled module."""
        return _core.OperandDims(list(self.order), list(self.batch), list(self.rows), list(self.cols))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one dot_general becomes one batched GEMM."""

    lhs: OperandPlan
    rhs: OperandPlan
    out: OperandPlan


def free_dims(ndim: int, contracting: Sequence[int], batch: Sequence[int]) -> Dims:
    """Dimensions that are neither contracted nor batch, in order."""
    return tuple(d for d in range(ndim) if d not in contracting and d not in batch)


def _is_run(dims: Dims) -> bool:
    return all(b == a + 1 for a, b in itertools.pairwise(dims))


def _operand(ndim: int, batch: Dims, rows: Dims, cols: Dims) -> OperandPlan:
    """The identity order if it is a batch of matrices, else batch first with the fastest dimension kept in place."""
    last = ndim - 1
    viewable = _is_run(batch) and _is_run(rows) and _is_run(cols) and (last not in batch or not (rows and cols))
    if viewable:
        order = tuple(range(ndim))
    elif last in rows:
        order = batch + cols + rows
    else:
        order = batch + rows + cols
    return OperandPlan(order, batch, rows, cols)


@functools.lru_cache(maxsize=4096)
def make_plan(lhs_ndim: int, rhs_ndim: int, dimension_numbers: DimensionNumbers) -> Plan:
    """The arrangement that relays the fewest operands.

    Two freedoms are used: contracting pairs may be taken in any order, and, where there are no batch dimensions, the
    leading free dimensions of one operand may act as batch with the other operand shared. The second is what makes
    ``(B, K, N)`` with ``(M, K)`` a strided batch rather than a transpose.
    """
    (lc, rc), (lb, rb) = dimension_numbers
    m, n = free_dims(lhs_ndim, lc, lb), free_dims(rhs_ndim, rc, rb)
    pairs = list(zip(lc, rc, strict=True))
    pair_orders = [sorted(pairs), sorted(pairs, key=lambda pair: pair[1])]
    splits = [(0, 0)]
    if not lb:
        splits += [(i, 0) for i in range(1, len(m))] + [(0, j) for j in range(1, len(n))]
    nb, nm = len(lb), len(m)
    out_ndim = nb + nm + len(n)

    def candidate(pair_order: list[tuple[int, int]], i: int, j: int) -> Plan:
        kl, kr = tuple(p[0] for p in pair_order), tuple(p[1] for p in pair_order)
        lhs = _operand(lhs_ndim, lb + m[:i], m[i:], kl)
        rhs = _operand(rhs_ndim, rb + n[:j], kr, n[j:])
        first_col = nb + nm + j
        out = OperandPlan(
            order=tuple(range(out_ndim)),
            batch=tuple(range(nb + i)) + tuple(range(nb + nm, first_col)),
            rows=tuple(range(nb + i, nb + nm)),
            cols=tuple(range(first_col, out_ndim)),
        )
        return Plan(lhs, rhs, out)

    candidates = [candidate(order, i, j) for i, j in splits for order in pair_orders]
    return min(candidates, key=lambda plan: plan.lhs.relaid + plan.rhs.relaid)  # the first of equals
