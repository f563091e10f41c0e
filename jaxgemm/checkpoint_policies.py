"""Policies for ``jax.checkpoint(policy=...)`` and Flax's ``remat`` that know jaxgemm's products.

Those of the same names in ``jax.checkpoint_policies`` look for JAX's own primitives, so that they compute every
product of :func:`jaxgemm.matmul` a second time. These treat ours, quantised weights included, as those treat
``jnp.matmul``, and everything else as they do.

    jax.checkpoint(block, policy=jaxgemm.checkpoint_policies.dots_saveable)
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p

from jaxgemm._interpreters import PRODUCTS
from jaxgemm._mixed import mixed_gemm_p

__all__ = [
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
]


def _has_batch(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> bool:
    """Whether each of a batch is multiplied with weights of its own."""
    if primitive is mixed_gemm_p:
        _, packed, *_ = operands
        return packed.ndim > 3
    _, (lhs_batch, _) = params["dimension_numbers"]
    return bool(lhs_batch)


_theirs = jax.checkpoint_policies


def _class_of(policy: Any) -> Any:
    """JAX's own class of a policy: under ``jax_remat3`` no other is asked about JAX's own products. JAX 0.10 has
    functions.
    """
    return object if inspect.isfunction(policy) else type(policy)


@dataclasses.dataclass(frozen=True)
class _Saveable(_class_of(_theirs.dots_saveable)):
    only_if_no_batch_dims: bool

    def __call__(self, primitive: Any, *operands: Any, **params: Any) -> Any:
        if primitive in PRODUCTS:
            return not (self.only_if_no_batch_dims and _has_batch(primitive, operands, params))
        policy = _theirs.dots_with_no_batch_dims_saveable if self.only_if_no_batch_dims else _theirs.dots_saveable
        return policy(primitive, *operands, **params)


dots_saveable = _Saveable(False)
"""Saves the results of products; as ``jax.checkpoint_policies.dots_saveable`` where the product is not ours."""

dots_with_no_batch_dims_saveable = _Saveable(True)
"""Saves the results of products without batch dimensions: those with weights, and not those of attention.

As ``jax.checkpoint_policies.dots_with_no_batch_dims_saveable`` where the product is not ours.
"""


@dataclasses.dataclass(frozen=True)
class _Offload(_class_of(_theirs.offload_dot_with_no_batch_dims("device", "pinned_host"))):
    """Equal where its memories are, so that two of them compile one program."""

    offload_src: str
    offload_dst: str

    def __call__(self, primitive: Any, *operands: Any, **params: Any) -> Any:
        policy = _theirs.offload_dot_with_no_batch_dims(self.offload_src, self.offload_dst)
        if primitive not in PRODUCTS:
            return policy(primitive, *operands, **params)
        batch = ((0,), (0,)) if _has_batch(primitive, operands, params) else ((), ())
        return policy(dot_general_p, dimension_numbers=(((), ()), batch))  # all that it looks at


def offload_dot_with_no_batch_dims(source: str, destination: str) -> Callable[..., Any]:
    """Moves the results of products without batch dimensions to another memory, from where the backward pass has them.

    As ``jax.checkpoint_policies.offload_dot_with_no_batch_dims`` where the product is not ours.

    Args:
      source, destination: kinds of memory, e.g. "device" and "pinned_host".
    """
    return _Offload(source, destination)


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
