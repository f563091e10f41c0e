"""What ``jax.export`` has to be told of programs with our kernels."""

import jax

from jaxgemm._native import GEMM_TARGET, MIXED_TARGET


def export_checks() -> tuple[jax.export.DisabledSafetyCheck, ...]:
    """The checks that ``jax.export`` has to leave out of a program with jaxgemm's products for CUDA: it refuses custom
    calls that it does not know, as it does not promise that they stay what they are.

        jax.export.export(jax.jit(f), platforms=("cpu", "cuda"), disabled_checks=jaxgemm.export_checks())(*args)

    jaxgemm's own promise: a program names its kernel, and runs with later versions that have it; where there is none of
    that name, or the GPU cannot run it, calling the program raises an error that says so.

    Returns:
      One check for each custom call of jaxgemm: of dense and of quantised weights.
    """
    return tuple(map(jax.export.DisabledSafetyCheck.custom_call, (GEMM_TARGET, MIXED_TARGET)))
