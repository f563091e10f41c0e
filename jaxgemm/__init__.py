"""Tensor-core GEMM kernels for JAX: ``jaxgemm.matmul`` inside ``jax.jit``, with JAX's transforms."""

from pkgutil import extend_path

# In a source checkout this folder shadows an installed jaxgemm: the compiled module is then found beside the
# installed one's Python files.
__path__ = extend_path(__path__, __name__)

from jaxgemm._choose import Explanation, explain, kernels  # noqa: E402  (the path above must be set first)
from jaxgemm._dot_general import dot_general  # noqa: E402
from jaxgemm._lowering import CpuFallbackWarning  # noqa: E402
from jaxgemm._matmul import einsum, matmul  # noqa: E402
from jaxgemm._version import __version__  # noqa: E402

__all__ = [
    "CpuFallbackWarning",
    "Explanation",
    "__version__",
    "dot_general",
    "einsum",
    "explain",
    "kernels",
    "matmul",
]
