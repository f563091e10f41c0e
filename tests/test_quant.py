"""jaxgemm.quantize and QuantizedMatrix: numbers, shapes, transforms and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._packing import BITS
from jaxgemm._quant import SCALE_DTYPES, from_codes, middle

SHAPES = [(128, 16), (256, 48), (130, 17), (64, 1), (1, 5), (3, 96, 20)]


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("dtype", SCALE_DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
def test_error_is_at_most_half_a_scale(
    bits: int, group_size: int, symmetric: bool, dtype: str, rng: np.random.Generator
) -> None:
    for shape in SHAPES:
        w = normal(rng, shape, dtype)
        matrix = jaxgemm.quantize(w, bits=bits, group_size=group_size, symmetric=symmetric)
        assert matrix.shape == shape
        assert matrix.dtype == w.dtype
        assert matrix.symmetric == symmetric
        rows = matrix.group_size
        assert rows == (shape[-2] if group_size == -1 else group_size)
        scales = np.repeat(np.asarray(matrix.scales, np.float64), rows, axis=-2)[..., : shape[-2], :]
        error = np.abs(np.asarray(matrix.dequantize(jnp.float32), np.float64) - np.asarray(w, np.float64))
        # What is nearest to the end of the range lies up to a whole scale from it: 7.5 is rounded to 7.
        slack = 1 + {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-20}[dtype] * 2**bits
        assert (error <= (0.5 if not symmetric else 0.51) * slack * scales + 1e-6).all()


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_back(bits: int, rng: np.random.Generator) -> None:
    """Of numbers that are codes times a scale already."""
    codes = rng.integers(0, 2**bits, (128, 24), np.uint8)
    codes[0], codes[64] = 0, 0  # so that each group has the largest magnitude
    scales = np.full((2, 24), 0.25, np.float32)
    matrix = from_codes(codes, scales, bits=bits, group_size=64)
    exact = (codes.astype(np.float64) - middle(bits)) * 0.25
    np.testing.assert_array_equal(matrix.dequantize(), exact)
    zeros = rng.integers(0, 2**bits, (2, 24), np.uint8)
    with_zeros = from_codes(codes, scales, zeros, bits=bits, group_size=64)
    np.testing.assert_array_equal(with_zeros.dequantize(), (codes - np.repeat(zeros, 64, 0).astype(np.float64)) * 0.25)
    floats = rng.standard_normal((2, 24)).astype(np.float32)
    np.testing.assert_allclose(
        from_codes(codes, scales, floats, bits=bits, group_size=64).dequantize(),
        (codes - np.repeat(floats, 64, 0).astype(np.float64)) * 0.25, rtol=1e-6, atol=1e-6,
    )  # fmt: skip
    order = rng.permutation(128).astype(np.int32)
    permuted = from_codes(codes, scales, bits=bits, group_size=64, permutation=order)
    np.testing.assert_array_equal(np.asarray(permuted.dequantize())[order], exact)


@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_is_no_worse_than_rtn(symmetric: bool, rng: np.random.Generator) -> None:
    w = jnp.asarray(rng.standard_t(3, (512, 64)).astype(np.float32))
    errors = {}
    for method in ("rtn", "mse"):
        matrix = jaxgemm.quantize(w, symmetric=symmetric, method=method)
        squares = np.square(np.asarray(matrix.dequantize()) - np.asarray(w)).reshape(4, 128, 64).sum(1)
        errors[method] = squares
    assert (errors["mse"] <= errors["rtn"] * (1 + 1e-5)).all()
    assert errors["mse"].sum() < 0.93 * errors["rtn"].sum()


def test_axis(rng: np.random.Generator) -> None:
    w = normal(rng, (96, 40))
    a, b = jaxgemm.quantize(w, group_size=32), jaxgemm.quantize(w.T, group_size=32, axis=-1)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_zeros_and_specials(rng: np.random.Generator) -> None:
    for symmetric in (True, False):
        matrix = jaxgemm.quantize(jnp.zeros((128, 3)), symmetric=symmetric)
        assert not np.asarray(matrix.dequantize()).any()
        w = normal(rng, (128, 3)).at[5, 1].set(jnp.nan)
        out = np.asarray(jaxgemm.quantize(w, symmetric=symmetric).dequantize())
        assert np.isnan(out[:, 1]).all(), "a group with a NaN has no scale"
        assert np.isfinite(out[:, [0, 2]]).all()
    assert jaxgemm.quantize(jnp.zeros((0, 3))).dequantize().shape == (0, 3)
    assert jaxgemm.quantize(jnp.zeros((3, 0))).dequantize().shape == (3, 0)


@pytest.mark.parametrize("dtype", SCALE_DTYPES)
def test_matmul(dtype: str, rng: np.random.Generator) -> None:
    matrix = jaxgemm.quantize(normal(rng, (96, 40)), group_size=32, scale_dtype=dtype)
    x = normal(rng, (2, 3, 96), dtype)
    out = jaxgemm.matmul(x, matrix)
    assert (out.shape, out.dtype) == ((2, 3, 40), x.dtype)
    np.testing.assert_array_equal(out, jaxgemm.matmul(x, matrix.dequantize(dtype)))
    np.testing.assert_array_equal(jax.jit(lambda x, w: x @ w)(x, matrix), out)
    fused = jaxgemm.matmul(x, matrix, bias=jnp.ones(40, dtype), activation="silu")
    np.testing.assert_array_equal(
        fused, jaxgemm.matmul(x, matrix.dequantize(dtype), bias=jnp.ones(40, dtype), activation="silu")
    )
    assert jaxgemm.matmul(x[0, 0], matrix).shape == (40,)


def test_transforms(rng: np.random.Generator) -> None:
    layers = jaxgemm.quantize(normal(rng, (4, 32, 32)), group_size=16, symmetric=False)
    x = normal(rng, (5, 32))
    scanned, _ = jax.lax.scan(lambda y, layer: (jaxgemm.matmul(y, layer), None), x, layers)
    by_hand = x
    for i in range(4):
        by_hand = jaxgemm.matmul(by_hand, jax.tree.map(lambda a, i=i: a[i], layers))
    np.testing.assert_allclose(scanned, by_hand, rtol=1e-5, atol=1e-5)
    experts = jax.vmap(jaxgemm.matmul, in_axes=(None, 0))(x, layers)
    np.testing.assert_allclose(experts, jnp.einsum("mk,ekn->emn", x, layers.dequantize()), rtol=1e-4, atol=1e-4)
    one = jax.tree.map(lambda a: a[0], layers)
    gradient = jax.grad(lambda y: jaxgemm.matmul(y, one).sum())(x)
    np.testing.assert_allclose(gradient, jnp.ones((5, 32)) @ one.dequantize().T, rtol=1e-4, atol=1e-4)
    by_scales = jax.grad(
        lambda s: jaxgemm.matmul(x, one.__class__(one.packed, s, one.zeros, None, 32, 32, 4, 16)).sum()
    )
    assert by_scales(one.scales).shape == one.scales.shape


def test_is_a_pytree(rng: np.random.Generator) -> None:
    matrix = jaxgemm.quantize(normal(rng, (64, 16)), group_size=32)
    leaves, tree = jax.tree.flatten(matrix)
    assert [x.shape for x in leaves] == [(1, 1, 512), (2, 16)]
    assert isinstance(jax.tree.unflatten(tree, leaves), jaxgemm.QuantizedMatrix)
    assert tree == jax.tree.structure(jaxgemm.quantize(normal(rng, (64, 16)), group_size=32))
    assert tree != jax.tree.structure(jaxgemm.quantize(normal(rng, (64, 16)), group_size=64))
    assert tree != jax.tree.structure(jaxgemm.quantize(normal(rng, (64, 16)), group_size=32, symmetric=False))
    assert matrix.nbytes == 512 + 2 * 16 * 4
    assert matrix.astype(jnp.bfloat16).dtype == jnp.bfloat16
    for text in (
        repr(matrix),
        repr(jax.tree.map(lambda x: x.shape, matrix)),
        repr(jax.eval_shape(lambda m: m, matrix)),
    ):
        assert text.startswith("QuantizedMatrix(K=64, N=16, 4 bits, groups of 32, symmetric, scales ")


def test_bad_input(rng: np.random.Generator) -> None:
    w = normal(rng, (64, 16))
    for error, match, kwargs in [
        (ValueError, "bits=3 is none of 4, 8", {"bits": 3}),
        (ValueError, "group_size=0 is no positive", {"group_size": 0}),
        (ValueError, "group_size=32.0 is no positive", {"group_size": 32.0}),
        (ValueError, "axis=0 is none|axis=1 is none", {"axis": 2}),
        (ValueError, "method='gptq' is none of 'rtn', 'mse'", {"method": "gptq"}),
        (TypeError, "scales of dtype int8", {"scale_dtype": jnp.int8}),
    ]:
        with pytest.raises(error, match=match if "axis" not in kwargs else "axis=2 is none of the last two"):
            jaxgemm.quantize(w, **kwargs)
    with pytest.raises(TypeError, match="takes floating-point matrices, got int32"):
        jaxgemm.quantize(jnp.ones((4, 4), jnp.int32))
    matrix = jaxgemm.quantize(w)
    with pytest.raises(TypeError, match="K is 64"):
        jaxgemm.matmul(jnp.ones((3, 65)), matrix)
    with pytest.raises(TypeError, match="convert lhs to one of float16"):
        jaxgemm.matmul(jnp.ones((3, 64), jnp.int8), matrix)
    with pytest.raises(TypeError, match="takes quantised weights as rhs"):
        jaxgemm.matmul(matrix, jnp.ones((16, 3)))
    with pytest.raises(ValueError, match=r"scales of shape \(3, 16\) do not fit"):
        from_codes(np.zeros((64, 16), np.uint8), np.ones((3, 16), np.float32), group_size=32)
    with pytest.raises(TypeError, match=r"codes are unsigned integers, int4 or int8 .*, not int32"):
        from_codes(np.zeros((64, 16), np.int32), np.ones((1, 16), np.float32))
