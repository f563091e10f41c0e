"""The compiled module, and its registration with XLA."""

import jax

try:
    from jaxgemm import _core
except ImportError as error:
    raise ImportError(
        "jaxgemm's compiled module jaxgemm._core cannot be imported "
        f"({error}). Build and install it with `python -m pip install .` in jaxgemm's source folder."
    ) from error

GEMM_TARGET = "jaxgemm_gemm"
MIXED_TARGET = "jaxgemm_mixed"

# Registration is lazy: without a CUDA plugin XLA only remembers the handler.
for _target in (GEMM_TARGET, MIXED_TARGET):
    jax.ffi.register_ffi_target(_target, _core.handlers()[_target], platform="CUDA")

__all__ = ["GEMM_TARGET", "MIXED_TARGET", "_core"]
