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

# Registration is lazy: without a CUDA plugin XLA only remembers the handler.
jax.ffi.register_ffi_target(GEMM_TARGET, _core.handlers()[GEMM_TARGET], platform="CUDA")

__all__ = ["GEMM_TARGET", "_core"]
