"""jaxgemm/_einsum.py: quantised weights in einsum, against jnp.einsum of their numbers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm import formats
from jaxgemm._native import MIXED_TARGET
from tests.helpers import assert_same, cuda_text

K, N, E, F = 64, 32, 3, 2
SIZES = {"k": K, "n": N, "e": E, "f": F, "b": 5, "t": 4}
PRODUCTS = [
    "bk,kn->bn", "bk,kn", "bk,kn->nb", "kb,kn->bn", "k,kn->n", "tbk,kn->btn", "...k,kn->...n", "ebk,ekn->ebn",
    "bek,ekn->ebn", "kbe,ekn->bne", "etbk,ekn->tebn", "ek,ekn->en", "...bk,...kn->...bn", "bk,ekn->ebn", "bk,ekn->ben",
    "tbk,ekn->etbn", "febk,efkn->efbn", "fbk,efkn->efbn", "ebk,efkn->febn", "k,efkn->efn", "bk,efkn->bfen",
]  # fmt: skip


def of_numbers(shape: tuple[int, ...], rng: np.random.Generator) -> jaxgemm.QuantizedMatrix:
    """Products of these numbers, multiples of a quarter, with whole ones are exact."""
    *batch, k, n = shape
    scales = 2.0 ** rng.integers(-2, 1, (*batch, k // 32, n))
    return formats.from_codes(
        jnp.asarray(rng.integers(0, 16, shape), jnp.uint8), jnp.asarray(scales, jnp.float32), group_size=32
    )


def operands_of(subscripts: str, rng: np.random.Generator, **sizes: int) -> tuple[jax.Array, jaxgemm.QuantizedMatrix]:
    of_x, of_rhs = subscripts.partition("->")[0].split(",")
    of_rhs = of_rhs.replace("...", "e")
    of_x = of_x.replace("...", "e" if of_rhs[0] == "e" else "tb")
    x, w = (tuple((SIZES | sizes)[name] for name in names) for names in (of_x, of_rhs))
    return jnp.asarray(rng.integers(-4, 5, x), jnp.float32), of_numbers(w, rng)


@pytest.mark.parametrize("subscripts", PRODUCTS)
def test_products(subscripts: str, rng: np.random.Generator) -> None:
    x, matrix = operands_of(subscripts, rng)
    einsum = functools.partial(jnp.einsum, precision="highest")
    wanted = einsum(subscripts, x, matrix.dequantize())
    assert_same(jaxgemm.einsum(subscripts, x, matrix), wanted)
    inputs, arrow, result = subscripts.partition("->")
    swapped = ",".join(reversed(inputs.split(","))) + arrow + result
    assert_same(jaxgemm.einsum(swapped, matrix, x), einsum(swapped, matrix.dequantize(), x))
    gradient, expected = (
        jax.grad(lambda x, f=f, w=w: (f(subscripts, x, w) ** 2).sum())(x)
        for f, w in ((jaxgemm.einsum, matrix), (einsum, matrix.dequantize()))
    )
    assert_same(gradient, expected)
    half = x.astype(jnp.bfloat16)
    text = cuda_text(functools.partial(jaxgemm.einsum, subscripts, preferred_element_type=jnp.float32), half, matrix)
    assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
    assert "dot_general" not in text
    assert jaxgemm.einsum(subscripts, half, matrix, preferred_element_type=jnp.float32).dtype == np.float32


@pytest.mark.parametrize(
    ("subscripts", "x", "batch", "words"),
    [
        ("bn,kn->bk", (5, N), (), "contracts K of quantised weights"),
        ("bk,kn->b", (5, K), (), "keeps all others once"),
        ("bk,kn->n", (5, K), (), "keeps all others once"),
        ("ebk,ekn->bn", (E, 5, K), (E,), "keeps all others once"),
        ("bk,lm->bklm", (5, K), (), "contracts K of quantised weights"),
        ("kk,kn->kn", (K, K), (), "dequantize"),
        ("bk,n->bkn", (5, K), (), "dequantize"),
        ("bk,ekn->ebn", (5, K), (), "dequantize"),
        ("bkt,kn->btn", (5, K), (), "dequantize"),
        ("nk,kn->kn", (N, K), (), "dequantize"),
    ],
)
def test_what_is_no_product(
    subscripts: str, x: tuple[int, ...], batch: tuple[int, ...], words: str, rng: np.random.Generator
) -> None:
    matrix = of_numbers((*batch, K, N), rng)
    with pytest.raises(TypeError, match=words):
        jaxgemm.einsum(subscripts, jnp.ones(x), matrix)


def test_bad_operands(rng: np.random.Generator) -> None:
    x, matrix = operands_of("bk,kn->bn", rng)
    with pytest.raises(ValueError, match=r"'k' of 'bk,kn->bn' is 7 in the operand of shape \(5, 7\) and 64 in"):
        jaxgemm.einsum("bk,kn->bn", jnp.ones((5, 7)), matrix)
    with pytest.raises(TypeError, match="one of two operands"):
        jaxgemm.einsum("ab,bk,kn->an", jnp.ones((2, 5)), x, matrix)
    with pytest.raises(TypeError, match="after subscripts in a string"):
        jaxgemm.einsum(x, [0, 1], matrix, [1, 2], [0, 2])
    with pytest.raises(TypeError, match="as one operand"):
        jaxgemm.einsum("bk,kn->bn", matrix, matrix)
    with pytest.raises(TypeError, match="lhs of dtype int32"):
        jaxgemm.einsum("bk,kn->bn", x.astype(np.int32), matrix)
    with pytest.raises(ValueError, match="is none of this build's kernels for quantised weights"):
        jaxgemm.einsum("bk,kn->bn", x, matrix, kernel="wgmma")
    with pytest.raises(ValueError, match="'q'"):
        jaxgemm.einsum("bk,kn->bq", x, matrix)


@pytest.mark.parametrize(
    ("subscripts", "spec", "wanted"),
    [
        ("bk,kn->nb", P("a", None), P(None, "a")),
        ("bk,kn->bn", P(None, "a"), P("a", None)),
        ("ebk,ekn->bne", P("a", None, None), P(None, None, "a")),
        ("etbk,ekn->ebtn", P(None, None, "a", None), P(None, "a", None, None)),
        ("tbk,ekn->betn", P(None, "a", None), P("a", None, None, None)),
    ],
)
def test_out_sharding(subscripts: str, spec: P, wanted: P, rng: np.random.Generator) -> None:
    x, matrix = operands_of(subscripts, rng, b=8, e=4)
    mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        out = jaxgemm.einsum(subscripts, jax.device_put(x, spec), matrix, out_sharding=wanted)
    assert out.sharding.spec == wanted
    assert_same(np.asarray(out), np.asarray(jnp.einsum(subscripts, x, matrix.dequantize(), precision="highest")))
