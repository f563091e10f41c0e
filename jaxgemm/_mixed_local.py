"""The device-local primitives of a product with quantised weights, and what they mean.

Operands: x (batch..., tokens..., K), the leaves of a :class:`QuantizedMatrix` of the same leading batch dimensions,
and what an epilogue needs. What a device without a kernel for it computes, and what defines a kernel's numbers, is
:func:`composed`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxgemm import _compat
from jaxgemm._epilogue import NO_ACTIVATION, finish
from jaxgemm._lowering import without_kernels
from jaxgemm._quant import QuantizedMatrix

local_mixed_gemm_p = Primitive("jaxgemm_local_mixed_gemm")
local_transposed_mixed_gemm_p = Primitive("jaxgemm_local_transposed_mixed_gemm")


@dataclass(frozen=True)
class Form:
    """All of a call that is no array.

    Attributes:
      k, n, bits, group_size: of the weights, see :class:`QuantizedMatrix`; of one device where the call is local.
      has_zeros, has_alpha: which operands there are behind x, packed and scales; a bias is what then is left.
      activation: the kernels' name of one.
      out_dtype: of the result.
      transposed: whether x (..., N) is multiplied by the transposed matrix, for gradients: no kernel does that.
      out_sharding: of the result, a NamedSharding under a mesh of explicit axes; None for what the operands' say.
    """

    k: int
    n: int
    bits: int
    group_size: int
    has_zeros: bool
    has_alpha: bool
    activation: str
    out_dtype: np.dtype
    transposed: bool = False
    out_sharding: Any = None

    @property
    def contracted(self) -> int:
        """Size of the last dimension of x."""
        return self.n if self.transposed else self.k

    @property
    def columns(self) -> int:
        """Size of the last dimension of the result."""
        return self.k if self.transposed else self.n

    def weights(self, operands: Sequence[Any]) -> QuantizedMatrix:
        """Of all operands."""
        zeros = operands[3] if self.has_zeros else None
        return QuantizedMatrix(operands[1], operands[2], zeros, None, self.k, self.n, self.bits, self.group_size)

    def epilogue(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Alpha and bias, as far as there are any, of all operands."""
        return operands[self.batched_operands :]

    @property
    def accumulates(self) -> "Form":
        """The same without an epilogue, with results in float32."""
        return dataclasses.replace(self, has_alpha=False, activation=NO_ACTIVATION, out_dtype=np.dtype(np.float32))

    def of_shard(self, k: int, n: int) -> "Form":
        """The same of the weights of one device, which are so many rows and columns."""
        return dataclasses.replace(self, k=k, n=n, group_size=min(self.group_size, max(k, 1)), out_sharding=None)

    @property
    def batched_operands(self) -> int:
        """How many operands have the weights' batch dimensions: x and the weights' own."""
        return 4 if self.has_zeros else 3

    def finish(self, accumulator: jax.Array, *epilogue: jax.Array) -> jax.Array:
        """The result of the sums in float32."""
        return finish(accumulator, epilogue, self.has_alpha, self.activation).astype(self.out_dtype)


def dot(x: jax.Array, matrix: jax.Array, out_dtype: Any, out_sharding: Any = None) -> jax.Array:
    """Of x (batch..., tokens..., K) and a matrix (batch..., K, N)."""
    nb = matrix.ndim - 2
    batch = tuple(range(nb))
    numbers = (((x.ndim - 1,), (nb,)), (batch, batch))
    return lax.dot_general(x, matrix, numbers, preferred_element_type=out_dtype, out_sharding=out_sharding)


def composed(*operands: jax.Array, form: Form) -> jax.Array:
    """What the primitive means: weights rounded to the dtype of x, sums and epilogue in float32, one rounding."""
    matrix = form.weights(operands).dequantize(operands[0].dtype)
    matrix = matrix.mT if form.transposed else matrix
    return form.finish(dot(operands[0], matrix, np.float32), *form.epilogue(operands))


def check_shapes(x: Any, packed: Any, form: Form) -> None:
    """Raises TypeError where x does not fit."""
    nb = packed.ndim - 3
    if x.ndim <= nb or x.shape[:nb] != packed.shape[:nb] or x.shape[-1] != form.contracted:
        raise TypeError(
            f"x of shape {x.shape} cannot be multiplied by quantised weights of shape "
            f"{(*packed.shape[:nb], form.contracted, form.columns)}"
        )


def _aval(x: Any, packed: Any, *rest: Any, form: Form, kernel: str | None = None) -> Any:
    check_shapes(x, packed, form)
    return x.update(shape=(*x.shape[:-1], form.columns), dtype=form.out_dtype, weak_type=False)


def multiply(*operands: jax.Array, form: Form, kernel: str | None) -> jax.Array:
    """The product on one device."""
    if form.transposed:
        return local_transposed_mixed_gemm_p.bind(*operands, form=form)
    return local_mixed_gemm_p.bind(*operands, form=form, kernel=kernel)


_lower_composed = mlir.lower_fun(composed, multiple_results=False)


def _lower_anywhere(ctx: Any, *operands: Any, form: Form, kernel: str | None) -> Any:
    without_kernels(ctx, kernel)
    return _lower_composed(ctx, *operands, form=form)


for _primitive, _lower in ((local_mixed_gemm_p, _lower_anywhere), (local_transposed_mixed_gemm_p, _lower_composed)):
    _primitive.def_abstract_eval(_aval)
    _compat.compile_when_eager(_primitive)
    mlir.register_lowering(_primitive, _lower)
