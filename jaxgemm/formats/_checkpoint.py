"""Quantised checkpoints in folders: config.json and safetensors files, as the Hugging Face hub has them."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm._quant import QuantizedMatrix
from jaxgemm.formats._awq import from_awq
from jaxgemm.formats._compressed_tensors import from_compressed_tensors
from jaxgemm.formats._gptq import from_gptq

Tensors = Mapping[str, np.ndarray]
Leaf = QuantizedMatrix | jax.Array

# By quant_method: the tensors of one layer, those that it cannot do without first.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gptq": (("qweight", "qzeros", "scales"), ("g_idx",)),
    "awq": (("qweight", "qzeros", "scales"), ()),
    "compressed-tensors": (("weight_packed", "weight_scale"), ("weight_zero_point", "weight_shape", "weight_g_idx")),
}


class CheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or of a kind that this package does not read; the message names the file."""


def load_safetensors(path: Any, *, names: Callable[[str], bool] | None = None) -> dict[str, Leaf]:
    """Reads a folder with a quantised checkpoint: GPTQ, AWQ, or compressed-tensors "pack-quantized".

    Args:
      path: a folder with ``config.json``, whose ``quantization_config`` says how weights are stored, and either
        ``model.safetensors.index.json`` or ``*.safetensors`` files.
      names: None to read all, or says of a tensor's name whether it is wanted; a layer is wanted if all of its tensors
        are.

    Returns:
      A :class:`jaxgemm.QuantizedMatrix` (K, N) for each quantised layer, by the layer's name, and an array for every
      other tensor, by its own; e.g. ``{"model.layers.0.mlp.up_proj": QuantizedMatrix(...), "model.norm.weight": ...}``.

    Raises:
      FileNotFoundError: the folder, its configuration, or a file that the index names is not there.
      CheckpointError: a file that is damaged, a quantisation that is none of the above, or a layer whose tensors are
        missing, or fit neither together nor the configuration.
      ImportError: the package ``safetensors`` is not installed.
    """
    folder = Path(path)
    method, options, group_size = _method(_json(folder / "config.json"), folder / "config.json")
    tensors = _read(folder, names or (lambda _: True))
    required, optional = _PARTS[method]
    layers: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    found: dict[str, Leaf] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in required + optional:
            layers[layer][part] = tensor
        else:
            found[name] = jnp.asarray(tensor)
    for layer, parts in layers.items():
        if missing := [part for part in required if part not in parts]:
            raise CheckpointError(f"{folder}: layer {layer!r} has {', '.join(parts)}, but no {', '.join(missing)}")
        try:
            matrix = found[layer] = _matrix(method, parts, options)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder}: layer {layer!r}: {error}") from error
        wanted = matrix.k if group_size in (None, -1) else min(group_size, matrix.k)
        if group_size is not None and matrix.group_size != wanted:
            raise CheckpointError(
                f"{folder}: layer {layer!r} has groups of {matrix.group_size} rows, config.json says {group_size}: "
                "scales are missing, or there are too many"
            )
    return found


def _matrix(method: str, parts: Tensors, options: Mapping[str, Any]) -> QuantizedMatrix:
    if method == "gptq":
        return from_gptq(**parts, **options)
    if method == "awq":
        return from_awq(**parts)
    return from_compressed_tensors(**parts, **options)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return document


def _group_size(about: Mapping[str, Any]) -> int | None:
    """That of all layers, -1 for whole columns; None where the configuration does not say, or layers differ."""
    size = about.get("group_size")
    if size is None and about.get("strategy") == "channel":
        size = -1
    return size if type(size) is int and not about.get("dynamic") else None


def _method(config: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any], int | None]:
    """What stores the weights, the options of the function that reads one layer, and the size of groups."""
    about = config.get("quantization_config")
    if not isinstance(about, dict):
        raise CheckpointError(f"{path} has no quantization_config: this checkpoint is not quantised")
    method = about.get("quant_method")
    if method == "gptq":
        options = {"bits": about.get("bits"), "version": about.get("checkpoint_format", "gptq")}
        return method, options, _group_size(about)
    if method == "awq":
        if (about.get("bits"), str(about.get("version", "gemm")).lower()) != (4, "gemm"):
            raise CheckpointError(
                f"{path}: of AWQ 4 bits in version GEMM are read, not {about.get('bits')}, {about.get('version')}"
            )
        return method, {}, _group_size(about)
    if method == "compressed-tensors":
        groups = about.get("config_groups")
        weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
        bits = {group.get("num_bits") for group in weights}
        if about.get("format") != "pack-quantized" or len(bits) != 1:
            raise CheckpointError(
                f"{path}: of compressed-tensors pack-quantized with one number of bits is read, not "
                f"{about.get('format')}, {sorted(map(str, bits))}"
            )
        sizes = {_group_size(group) for group in weights}
        return method, {"bits": bits.pop()}, sizes.pop() if len(sizes) == 1 else None
    raise CheckpointError(f"{path}: quant_method={method!r} is none of {', '.join(map(repr, _PARTS))}")


def _read(folder: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = _json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise CheckpointError(f"{index} has no weight_map from names of tensors to names of files")
        expected = {name: folder / Path(file).name for name, file in weight_map.items() if wanted(name)}
        files = sorted(set(expected.values()))
    else:
        expected, files = None, sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{folder} has neither {index.name} nor *.safetensors files")
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file} is not there, though {index.name} names it")
        try:
            with safe_open(file, framework="flax") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                    if wanted(name):
                        tensors[name] = np.asarray(opened.get_tensor(name))
        except SafetensorError as error:
            raise CheckpointError(f"{file} is damaged: {error}") from error
    if expected is not None and (missing := sorted(expected.keys() - tensors.keys())):
        raise CheckpointError(f"{folder}: tensors that {index.name} names are missing, the first is {missing[0]!r}")
    return tensors
