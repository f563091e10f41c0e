"""One GEMM as the emulator runs it: where its arrays lie in memory, what must come out, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tests.edge_shapes import BATCH_SIZE, Case
from tests.emulator.library import Emulator, KernelInfo, Operand, Run, Schedule
from tests.values import DTypes, nan_bytes, rounded

WARP_SIZE = 32
ARRAYS = ("lhs", "rhs", "out")
_SCHEDULE = Schedule()


@dataclass(frozen=True)
class Placement:
    """How the arrays of a problem lie in memory.

    Attributes:
      multiple: leading dimensions are rounded up to a multiple of this many elements,
      gap: and then grow by this many. What lies between rows is NaN, and must still be so in the result.
      misaligned: arrays of :data:`ARRAYS` that start one element past an aligned address.
    """

    multiple: int = 1
    gap: int = 0
    misaligned: tuple[str, ...] = ()

    def row(self, inner: int) -> int:
        """Elements from one row of ``inner`` elements to the next."""
        return -(-inner // self.multiple) * self.multiple + self.gap


@dataclass(frozen=True)
class Result:
    """What a kernel made of a problem: all arrays have the shape ``case.out_shape``."""

    kernel: KernelInfo
    case: Case
    run: Run
    out: np.ndarray
    owners: np.ndarray
    stray: int
    """Elements between the rows of the result that were written."""


class _Layout:
    """The flat array behind a stored operand of shape ([batch,] outer, inner), or ([outer, batch,] inner)."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype, placement: Placement) -> None:
        strides = [1]
        for extent in (placement.row(shape[-1]), *reversed(shape[1:-1])):
            strides.insert(0, strides[0] * extent)
        self.shape, self.strides = tuple(shape), tuple(strides)
        # Nothing lies behind the last element: that is where a tensor may end.
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        self.flat = nan_bytes((0 if 0 in self.shape else last + 1,), dtype)

    def view(self, flat: np.ndarray) -> np.ndarray:
        """The elements of an array like ``self.flat`` that are the operand's."""
        if flat.size == 0:
            return flat.reshape(self.shape)
        # Through bits: as_strided() does not know all dtypes of ml_dtypes.
        bits = as_strided(
            flat.view(f"u{flat.itemsize}"), self.shape, [stride * flat.itemsize for stride in self.strides]
        )
        return bits.view(flat.dtype)

    def operand(self, name: str, transposed: bool, batch_axis: int | None, placement: Placement) -> Operand:
        axes = [axis for axis in range(len(self.shape)) if axis != batch_axis]
        outer, inner = (self.shape[axis] for axis in axes)
        return Operand(
            self.flat, *((inner, outer) if transposed else (outer, inner)), self.strides[axes[0]],
            0 if batch_axis is None else self.strides[batch_axis], transposed,
            self.flat.itemsize if name in placement.misaligned else 0,
        )  # fmt: skip


def run(
    emulator: Emulator, kernel: str, case: Case, lhs: np.ndarray, rhs: np.ndarray, out_dtype: str,
    placement: Placement = Placement(), *, alpha: float | None = None, bias: np.ndarray | None = None,
    activation: str = "none", precision: str = "default", split: tuple[int, int] | None = None,
    schedule: Schedule = _SCHEDULE,
) -> Result:  # fmt: skip
    """Runs a kernel on operands of the shapes that ``case`` says, each where ``placement`` puts it."""
    batch = case.shape.batch
    layouts = {
        "lhs": _Layout(case.lhs_shape, lhs.dtype, placement),
        "rhs": _Layout(case.rhs_shape, rhs.dtype, placement),
        "out": _Layout(case.out_shape, np.dtype(out_dtype), placement),
    }
    batch_axes = {
        "lhs": 0 if batch in ("both", "rhs_shared") else None,
        "rhs": 0 if batch in ("both", "lhs_shared") else None,
        "out": None if batch == "none" else 1 if batch == "lhs_shared" else 0,
    }
    transposed = {"lhs": case.layout[0] == "T", "rhs": case.layout[1] == "T", "out": False}
    for name, values in (("lhs", lhs), ("rhs", rhs)):
        layouts[name].view(layouts[name].flat)[...] = values
    operands = [layouts[name].operand(name, transposed[name], batch_axes[name], placement) for name in ARRAYS]
    ran = emulator.run(
        kernel, *operands, 1 if batch == "none" else BATCH_SIZE, alpha=alpha, bias=bias,
        activation=activation, precision=precision, split=split, schedule=schedule,
    )  # fmt: skip
    written = layouts["out"].view
    between = np.ones(ran.owners.size, bool)
    written(between)[...] = False
    flat = layouts["out"].flat
    changed = (ran.owners >= 0) | (_bits(flat) != _bits(nan_bytes((1,), flat.dtype)))
    return Result(
        emulator.kernels[kernel], case, ran, written(flat).copy(), written(ran.owners).copy(),
        int((changed & between).sum()),
    )  # fmt: skip


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def exact(case: Case, lhs: np.ndarray, rhs: np.ndarray, out_dtype: str) -> np.ndarray:
    """The float64 product rounded once, zeros positive: accumulators start as +0, so that no sum of integers is -0."""
    return rounded(case.product(lhs, rhs) + 0.0, out_dtype)


# --- judgement --------------------------------------------------------------------------------------------------------


def wrong_elements(out: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where the bits differ; NaNs are all alike, and wrong where none is expected."""
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    nan = np.isnan(out.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    return (_bits(np.ascontiguousarray(out)) != _bits(np.ascontiguousarray(expected))) & ~nan


def owner_text(kernel: KernelInfo, owner: int) -> str:
    """Which thread that is."""
    if owner < 0:
        return "nobody wrote it"
    cta, thread = divmod(owner, kernel.threads)
    warp, lane = divmod(thread, WARP_SIZE)
    return f"written by CTA {cta}, warp {warp}, lane {lane}"


def _runs(indices: np.ndarray) -> str:
    """Sorted indices in few words: "0-63, 80, 96-112 step 8"."""
    texts: list[str] = []
    rest = [int(i) for i in indices]
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        length = next((i for i in range(1, len(rest)) if rest[i] - rest[i - 1] != step), len(rest))
        length = 1 if length == 2 and step > 1 else length
        texts.append(f"{rest[0]}" if length == 1 else f"{rest[0]}-{rest[length - 1]}" + f" step {step}" * (step > 1))
        rest = rest[length:]
        if len(texts) == 5 and rest:
            return ", ".join(texts) + f" and {len(rest)} more up to {rest[-1]}"
    return ", ".join(texts)


def describe_wrong(result: Result, expected: np.ndarray) -> str:
    """The first wrong element and how the wrong ones lie; "" if there is none."""
    wrong = wrong_elements(result.out, expected)
    texts = [f"{result.stray} elements between the rows of out were written"] * bool(result.stray)
    if wrong.any():
        names = {"none": ("row", "col"), "lhs_shared": ("row", "batch", "col")}.get(
            result.case.shape.batch, ("batch", "row", "col")
        )
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = ", ".join(f"{name} {i}" for name, i in zip(names, first, strict=True))
        texts.append(
            f"{int(wrong.sum())} of {wrong.size} elements are wrong; the first at {place}: got "
            f"{float(result.out[first]):g}, expected {float(expected[first]):g}, "
            f"{owner_text(result.kernel, int(result.owners[first]))}"
        )
        for axis, name in enumerate(names):
            others = tuple(a for a in range(wrong.ndim) if a != axis)
            texts.append(f"  {name}s of {wrong.shape[axis]}: {_runs(np.flatnonzero(wrong.any(others)))}")
    return "\n".join(texts)


def faults(result: Result, expected: np.ndarray) -> str:
    """All that is wrong with a run; "" if nothing is."""
    if result.run.refused:
        return str(result.run)
    if result.run.stopped:
        return f"{result.run}\nit was stopped there: the result is incomplete"
    return "\n".join(filter(None, (str(result.run), describe_wrong(result, expected))))


# --- one problem in words ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One product to try: a case in a place, with a schedule, and the seed of its data."""

    case: Case
    placement: Placement = Placement()
    schedule: Schedule = _SCHEDULE
    data_seed: int = 0
    precision: str = "default"
    split: tuple[int, int] | None = None
    """As for :meth:`Emulator.run`."""

    def command(self, kernel: str, dtypes: DTypes) -> str:
        """What runs it again."""
        shape, latency = self.case.shape, self.schedule.latency
        options: dict[str, Any] = {
            "layout": self.case.layout, "dtypes": ",".join(dtypes), "batch": shape.batch,
            "multiple": self.placement.multiple, "gap": self.placement.gap,
            "misaligned": ",".join(self.placement.misaligned), "precision": self.precision,
            "seed": self.schedule.seed, "data-seed": self.data_seed,
            "slow": ",".join(name for name, speed in latency.items() if speed == "slow"),
            "split": ",".join(map(str, self.split or ())), "multiprocessors": self.schedule.multiprocessors,
        }  # fmt: skip
        plain = {
            "batch": "none", "multiple": 1, "gap": 0, "misaligned": "", "precision": "default", "slow": "", "seed": 0,
            "data-seed": 0, "split": "", "multiprocessors": Schedule.multiprocessors,
        }  # fmt: skip
        words = [f"--{name} {value}" for name, value in options.items() if plain.get(name) != value]
        return f"python -m tests.emulator {kernel} {shape.m} {shape.n} {shape.k} {' '.join(words)}"

    def run(
        self, emulator: Emulator, kernel: str, dtypes: DTypes, lhs: np.ndarray, rhs: np.ndarray, **epilogue: Any
    ) -> Result:
        """The result of operands of the case's shapes; ``epilogue`` as for :func:`run`."""
        return run(
            emulator, kernel, self.case, lhs, rhs, dtypes[2], self.placement, precision=self.precision,
            split=self.split, schedule=self.schedule, **epilogue,
        )  # fmt: skip

    def with_seed(self, seed: int) -> Trial:
        return dataclasses.replace(self, schedule=dataclasses.replace(self.schedule, seed=seed))

    def operands(self, dtypes: DTypes, make: Any) -> tuple[np.ndarray, np.ndarray]:
        """lhs and rhs by ``make(rng, shape, dtype)``."""
        rng = np.random.default_rng([self.data_seed, *dataclasses.astuple(self.case.shape)[:3]])
        return make(rng, self.case.lhs_shape, dtypes[0]), make(rng, self.case.rhs_shape, dtypes[1])
