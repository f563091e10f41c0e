"""Tensor-core GEMM kernels for JAX: ``jaxgemm.matmul`` inside ``jax.jit``, with JAX's transforms."""

from pkgutil import extend_path

# In a source checkout this folder shadows an installed jaxgemm: the compiled module is then found beside the
# installed one's Python files.
__path__ = extend_path(__path__, __name__)

from jaxgemm._choose import Explanation, explain, kernels
from jaxgemm._dot_general import dot_general
from jaxgemm._lowering import CpuFallbackWarning
from jaxgemm._matmul import einsum, matmul
from jaxgemm._mixed_choose import mixed_kernels
from jaxgemm._quant import QuantizedMatrix, quantize
from jaxgemm._tuning import TuningWarning
from jaxgemm._version import __version__

__all__ = [
    "CpuFallbackWarning",
    "Explanation",
    "QuantizedMatrix",
    "TuningWarning",
    "__version__",
    "dot_general",
    "einsum",
    "explain",
    "kernels",
    "matmul",
    "mixed_kernels",
    "quantize",
]
