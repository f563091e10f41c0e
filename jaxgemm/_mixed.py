"""The primitive of a product with quantised weights: abstract evaluation, differentiation, vmap and what it means.

``mixed_gemm_p`` takes x (batch..., tokens..., K), the leaves of a :class:`QuantizedMatrix` of the same leading batch
dimensions, and what an epilogue needs; it is linear in x where it has no epilogue. What a device without a kernel for
it computes, and what defines a kernel's numbers, is :func:`composed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxgemm import _compat, _mixed_lowering
from jaxgemm._epilogue import NO_ACTIVATION, alpha_and_bias, apply_epilogue
from jaxgemm._quant import QuantizedMatrix

mixed_gemm_p = Primitive("jaxgemm_mixed_gemm")


@dataclass(frozen=True)
class Form:
    """All of a call that is no array.

    Attributes:
      k, n, bits, group_size: of the weights, see :class:`QuantizedMatrix`.
      has_zeros, has_alpha: which operands there are behind x, packed and scales; a bias is what then is left.
      activation: the kernels' name of one.
      out_dtype: of the result.
    """

    k: int
    n: int
    bits: int
    group_size: int
    has_zeros: bool
    has_alpha: bool
    activation: str
    out_dtype: np.dtype

    def weights(self, operands: Sequence[Any]) -> QuantizedMatrix:
        """Of all operands."""
        zeros = operands[3] if self.has_zeros else None
        return QuantizedMatrix(operands[1], operands[2], zeros, None, self.k, self.n, self.bits, self.group_size)

    def epilogue(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Alpha and bias, as far as there are any, of all operands."""
        return operands[4 if self.has_zeros else 3 :]

    @property
    def accumulates(self) -> "Form":
        """The same without an epilogue, with results in float32."""
        return Form(
            self.k, self.n, self.bits, self.group_size, self.has_zeros, False, NO_ACTIVATION, np.dtype(np.float32)
        )

    @property
    def batched_operands(self) -> int:
        """How many operands have the weights' batch dimensions: x and the weights' own."""
        return 4 if self.has_zeros else 3


def bind(x: jax.Array, weights: QuantizedMatrix, *epilogue: jax.Array, form: Form, kernel: str | None) -> jax.Array:
    """The product; ``weights`` in the order of their groups, ``epilogue`` as :class:`Form` says."""
    leaves = [weights.packed, weights.scales] + ([weights.zeros] if form.has_zeros else [])
    return mixed_gemm_p.bind(*_compat.match_varying(x, *leaves, *epilogue), form=form, kernel=kernel)


def _dot(x: jax.Array, matrix: jax.Array, out_dtype: Any) -> jax.Array:
    """Of x (batch..., tokens..., K) and a matrix (batch..., K, N)."""
    nb = matrix.ndim - 2
    batch = tuple(range(nb))
    return lax.dot_general(x, matrix, (((x.ndim - 1,), (nb,)), (batch, batch)), preferred_element_type=out_dtype)


def composed(*operands: jax.Array, form: Form) -> jax.Array:
    """What the primitive means: weights rounded to the dtype of x, sums and epilogue in float32, one rounding."""
    matrix = form.weights(operands).dequantize(operands[0].dtype)
    accumulator = _dot(operands[0], matrix, np.float32)
    alpha, bias = alpha_and_bias(form.epilogue(operands), form.has_alpha)
    return apply_epilogue(accumulator, alpha, bias, form.activation).astype(form.out_dtype)


def _aval(x: Any, packed: Any, *rest: Any, form: Form, kernel: str | None) -> Any:
    nb = packed.ndim - 3
    if x.ndim <= nb or x.shape[:nb] != packed.shape[:nb] or x.shape[-1] != form.k:
        raise TypeError(
            f"x of shape {x.shape} cannot be multiplied by quantised weights of shape "
            f"{(*packed.shape[:nb], form.k, form.n)}"
        )
    return x.update(shape=(*x.shape[:-1], form.n), dtype=form.out_dtype)


mixed_gemm_p.def_abstract_eval(_aval)
_compat.compile_when_eager(mixed_gemm_p)
_mixed_lowering.register(mixed_gemm_p, composed)

# --- differentiation --------------------------------------------------------------------------------------------------


def _jvp(primals: Any, tangents: Any, *, form: Form, kernel: str | None) -> Any:
    """The products are those of kernels, as far as they are with the weights themselves: the tangent of x is
    multiplied as x is. That of scales and zeros makes another matrix, which is no quantised one.
    """
    x = primals[0]
    plain = form.accumulates
    weights = primals[1 : form.batched_operands]
    varies = [not isinstance(t, ad.Zero) for t in tangents]
    epilogue, d_epilogue = form.epilogue(primals), form.epilogue(tangents)
    if not epilogue and form.activation == NO_ACTIVATION:
        plain = form
    accumulator = mixed_gemm_p.bind(x, *weights, form=plain, kernel=kernel)
    terms = []
    if varies[0]:
        terms.append(mixed_gemm_p.bind(tangents[0], *weights, form=plain, kernel=kernel))
    places = [i for i in range(2, form.batched_operands) if varies[i] and tangents[i].dtype == primals[i].dtype]
    if places:

        def matrix(*changed: Any) -> jax.Array:
            values = list(primals)
            for place, value in zip(places, changed, strict=True):
                values[place] = value
            return form.weights(values).dequantize(np.float32)

        _, d_matrix = jax.jvp(matrix, [primals[i] for i in places], [tangents[i] for i in places])
        terms.append(_dot(x, d_matrix.astype(x.dtype), plain.out_dtype))
    d_accumulator = sum(terms[1:], terms[0]) if terms else None
    values = [accumulator, *epilogue]
    d_values = [d_accumulator, *(None if isinstance(t, ad.Zero) else t for t in d_epilogue)]
    if plain is form:
        return accumulator, d_accumulator
    varying = [i for i, tangent in enumerate(d_values) if tangent is not None]

    def finish(*varied: Any) -> jax.Array:
        full = list(values)
        for place, value in zip(varying, varied, strict=True):
            full[place] = value
        accumulator, *rest = full
        return apply_epilogue(accumulator, *alpha_and_bias(rest, form.has_alpha), form.activation).astype(
            form.out_dtype
        )

    return jax.jvp(finish, [values[i] for i in varying], [d_values[i] for i in varying])


def _transpose(g: Any, x: Any, *rest: Any, form: Form, kernel: str | None) -> Any:
    """Of what is linear in x: a product with the transposed weights, which no kernel reads packed."""
    if not ad.is_undefined_primal(x) or form.epilogue((x, *rest)) or form.activation != NO_ACTIVATION:
        raise NotImplementedError("jaxgemm.matmul with quantised weights is linear in lhs alone, without an epilogue")
    matrix = form.weights((x, *rest)).dequantize(x.aval.dtype)
    cotangent = _dot(g.astype(x.aval.dtype), jnp.swapaxes(matrix, -1, -2), x.aval.dtype)
    return [cotangent, *(None for _ in rest)]


ad.primitive_jvps[mixed_gemm_p] = _jvp
ad.primitive_transposes[mixed_gemm_p] = _transpose

# --- vmap -------------------------------------------------------------------------------------------------------------


def _batch(operands: Any, dims: Any, *, form: Form, kernel: str | None) -> Any:
    """An axis of x alone is one of tokens; of the weights, a batch dimension; of alpha or bias, the epilogue is left to
    XLA.
    """
    count = form.batched_operands
    if any(d is not None for d in dims[count:]):
        accumulator, d = _batch(operands[:count], dims[:count], form=form.accumulates, kernel=kernel)

        def finish(accumulator: jax.Array, *epilogue: jax.Array) -> jax.Array:
            alpha, bias = alpha_and_bias(epilogue, form.has_alpha)
            return apply_epilogue(accumulator, alpha, bias, form.activation).astype(form.out_dtype)

        return jax.vmap(finish, in_axes=(d, *dims[count:]))(accumulator, *operands[count:]), 0
    if all(d is None for d in dims[:count]):
        return mixed_gemm_p.bind(*operands, form=form, kernel=kernel), None
    nb = operands[1].ndim - 3 - (dims[1] is not None)
    if all(d is None for d in dims[1:count]):
        x = jnp.moveaxis(operands[0], dims[0], nb)
        return mixed_gemm_p.bind(x, *operands[1:], form=form, kernel=kernel), nb
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    mapped = [batching.bdim_at_front(x, d, size) for x, d in zip(operands[:count], dims[:count], strict=True)]
    return mixed_gemm_p.bind(*mapped, *operands[count:], form=form, kernel=kernel), 0


batching.primitive_batchers[mixed_gemm_p] = _batch
