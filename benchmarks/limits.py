"""What the hardware allows: the ceilings that results are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.shapes import Problem


@dataclass(frozen=True)
class Limits:
    """Ceilings of one device.

    ``datasheet_tflops`` are the vendor's dense rates. ``measured_tflops`` are sustained rates of the tensor cores alone
    on normally distributed data (wgmma m64n256k16 from shared memory, no loads), power limit included; a dtype
    without one was not measured. ``copy_gbps`` is a large device-to-device copy, bytes read plus bytes written.
    """

    datasheet_tflops: dict[str, float]
    measured_tflops: dict[str, float]
    copy_gbps: float

    def tflops(self, problem: Problem) -> float:
        """The measured rate for the problem's arithmetic where there is one, else the datasheet's."""
        unit = arithmetic(problem)
        return self.measured_tflops.get(unit, self.datasheet_tflops[unit])

    def floor_us(self, problem: Problem) -> float:
        """No version runs faster than this: the larger of arithmetic and data movement, in microseconds."""
        return max(problem.flops / self.tflops(problem) / 1e6, problem.min_bytes / self.copy_gbps / 1e3)


def arithmetic(problem: Problem) -> str:
    """The unit that does the work: the operand dtype, or tf32 for float32 at default precision."""
    if problem.lhs_dtype == "float32" and problem.precision == "default":
        return "tf32"
    return problem.lhs_dtype


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
