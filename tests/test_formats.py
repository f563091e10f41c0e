"""jaxgemm.formats: words built from each format's published rule, one code at a time, and whole checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm.formats import (
    CheckpointError,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    load_safetensors,
    to_awq,
    to_compressed_tensors,
    to_gptq,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(shape: tuple[int, int]) -> np.ndarray:
    return np.zeros(shape, np.uint32)


def gptq_layer(
    rng: np.random.Generator, k: int, n: int, group: int, bits: int = 4, less: int = 1, shuffled: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A layer's tensors and its matrix, by the rule in words: w = scale[g] * (code - zero[g])."""
    each = 32 // bits
    codes, zeros = rng.integers(0, 2**bits, (k, n)), rng.integers(0, 2**bits, (k // group, n))
    scales = (rng.random((k // group, n)) + 0.5).astype(np.float16)
    g_idx = np.arange(k) // group
    if shuffled:
        g_idx = rng.permutation(g_idx)
    qweight, qzeros = words((k // each, n)), words((k // group, -(-n // each)))
    for row in range(k):
        for col in range(n):
            qweight[row // each, col] |= np.uint32(codes[row, col] << bits * (row % each))
    for g in range(k // group):
        for col in range(n):
            qzeros[g, col // each] |= np.uint32(((zeros[g, col] - less) % 2**bits) << bits * (col % each))
    matrix = np.stack([scales[g_idx[row]].astype(np.float64) * (codes[row] - zeros[g_idx[row]]) for row in range(k)])
    tensors = {"qweight": qweight.view(np.int32), "qzeros": qzeros.view(np.int32), "scales": scales}
    return tensors | {"g_idx": g_idx.astype(np.int32)}, matrix


def awq_layer(rng: np.random.Generator, k: int, n: int, group: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))
    scales = (rng.random((k // group, n)) + 0.5).astype(np.float16)
    packed = []
    for values in (codes, zeros):
        out = words((values.shape[0], n // 8))
        for row in range(values.shape[0]):
            for word in range(n // 8):
                for i in range(8):
                    out[row, word] |= np.uint32(values[row, 8 * word + AWQ_ORDER[i]] << 4 * i)
        packed.append(out.view(np.int32))
    matrix = np.repeat(scales.astype(np.float64), group, 0) * (codes - np.repeat(zeros, group, 0))
    return {"qweight": packed[0], "qzeros": packed[1], "scales": scales}, matrix


def compressed_layer(
    rng: np.random.Generator, k: int, n: int, group: int, bits: int = 4, symmetric: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Signed numbers plus 2^(bits - 1), along K; zero points along N."""
    each, half = 32 // bits, 2 ** (bits - 1)
    q, z = rng.integers(-half, half, (n, k)), rng.integers(-half, half, (n, k // group))
    scale = (rng.random((n, k // group)) + 0.5).astype(np.float16)
    packed, packed_z = words((n, -(-k // each))), words((-(-n // each), k // group))
    for row in range(n):
        for i in range(k):
            packed[row, i // each] |= np.uint32((q[row, i] + half) << bits * (i % each))
        for g in range(k // group):
            packed_z[row // each, g] |= np.uint32((z[row, g] + half) << bits * (row % each))
    tensors = {"weight_packed": packed.view(np.int32), "weight_scale": scale, "weight_shape": np.array([n, k])}
    if not symmetric:
        tensors["weight_zero_point"] = packed_z.view(np.int32)
    matrix = np.repeat(scale.astype(np.float64), group, 1) * (q - (0 if symmetric else np.repeat(z, group, 1)))
    return tensors, matrix.T


def assert_tensors_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("version", "less"), [("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(bits: int, version: Any, less: int, shuffled: bool, rng: np.random.Generator) -> None:
    tensors, exact = gptq_layer(rng, 96, 40, 32, bits, less, shuffled)
    matrix = from_gptq(**tensors, bits=bits, version=version)
    assert matrix.group_size == 32
    assert (matrix.permutation is not None) == shuffled
    np.testing.assert_array_equal(matrix.dequantize(np.float32), exact.astype(np.float32))
    assert_tensors_equal(to_gptq(matrix, version=version), tensors)


def test_gptq_symmetric_has_no_zeros(rng: np.random.Generator) -> None:
    tensors, _ = gptq_layer(rng, 64, 16, 32)
    tensors["qzeros"][:] = 0x77777777
    matrix = from_gptq(**tensors)
    assert matrix.symmetric
    assert_tensors_equal(to_gptq(matrix), tensors)
    del tensors["g_idx"]
    assert from_gptq(**tensors).permutation is None


def test_awq(rng: np.random.Generator) -> None:
    tensors, exact = awq_layer(rng, 96, 40, 32)
    matrix = from_awq(**tensors)
    np.testing.assert_array_equal(matrix.dequantize(np.float32), exact.astype(np.float32))
    assert_tensors_equal(to_awq(matrix), tensors)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "k"), [(4, 96), (4, 92), (8, 96), (8, 94)])
def test_compressed_tensors(bits: int, k: int, symmetric: bool, rng: np.random.Generator) -> None:
    tensors, exact = compressed_layer(rng, k, 37, k // 2, bits, symmetric)
    matrix = from_compressed_tensors(**tensors, bits=bits)
    assert matrix.shape == (k, 37)
    np.testing.assert_array_equal(matrix.dequantize(np.float32), exact.astype(np.float32))
    assert_tensors_equal(to_compressed_tensors(matrix), tensors)


def test_compressed_tensors_with_act_order(rng: np.random.Generator) -> None:
    tensors, _ = compressed_layer(rng, 64, 24, 16)
    g_idx = rng.permutation(np.arange(64) // 16).astype(np.int32)
    matrix = from_compressed_tensors(**tensors, weight_g_idx=g_idx)
    codes = np.stack([tensors["weight_packed"].view(np.uint32) >> np.uint32(4 * i) & 15 for i in range(8)], -1)
    q = codes.reshape(24, 64).astype(np.float64) - 8
    np.testing.assert_array_equal(matrix.dequantize(np.float32).T, q * tensors["weight_scale"][:, g_idx])
    assert_tensors_equal(to_compressed_tensors(matrix), tensors | {"weight_g_idx": g_idx})
    ignored = from_compressed_tensors(**tensors, weight_g_idx=np.full(64, -1, np.int32))
    assert ignored.permutation is None


def test_from_one_format_to_another(rng: np.random.Generator) -> None:
    tensors, _ = awq_layer(rng, 64, 32, 32)
    matrix = from_awq(**tensors)
    for there, back in ((to_gptq, from_gptq), (to_compressed_tensors, from_compressed_tensors)):
        assert_tensors_equal(to_awq(back(**there(matrix))), tensors)


def test_tensors_that_do_not_belong_together(rng: np.random.Generator) -> None:
    tensors, _ = gptq_layer(rng, 64, 16, 32)
    for change, error, match in [
        ({"qweight": tensors["qweight"].astype(np.int64)}, TypeError, "qweight is a matrix of int32, got int64"),
        ({"qweight": tensors["qweight"][:, :8]}, ValueError, r"scales has shape \(2, 16\), not \(2, 8\)"),
        ({"qzeros": tensors["qzeros"][:1]}, ValueError, r"qzeros has shape \(1, 2\), not \(2, 2\)"),
        ({"g_idx": tensors["g_idx"][:-1]}, ValueError, r"g_idx has shape \(63,\), not \(64,\)"),
        ({"g_idx": np.zeros(64, np.int32)}, ValueError, "g_idx does not name each of 2 groups 32 times"),
        (
            {"scales": tensors["scales"][:0], "qzeros": tensors["qzeros"][:0]},
            ValueError,
            "0 groups, which do not divide K=64",
        ),
        ({"bits": 3}, ValueError, "bits=3 is none of 4, 8"),
        ({"version": "gptq_v3"}, ValueError, "version='gptq_v3' is none of 'gptq', 'gptq_v2'"),
    ]:
        with pytest.raises(error, match=match):
            from_gptq(**(tensors | change))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_quantize_makes_comes_back(bits: int, symmetric: bool, rng: np.random.Generator) -> None:
    w = rng.standard_normal((96, 40)).astype(np.float16)
    matrix = jaxgemm.quantize(w, bits=bits, group_size=32, symmetric=symmetric)
    ways: list[tuple[Any, Any]] = [
        (to_gptq, functools.partial(from_gptq, bits=bits)),
        (functools.partial(to_gptq, version="gptq_v2"), functools.partial(from_gptq, bits=bits, version="gptq_v2")),
        (to_compressed_tensors, functools.partial(from_compressed_tensors, bits=bits)),
    ]
    for there, back in ways + ([(to_awq, from_awq)] if bits == 4 else []):
        found = back(**there(matrix))
        assert jax.tree.structure(found) == jax.tree.structure(matrix)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(matrix), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_matrices_that_a_format_cannot_hold(rng: np.random.Generator) -> None:
    def matrix(*shape: int, **options: Any) -> Any:
        return jaxgemm.quantize(rng.standard_normal(shape).astype(np.float16), **({"group_size": 32} | options))

    plain = matrix(64, 16)
    stacked, ragged = matrix(2, 64, 16), matrix(80, 16)
    floats = dataclasses.replace(plain, zeros=plain.scales)
    wide = dataclasses.replace(plain, zeros=np.full((2, 16), 16, np.uint8))
    permuted = dataclasses.replace(plain, permutation=np.arange(64)[::-1])
    for function, bad, match in [
        (to_gptq, stacked, "GPTQ cannot hold .* two dimensions"),
        (to_gptq, ragged, "GPTQ cannot hold .* whole groups"),
        (to_gptq, matrix(60, 16, group_size=30), "whole words along K"),
        (to_gptq, floats, "GPTQ has integer zeros of 4 bits"),
        (to_gptq, wide, "GPTQ has integer zeros of 4 bits"),
        (to_awq, stacked, "AWQ cannot hold .* two dimensions"),
        (to_awq, ragged, "AWQ cannot hold .* whole groups"),
        (to_awq, matrix(64, 16, bits=8), "AWQ cannot hold .* 4 bits"),
        (to_awq, matrix(64, 12), "AWQ cannot hold .* whole words along N"),
        (to_awq, floats, "AWQ has rows in order and zeros of 4 bits"),
        (to_awq, wide, "AWQ has rows in order and zeros of 4 bits"),
        (to_awq, permuted, "AWQ has rows in order and zeros of 4 bits"),
        (to_compressed_tensors, stacked, "pack-quantized cannot hold .* two dimensions"),
        (to_compressed_tensors, ragged, "pack-quantized cannot hold .* whole groups along K"),
        (to_compressed_tensors, floats, "pack-quantized has integer zeros of 4 bits"),
        (to_compressed_tensors, wide, "pack-quantized has integer zeros of 4 bits"),
    ]:
        with pytest.raises(ValueError, match=match):
            function(bad)


# --- checkpoints ------------------------------------------------------------------------------------------------------

CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
    },
}  # fmt: skip


def write_checkpoint(folder: Path, method: str, rng: np.random.Generator, first: int = 1) -> dict[str, np.ndarray]:
    """Two layers and a norm, in two files with an index; returns the layers' matrices."""
    from safetensors.numpy import save_file

    make = {"gptq": gptq_layer, "awq": awq_layer, "compressed-tensors": compressed_layer}[method]
    (folder / "config.json").write_text(json.dumps({"quantization_config": CONFIGS[method]}))
    matrices, weight_map = {}, {}
    for number in (1, 2):
        name, file = f"model.layers.{first + number - 1}.mlp.up_proj", f"model-0000{number}-of-00002.safetensors"
        tensors, matrices[name] = make(rng, 64, 32, 32)
        named = {f"{name}.{part}": np.ascontiguousarray(tensor) for part, tensor in tensors.items()}
        if number == 2:
            named["model.norm.weight"] = np.arange(5, dtype=np.float32)
        save_file(named, folder / file)
        weight_map |= dict.fromkeys(named, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return matrices


@pytest.mark.parametrize("method", CONFIGS)
def test_load_safetensors(method: str, tmp_path: Path, rng: np.random.Generator) -> None:
    matrices = write_checkpoint(tmp_path, method, rng)
    found = load_safetensors(tmp_path)
    assert found.keys() == {*matrices, "model.norm.weight"}
    for name, exact in matrices.items():
        np.testing.assert_array_equal(found[name].dequantize(np.float32), exact.astype(np.float32))
    np.testing.assert_array_equal(found["model.norm.weight"], np.arange(5))
    only = load_safetensors(tmp_path, names=lambda name: name.startswith("model.layers.2."))
    assert list(only) == ["model.layers.2.mlp.up_proj"]
    (tmp_path / "model.safetensors.index.json").unlink()
    assert load_safetensors(tmp_path).keys() == found.keys()


@pytest.mark.parametrize("method", CONFIGS)
def test_groups_that_are_not_those_of_the_configuration(method: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Half of the scales and zeros would else be those of groups twice as long."""
    write_checkpoint(tmp_path, method, rng)
    text = (tmp_path / "config.json").read_text()
    for size, error in ((16, "has groups of 32 rows, config.json says 16"), (-1, "config.json says -1")):
        (tmp_path / "config.json").write_text(text.replace('"group_size": 32', f'"group_size": {size}'))
        with pytest.raises(CheckpointError, match=error):
            load_safetensors(tmp_path)
    (tmp_path / "config.json").write_text(text.replace('"group_size": 32', '"group_size": null'))
    assert len(load_safetensors(tmp_path)) == 3


def test_damaged_checkpoints(tmp_path: Path, rng: np.random.Generator) -> None:
    from safetensors.numpy import load_file, save_file

    def fresh() -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write_checkpoint(folder, "gptq", rng)
        return folder

    folder = fresh()
    file = folder / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors is damaged"):
        load_safetensors(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"is not there, though model\.safetensors\.index\.json names it"):
        load_safetensors(folder)
    for change, match in [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.scales"),
            "tensors that .* names are missing, the first is .*scales",
        ),
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.qzeros": np.zeros((1, 1), np.int32)}),
            "layer 'model.layers.1.mlp.up_proj': qzeros has shape",
        ),
    ]:
        folder = fresh()
        file = folder / "model-00001-of-00002.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        with pytest.raises(CheckpointError, match=match):
            load_safetensors(folder)
    folder = fresh()
    (folder / "model.safetensors.index.json").unlink()
    tensors = load_file(folder / "model-00001-of-00002.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.qzeros")
    save_file(tensors, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="has g_idx, qweight, scales, but no qzeros"):
        load_safetensors(folder)
    for text, match in [
        ("{", "is not JSON"), ("[]", "holds no JSON object"), ("{}", "is not quantised"),
        ('{"quantization_config": {"quant_method": "fp8"}}', "quant_method='fp8' is none of 'gptq', 'awq'"),
        ('{"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}}', "version GEMM"),
        ('{"quantization_config": {"quant_method": "compressed-tensors", "format": "float"}}', "not float"),
    ]:  # fmt: skip
        folder = fresh()
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=match):
            load_safetensors(folder)
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "nowhere")
