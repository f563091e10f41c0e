"""Tensor-core GEMM kernels for JAX: ``jaxgemm.matmul`` inside ``jax.jit``, with JAX's transforms."""

from pkgutil import extend_path

# In a source checkout this folder shadows an installed jaxgemm: the compiled module is then found beside the
# installed one's Python files.
__path__ = extend_path(__path__, __name__)

from jaxgemm import checkpoint_policies as checkpoint_policies
from jaxgemm._choose import Explanation, explain, kernels
from jaxgemm._dot_general import dot_general
from jaxgemm._einsum import einsum
from jaxgemm._export import export_checks
from jaxgemm._install import install, uninstall
from jaxgemm._join import join_columns, split_columns
from jaxgemm._lowering import CpuFallbackWarning
from jaxgemm._matmul import matmul
from jaxgemm._mixed_choose import mixed_kernels
from jaxgemm._options import options
from jaxgemm._quant import QuantizedMatrix
from jaxgemm._quantize import quantize
from jaxgemm._tune_program import Tuned, tune
from jaxgemm._tuning import TuningWarning
from jaxgemm._version import __version__

__all__ = [
    "CpuFallbackWarning",
    "Explanation",
    "QuantizedMatrix",
    "Tuned",
    "TuningWarning",
    "__version__",
    "dot_general",
    "einsum",
    "explain",
    "export_checks",
    "install",
    "join_columns",
    "kernels",
    "matmul",
    "mixed_kernels",
    "options",
    "quantize",
    "split_columns",
    "tune",
    "uninstall",
]
