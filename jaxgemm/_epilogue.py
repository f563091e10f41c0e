"""Alpha, bias and activation: their names, the dtype they are computed in, and the composition that defines them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm._native import _core

NO_ACTIVATION = "none"
BIAS_DTYPES = frozenset(_core.bias_dtypes())
"""Names of the dtypes in which kernels read a bias."""

# Public name -> the function that defines it. The kernels' own names are those of cuda/gemm.h; "gelu" is an alias
# that means what jax.nn.gelu means by default.
_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
}
_ALIASES = {"gelu": "gelu_tanh"}

if set(_FUNCTIONS) != set(_core.activations()) - {NO_ACTIVATION}:
    raise ImportError(
        f"jaxgemm._core was built for the activations {_core.activations()}, this package defines "
        f"{sorted(_FUNCTIONS)}: install jaxgemm again from one source"
    )


def canonical_activation(activation: str | None) -> str:
    """The kernels' name of an activation; ValueError for an unknown one."""
    if activation is None:
        return NO_ACTIVATION
    name = _ALIASES.get(activation, activation) if isinstance(activation, str) else None
    if name not in _FUNCTIONS:
        raise ValueError(f"activation={activation!r} is none of None, {', '.join(map(repr, activation_names()))}")
    return name


def activation_names() -> list[str]:
    """Every accepted name."""
    return sorted([*_FUNCTIONS, *_ALIASES])


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which a GEMM with results of ``dtype`` accumulates, and its epilogue is computed."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        return np.dtype(np.float32)
    return dtype


def alpha_and_bias(operands: Sequence[Any], has_alpha: bool) -> tuple[Any, Any]:
    """(alpha, bias), None where there is none, of what the primitives and the custom call have behind lhs and rhs."""
    alpha, rest = (operands[0], operands[1:]) if has_alpha else (None, operands)
    return alpha, rest[0] if rest else None


def finish(accumulator: jax.Array, epilogue: Sequence[Any], has_alpha: bool, activation: str) -> jax.Array:
    """What the primitives make of their sums: :func:`apply_epilogue` of alpha and bias as those have them."""
    alpha, bias = alpha_and_bias(epilogue, has_alpha)
    return apply_epilogue(accumulator, alpha, of_columns(bias, accumulator.ndim), activation)


def of_columns(bias: Any, ndim: int) -> Any:
    """A bias (N), or (batch..., N), of the columns of a result of so many dimensions: as one that broadcasts to it."""
    return bias if bias is None else lax.expand_dims(bias, range(bias.ndim - 1, ndim - 1))


def apply_epilogue(
    accumulator: jax.Array, alpha: jax.Array | None, bias: jax.Array | None, activation: str
) -> jax.Array:
    """``activation(alpha * accumulator + bias)`` in the accumulator's dtype."""
    out = accumulator if alpha is None else alpha.astype(accumulator.dtype) * accumulator
    if bias is not None:  # of all dimensions, as jax_numpy_rank_promotion may be "raise"
        out += lax.expand_dims(bias.astype(accumulator.dtype), range(out.ndim - bias.ndim))
    return out if activation == NO_ACTIVATION else _FUNCTIONS[activation](out)


def batched_epilogue(
    epilogue: Sequence[Any], dims: Sequence[int | None], has_alpha: bool, batch: tuple[int, ...], first_is_new: bool
) -> list[Any] | None:
    """Alpha and bias of a product with batch dimensions of these sizes, of which vmap has added the first or none; None
    where what is mapped of them is nothing that a kernel takes.
    """
    alpha_dim, bias_dim = alpha_and_bias(dims, has_alpha)
    alpha, bias = alpha_and_bias(epilogue, has_alpha)
    if alpha_dim is not None or (bias_dim is not None and not first_is_new):
        return None
    if bias_dim is not None:
        bias = jnp.moveaxis(bias, bias_dim, 0)
        if bias.ndim == 2:  # the other batch dimensions share one
            bias = lax.expand_dims(bias, range(1, len(batch)))
    if bias is not None and bias.ndim > 1:
        bias = jnp.broadcast_to(bias, (*batch, bias.shape[-1]))
    return [x for x in (alpha, bias) if x is not None]
