"""``jnp.einsum``: the contractions of transformers and mixtures of experts, and their gradients, by ``jaxgemm.einsum``.

Works with: jnp.einsum (jax >= 0.10.2)
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
import jaxgemm.formats
from tests.helpers import integers, struct
from tests.works_with.support import assert_exact, assert_ours, every_dtype, sparse

SUBSCRIPTS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("bsd,dhk->bshk", [(2, 7, 16), (16, 3, 8)]),  # queries, keys or values of all heads
    ("bsd,tdhk->tbhsk", [(2, 7, 16), (3, 16, 2, 8)]),  # all three at once
    ("bshd,bthd->bhst", [(2, 7, 3, 16), (2, 9, 3, 16)]),  # scores
    ("bhst,bthd->bshd", [(2, 3, 7, 9), (2, 9, 3, 16)]),  # of values
    ("bsghd,btgd->bghst", [(2, 7, 2, 3, 16), (2, 9, 2, 16)]),  # scores of queries that share keys
    ("bghst,btgd->bsghd", [(2, 2, 3, 7, 9), (2, 9, 2, 16)]),
    ("bshk,hkd->bsd", [(2, 7, 3, 8), (3, 8, 16)]),  # heads joined
    ("bsd,vd->bsv", [(2, 7, 16), (33, 16)]),  # logits by the embedding
    ("bsec,bsd->ebcd", [(2, 9, 4, 3), (2, 9, 16)]),  # tokens to experts
    ("ebcd,edf->ebcf", [(4, 2, 3, 16), (4, 16, 24)]),  # experts
    ("bsec,ebcd->bsd", [(2, 9, 4, 3), (4, 2, 3, 16)]),  # and back
    ("...qhd,...khd->...hqk", [(2, 1, 5, 3, 16), (2, 4, 6, 3, 16)]),
    ("bsd,dr,rf->bsf", [(2, 7, 16), (16, 5), (5, 24)]),  # a matrix of low rank
]


@every_dtype
@pytest.mark.parametrize(("subscripts", "shapes"), SUBSCRIPTS, ids=[subscripts for subscripts, _ in SUBSCRIPTS])
def test_results_and_gradients(
    subscripts: str, shapes: list[tuple[int, ...]], dtype: Any, rng: np.random.Generator
) -> None:
    wide = [integers(rng, shape, bound=3) for shape in shapes]
    cotangent = sparse(rng, jax.eval_shape(functools.partial(jnp.einsum, subscripts), *wide))
    operands = [x.astype(dtype) for x in wide]

    def out_and_gradients(einsum: Any) -> Any:
        def run(*operands: jax.Array) -> Any:
            out, transposed = jax.vjp(functools.partial(einsum, subscripts), *operands)
            return out, transposed(cotangent.astype(out.dtype))

        return run

    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(out_and_gradients(jnp.einsum))(*wide)
    got = jax.jit(out_and_gradients(jaxgemm.einsum))(*operands)
    assert {x.dtype.name for x in jax.tree.leaves(got)} == {dtype.__name__}
    assert_exact(got, wanted, dtype)
    assert_ours(out_and_gradients(jaxgemm.einsum), *operands)


def test_attention_of_einsums(rng: np.random.Generator) -> None:
    """A layer under vmap, whose batch the subscripts do not name."""
    x, w = sparse(rng, (struct((4, 7, 16)), struct((3, 16, 2, 8))))

    def layer(einsum: Any, x: jax.Array, w: jax.Array) -> jax.Array:
        query, key, value = (einsum("sd,dhk->shk", x, w[i]) for i in range(3))
        return einsum("hst,thk->shk", jax.nn.relu(einsum("shk,thk->hst", query, key)), value)

    ours, own = (
        jax.vmap(functools.partial(layer, einsum), in_axes=(0, None)) for einsum in (jaxgemm.einsum, jnp.einsum)
    )
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(own)(x, w)
    assert_exact(jax.jit(ours)(x, w), wanted)
    assert_ours(ours, x, w)


@pytest.mark.parametrize(
    ("subscripts", "x", "weights"),
    [
        ("bsd,df->bsf", (2, 7, 64), (64, 48)),
        ("df,bsd->sbf", (2, 7, 64), (64, 48)),
        ("ebcd,edf->ebcf", (4, 2, 3, 64), (4, 64, 48)),  # experts
        ("bsd,edf->ebsf", (2, 7, 64), (4, 64, 48)),  # all experts for all tokens
    ],
)
def test_quantised_weights(
    subscripts: str, x: tuple[int, ...], weights: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Of 4 bits, in either order: with whole numbers, exact."""
    tokens = integers(rng, x, "bfloat16", bound=3)
    scales = jnp.ones((*weights[:-2], weights[-2] // 32, weights[-1]), jnp.bfloat16)
    codes = jnp.asarray(rng.integers(0, 16, weights), jnp.uint8)
    matrix = jaxgemm.formats.from_codes(codes, scales, group_size=32)
    first = subscripts.startswith("df")

    def run(tokens: jax.Array, matrix: Any) -> jax.Array:
        operands = (matrix, tokens) if first else (tokens, matrix)
        return jaxgemm.einsum(subscripts, *operands, preferred_element_type=np.float32)

    dense = (np.asarray(codes, np.float64) - 8, np.asarray(tokens, np.float64))
    wanted = np.einsum(subscripts, *(dense if first else dense[::-1]))
    np.testing.assert_array_equal(jax.jit(run)(tokens, matrix), wanted)
    text = jax.jit(run).trace(tokens, matrix).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @jaxgemm_mixed(") == 1
