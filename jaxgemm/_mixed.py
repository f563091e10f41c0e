"""The primitive of a product with quantised weights: differentiation and vmap.

``mixed_gemm_p`` takes x (batch..., tokens..., K), the leaves of a :class:`QuantizedMatrix` of the same leading batch
dimensions, and what an epilogue needs; it is linear in x where it has no epilogue. It is lowered, once shapes are those
of one device (_mixed_partition.py), to ``local_mixed_gemm_p`` (_mixed_local.py).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxgemm import _compat, _mixed_lowering  # noqa: F401  (the second gives the local primitive its kernels)
from jaxgemm._epilogue import NO_ACTIVATION, batched_epilogue
from jaxgemm._mixed_choose import MixedRequest
from jaxgemm._mixed_local import Form, dot
from jaxgemm._mixed_partition import lower_mixed, mixed_aval
from jaxgemm._partition import mesh_of
from jaxgemm._quant import QuantizedMatrix

mixed_gemm_p = Primitive("jaxgemm_mixed_gemm")


def bind(x: jax.Array, weights: QuantizedMatrix, *epilogue: jax.Array, form: Form, kernel: str | None) -> jax.Array:
    """The product; ``weights`` in the order of their groups, ``epilogue`` as :class:`Form` says."""
    leaves = [weights.packed, weights.scales] + ([weights.zeros] if form.has_zeros else [])
    return mixed_gemm_p.bind(*_compat.match_varying(x, *leaves, *epilogue), form=form, kernel=kernel)


def request_of(equation: Any) -> tuple[MixedRequest, str | None] | None:
    """(request, named kernel) of a jaxpr equation that binds the primitive, else None."""
    if equation.primitive is not mixed_gemm_p or equation.params["form"].transposed:
        return None
    form = dataclasses.replace(equation.params["form"], out_sharding=None)
    request = MixedRequest.of([v.aval for v in equation.invars], form)
    return request, equation.params["kernel"]


mixed_gemm_p.def_abstract_eval(mixed_aval)
_compat.compile_when_eager(mixed_gemm_p)
mlir.register_lowering(mixed_gemm_p, lower_mixed)
_compat.requires_devices_during_lowering(mixed_gemm_p)

# --- differentiation --------------------------------------------------------------------------------------------------


def _explicit_sharding(aval: Any, *others: Any) -> Any:
    """That of an array, where it or others are on a mesh of explicit axes: what a product must be told where a split
    contraction leaves open how its result is split.
    """
    mesh = mesh_of(aval.sharding, *(other.sharding for other in others))
    return aval.sharding.update(mesh=mesh) if _compat.has_explicit_axes(mesh) else None


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
            matrix = form.weights(values).dequantize(np.float32)
            return matrix.mT if form.transposed else matrix

        _, d_matrix = jax.jvp(matrix, [primals[i] for i in places], [tangents[i] for i in places])
        terms.append(dot(x, d_matrix.astype(x.dtype), plain.out_dtype, _explicit_sharding(jax.typeof(accumulator))))
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
        return form.finish(*full)

    return jax.jvp(finish, [values[i] for i in varying], [d_values[i] for i in varying])


def _transpose(g: Any, x: Any, *rest: Any, form: Form, kernel: str | None) -> Any:
    """Of what is linear in x: a product with the transposed weights, which no kernel reads packed."""
    if not ad.is_undefined_primal(x) or form.epilogue((x, *rest)) or form.activation != NO_ACTIVATION:
        raise NotImplementedError("jaxgemm.matmul with quantised weights is linear in lhs alone, without an epilogue")
    operands = _compat.match_varying(g.astype(x.aval.dtype), *rest)
    form = dataclasses.replace(
        form,
        out_dtype=x.aval.dtype,
        transposed=not form.transposed,
        out_sharding=_explicit_sharding(x.aval, *map(jax.typeof, operands)),
    )
    return [mixed_gemm_p.bind(*operands, form=form, kernel=kernel), *(None for _ in rest)]


ad.primitive_jvps[mixed_gemm_p] = _jvp
ad.primitive_transposes[mixed_gemm_p] = _transpose

# --- vmap -------------------------------------------------------------------------------------------------------------


def _batch(axis_data: Any, operands: Any, dims: Any, *, form: Form, kernel: str | None) -> Any:
    """An axis of x alone is one of tokens; of the weights, a batch dimension, of the bias too. Of alpha, or of the bias
    and not of the weights, the epilogue is left to XLA.
    """
    count, size = form.batched_operands, axis_data.size
    batch = tuple(size for d, size in enumerate(operands[1].shape) if d != dims[1])[:-3]
    of_x_alone = all(d is None for d in dims[1:count])
    sizes = batch if of_x_alone else (size, *batch)
    epilogue = batched_epilogue(operands[count:], dims[count:], form.has_alpha, sizes, not of_x_alone)
    if epilogue is None:
        accumulator, d = _batch(axis_data, operands[:count], dims[:count], form=form.accumulates, kernel=kernel)
        return jax.vmap(form.finish, in_axes=(d, *dims[count:]))(accumulator, *operands[count:]), 0
    if all(d is None for d in dims[:count]):
        return mixed_gemm_p.bind(*operands, form=form, kernel=kernel), None
    nb = len(batch)
    if form.out_sharding is not None:
        sharding = _compat.out_sharding_for_vmap(axis_data, form.out_sharding, nb if of_x_alone else 0)
        form = dataclasses.replace(form, out_sharding=sharding)
    if of_x_alone:
        x = jnp.moveaxis(operands[0], dims[0], nb)
        return mixed_gemm_p.bind(x, *operands[1:], form=form, kernel=kernel), nb
    mapped = [batching.bdim_at_front(x, d, size) for x, d in zip(operands[:count], dims[:count], strict=True)]
    return mixed_gemm_p.bind(*mapped, *epilogue, form=form, kernel=kernel), 0


batching.fancy_primitive_batchers[mixed_gemm_p] = _batch
