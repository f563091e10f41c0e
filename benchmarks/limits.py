"""What the hardware allows: the ceilings that results are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.shapes import Problem

TF32_PRODUCTS_OF_FLOAT32 = 3
"""How many TF32 products make one with nearly float32's accuracy (3xTF32)."""


@dataclass(frozen=True)
class Limits:
    """Ceilings of one device.

    ``datasheet_tflops`` are the vendor's dense rates. ``measured_tflops`` are sustained rates of the tensor cores alone
    on normally distributed data (wgmma m64n256k16 from shared memory, no loads), power limit included; a dtype
    without one was not measured. ``mma_sync_tflops`` are the same for mma.sync from registers, as far as measured.
    ``copy_gbps`` is a large device-to-device copy, bytes read plus bytes written.
    """

    datasheet_tflops: dict[str, float]
    measured_tflops: dict[str, float]
    copy_gbps: float
    mma_sync_tflops: dict[str, float] = field(default_factory=dict)

    def tflops(self, problem: Problem) -> float:
        """The measured rate for the problem's arithmetic where there is one, else the datasheet's."""
        return max(self._sustained(unit) / products for unit, products in units(problem))

    def floor_us(self, problem: Problem) -> float:
        """No version runs faster than this: the larger of arithmetic and data movement, in microseconds."""
        return max(problem.flops / self.tflops(problem) / 1e6, problem.min_bytes / self.copy_gbps / 1e3)

    def lines(self, problem: Problem) -> dict[str, float]:
        """The rates to compare the problem's with, in TFLOP/s, by what they are."""
        unit = arithmetic(problem)
        found = {"datasheet": self.datasheet_tflops[unit]}
        if unit == "float32":
            found = {
                "CUDA cores, datasheet": self.datasheet_tflops[unit],
                "three TF32 products": self._sustained("tf32") / TF32_PRODUCTS_OF_FLOAT32,
            }
        if unit in self.measured_tflops:
            found["tensor cores alone, measured"] = self.measured_tflops[unit]
        if unit in self.mma_sync_tflops:
            found["mma.sync alone, measured"] = self.mma_sync_tflops[unit]
        return found

    def _sustained(self, unit: str) -> float:
        return self.measured_tflops.get(unit, self.datasheet_tflops[unit])


def arithmetic(problem: Problem) -> str:
    """The unit that does the work: the operand dtype, or tf32 for float32 at default precision."""
    if problem.lhs_dtype == "float32" and problem.precision == "default":
        return "tf32"
    return problem.lhs_dtype


def units(problem: Problem) -> list[tuple[str, int]]:
    """(unit, its products for each one of the problem): the ways to do the arithmetic."""
    unit = arithmetic(problem)
    return [(unit, 1), ("tf32", TF32_PRODUCTS_OF_FLOAT32)] if unit == "float32" else [(unit, 1)]


LIMITS: dict[str, Limits] = {
    "NVIDIA H200": Limits(
        datasheet_tflops={
            "float32": 66.9,
            "tf32": 494.7,
            "float16": 989.5,
            "bfloat16": 989.5,
            "float8_e4m3fn": 1979.0,
            "float8_e5m2": 1979.0,
            "int8": 1979.0,
        },
        measured_tflops={"tf32": 449.0, "float16": 830.0, "bfloat16": 855.0, "float8_e4m3fn": 1684.0, "int8": 1854.0},
        copy_gbps=4296.0,
    ),
}
"""By the device's name as JAX reports it."""
