"""The compiled module, and its registration with XLA."""

import re
from importlib import metadata
from pathlib import Path
from typing import Any

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
PEER_SUM_TARGET = "jaxgemm_peer_sum"


def _ffi_of_runtime() -> tuple[int, int] | None:
    """(major, minor) of the FFI of the installed jaxlib, as the headers that it brings say; None if they do not."""
    try:
        header = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text(errors="replace")
    except OSError:
        return None
    numbers = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", header) for part in ("MAJOR", "MINOR")]
    major, minor = (number and int(number[1]) for number in numbers)
    return None if major is None or minor is None else (major, minor)


def _refuse_an_older_runtime() -> None:
    """Raises ImportError where XLA would refuse the handlers, of which it says so only when the first one is called."""
    runtime, built = _ffi_of_runtime(), _core.handler_metadata()[:2]
    if runtime is not None and (runtime[0] != built[0] or runtime[1] < built[1]):
        raise ImportError(
            f"jaxgemm was built for version {built[0]}.{built[1]} of XLA's FFI, jaxlib {metadata.version('jaxlib')} "
            f"has {runtime[0]}.{runtime[1]} and would refuse its kernels. Install a newer jaxlib, or build jaxgemm "
            "again with `python -m pip install .` in its source folder."
        )


_refuse_an_older_runtime()

# Registration is lazy: without a CUDA plugin XLA only remembers the handler.
for _target in (GEMM_TARGET, MIXED_TARGET):
    jax.ffi.register_ffi_target(_target, _core.handlers()[_target], platform="CUDA")

_handlers, _site = _core.peer_sum_handlers()
_site_type: Any = _site  # which the versions of JAX have different types for
jax.ffi.register_ffi_type(f"{PEER_SUM_TARGET}_site", _site_type, platform="CUDA")
jax.ffi.register_ffi_target(PEER_SUM_TARGET, _handlers, platform="CUDA")

__all__ = ["GEMM_TARGET", "MIXED_TARGET", "PEER_SUM_TARGET", "_core"]
