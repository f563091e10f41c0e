"""QuantizedMatrix as a pytree: donated, scanned, kept in checkpoints; of codes that exist already; what it refuses."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._packing import LAYOUT_VERSION
from jaxgemm._quant import codes_of
from jaxgemm.formats import from_codes
from tests.helpers import assert_same

K, N = 96, 40
KINDS: dict[str, dict[str, Any]] = {
    "symmetric": {},
    "integer zeros": {"symmetric": False},
    "8 bits": {"bits": 8},
    "whole columns": {"group_size": -1},
    "bfloat16 scales": {"scale_dtype": jnp.bfloat16},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def weights(rng: np.random.Generator, *batch: int, **options: Any) -> Any:
    w = jnp.asarray(rng.standard_normal((*batch, K, N)), jnp.float32)
    return jaxgemm.quantize(w, **({"group_size": 32} | options))


def with_float_zeros(rng: np.random.Generator, matrix: Any) -> Any:
    zeros = jnp.asarray(rng.uniform(6, 9, matrix.scales.shape), matrix.dtype)
    return dataclasses.replace(matrix, zeros=zeros)


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(assert_same, a, b)


@every_kind
def test_donation(kind: str, rng: np.random.Generator) -> None:
    matrix = weights(rng, **KINDS[kind])
    leaves, wanted = jax.tree.leaves(matrix), matrix.dequantize(jnp.float32) * 2
    doubled = jax.jit(lambda m: dataclasses.replace(m, scales=m.scales * 2), donate_argnums=0)(matrix)
    assert all(x.is_deleted() for x in leaves)
    assert_same(doubled.dequantize(jnp.float32), wanted)


@every_kind
def test_scan_over_layers_with_gradients(kind: str, rng: np.random.Generator) -> None:
    layers = weights(rng, 3, **KINDS[kind])
    x, back = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((4, K), (N, K)))

    def run(x: Any, scales: Any, product: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(product(x, w) @ back / K), None

        body = jax.checkpoint(layer)
        return jax.lax.scan(body, x, dataclasses.replace(layers, scales=scales))[0].sum()

    def dense(x: Any, w: Any) -> Any:
        return jnp.matmul(x, w.dequantize(jnp.float32), precision="highest")

    got, wanted = (
        jax.jit(jax.value_and_grad(lambda x, s, f=f: run(x, s, f), (0, 1)))(x, layers.scales)
        for f in (jaxgemm.matmul, dense)
    )
    # Sums of K float32 products in another order, through three layers; scales of bfloat16 have gradients of bfloat16.
    rtol = 2.0**-7 if layers.dtype == jnp.bfloat16 else 1e-4
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5 * max(1.0, np.abs(b).max()))
    assert str(jax.make_jaxpr(lambda x: run(x, layers.scales, jaxgemm.matmul))(x)).count("jaxgemm_mixed_gemm") == 1


@every_kind
def test_vmap_over_experts(kind: str, rng: np.random.Generator) -> None:
    experts = weights(rng, 4, **KINDS[kind])
    x = jnp.asarray(rng.integers(-7, 8, (4, 5, K)), jnp.float32)
    got = jax.jit(jax.vmap(jaxgemm.matmul))(x, experts)
    one_by_one = [jaxgemm.matmul(x[i], jax.tree.map(lambda a, i=i: a[i], experts)) for i in range(4)]
    # Sums of K products of at most 7 and a weight in float32, in any order.
    bound = 2 * K * 2.0**-24 * np.matmul(np.abs(x), np.abs(experts.dequantize(jnp.float32)))
    assert (np.abs(got - np.stack(one_by_one)) <= bound).all()


@every_kind
def test_orbax(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    params = {"layers": [weights(rng, **KINDS[kind]), weights(rng, 2, **KINDS[kind])], "norm": jnp.ones(5)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", params)
        checkpointer.wait_until_finished()
        like = jax.eval_shape(lambda: params)
        same(checkpointer.restore(tmp_path / "step", like), params)
        newer = like | {"layers": [dataclasses.replace(m, layout=LAYOUT_VERSION + 1) for m in like["layers"]]}
        with pytest.raises(ValueError, match=rf"packed_v{LAYOUT_VERSION + 1}.* not found .*packed_v{LAYOUT_VERSION}"):
            checkpointer.restore(tmp_path / "step", newer)


def test_npz_by_key_paths(tmp_path: Path, rng: np.random.Generator) -> None:
    params = {"up": weights(rng), "down": weights(rng, symmetric=False)}
    flat, tree = jax.tree_util.tree_flatten_with_path(params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}
    assert list(named) == [
        "down/packed_v1", "down/scales", "down/zeros", "up/packed_v1", "up/scales",
    ]  # fmt: skip
    np.savez(tmp_path / "params.npz", **named)
    with np.load(tmp_path / "params.npz") as file:
        same(jax.tree.unflatten(tree, [jnp.asarray(file[name]) for name in named]), params)


def test_other_layouts_are_refused(rng: np.random.Generator) -> None:
    matrix = weights(rng)
    same(pickle.loads(pickle.dumps(matrix)), matrix)
    newer = dataclasses.replace(matrix, layout=LAYOUT_VERSION + 1)
    assert jax.tree.structure(newer) != jax.tree.structure(matrix)
    for use in (lambda m: jaxgemm.matmul(jnp.ones((2, K)), m), lambda m: m.dequantize()):
        with pytest.raises(ValueError, match=f"codes packed in layout {LAYOUT_VERSION + 1} cannot be read by this"):
            use(newer)


def test_arrays_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    matrix = weights(rng, symmetric=False)
    for change in [
        {"packed": matrix.packed[:-1]},
        {"packed": matrix.packed[..., :-1]},
        {"packed": matrix.packed[0]},
        {"packed": matrix.packed[None]},
        {"scales": matrix.scales[:-1]},
        {"scales": matrix.scales[0]},
        {"zeros": matrix.zeros[:, :-1]},
        {"permutation": jnp.arange(K - 1)},
        {"bits": 8},
        {"k": K + 64},
        {"n": N - 1},
    ]:
        changed = dataclasses.replace(matrix, **change)
        for use in (lambda m: jaxgemm.matmul(jnp.ones((2, m.k)), m), lambda m: m.dequantize()):
            with pytest.raises(ValueError, match=r"arrays of shapes packed \(.*are no matrix of K=\d+, N=\d+"):
                use(changed)
    cast = jax.tree.map(lambda a: a.astype(jnp.bfloat16), matrix)
    with pytest.raises(TypeError, match=r"packed codes of bfloat16 instead of uint8: .* by \.astype"):
        jaxgemm.matmul(jnp.ones((2, K)), cast)


def test_astype(rng: np.random.Generator) -> None:
    matrix = with_float_zeros(rng, weights(rng))
    half = matrix.astype(jnp.bfloat16)
    assert (half.dtype, half.zeros.dtype, half.packed.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.uint8)
    assert_same(half.scales, matrix.scales.astype(jnp.bfloat16))
    assert half.dequantize().dtype == jnp.bfloat16
    integer = weights(rng, symmetric=False).astype(jnp.float16)
    assert (integer.dtype, integer.zeros.dtype) == (jnp.float16, jnp.uint8)
    with pytest.raises(TypeError, match="scales of dtype int8 are none of float16, bfloat16, float32"):
        matrix.astype(jnp.int8)


def test_structure_and_repr(rng: np.random.Generator) -> None:
    structures = {
        name: jax.tree.structure(m)
        for name, m in {
            "plain": weights(rng), "8 bits": weights(rng, bits=8), "groups": weights(rng, group_size=64),
            "zeros": weights(rng, symmetric=False),
            "permuted": dataclasses.replace(weights(rng), permutation=jnp.arange(K)),
            "smaller": from_codes(np.zeros((K, N - 1), np.uint8), np.ones((3, N - 1), np.float32), group_size=32),
        }.items()
    }  # fmt: skip
    assert len(set(structures.values())) == len(structures)
    assert jax.tree.structure(weights(rng)) == structures["plain"]
    assert jax.tree.structure(weights(rng, 2)) == structures["plain"], "leading dimensions are those of the arrays"
    text = repr(dataclasses.replace(weights(rng, 2, symmetric=False), permutation=jnp.zeros((2, K), jnp.int32)))
    assert text == (
        "QuantizedMatrix(K=96, N=40, 4 bits, groups of 32, zeros uint8[2, 3, 40], scales float32[2, 3, 40], packed "
        "uint8[2, 3, 2, 512], permutation int32[2, 96])"
    )
    assert jax.tree.map(lambda a: a + 0, weights(rng)).shape == (K, N)


@pytest.mark.parametrize("bits", [4, 8])
def test_signed_and_narrow_codes(bits: int, rng: np.random.Generator) -> None:
    half, groups = 2 ** (bits - 1), (K // 32, N)
    numbers, points = rng.integers(-half, half, (K, N)), rng.integers(-half, half, groups)
    scales = np.asarray(2.0 ** rng.integers(-2, 3, groups), np.float32)
    signed, unsigned = (jnp.int4, jnp.uint4) if bits == 4 else (jnp.int8, jnp.uint8)
    rows = np.repeat(scales, 32, 0)
    options = {"bits": bits, "group_size": 32}
    for codes in (jnp.asarray(numbers, signed), jnp.asarray(numbers + half, unsigned)):
        matrix = from_codes(codes, scales, **options)
        np.testing.assert_array_equal(matrix.dequantize(), numbers * rows)
        np.testing.assert_array_equal(codes_of(matrix), numbers + half)
        zeros = points.astype(np.int32) if codes.dtype == signed else points + half
        shifted = from_codes(codes, scales, zeros, **options)
        np.testing.assert_array_equal(shifted.dequantize(), (numbers - np.repeat(points, 32, 0)) * rows)
        same(jax.jit(lambda c, s: from_codes(c, s, **options))(codes, scales), matrix)


def test_codes_that_cannot_be(rng: np.random.Generator) -> None:
    scales = np.ones((3, N), np.float32)
    codes = rng.integers(0, 16, (K, N), np.uint8)
    too_large = codes.copy()
    too_large[5, 7] = 16
    for changed, error, match in [
        ((too_large, scales), ValueError, "codes of 4 bits are below 16, the largest of these is 16"),
        ((codes.astype(np.int8), scales), TypeError, "codes of dtype int8 have not bits=4: convert them to int4"),
        ((codes.astype(np.float32), scales), TypeError, "codes are unsigned integers, int4 or int8"),
        ((codes[0], scales), TypeError, r"two or more dimensions, not uint8\[40\]"),
        ((codes, scales.astype(np.int32)), TypeError, "scales of dtype int32 are none of"),
        ((codes, scales, scales[:2]), ValueError, r"zeros of shape \(2, 40\) do not fit"),
        ((jnp.asarray(codes - 8.0, jnp.int4), scales, scales), TypeError, "zeros of float32 go with unsigned codes"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            from_codes(*changed, group_size=32)
    with pytest.raises(ValueError, match=r"a permutation of the rows of \(96, 40\) has shape \(96,\), not \(95,\)"):
        from_codes(codes, scales, group_size=32, permutation=np.arange(95))
