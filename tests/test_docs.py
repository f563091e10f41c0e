"""The examples of docs/int4.md and docs/sharding.md run, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxgemm
from tests.helpers import ROOT
from tests.test_formats import write_checkpoint


def blocks_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == text.count("```") // 2
    return blocks


def test_sharding() -> None:
    """Every way of splitting the layer gives the same but for the order of sums."""
    names: dict[str, Any] = {}
    for block in blocks_of("sharding.md"):
        exec(block, names)
    for results, weights in (("yzes", "gate up down"), (("y4", "z4", "e4", "s4"), "q_gate q_up q_down")):
        gate, up, down = (
            names[name].dequantize() if name.startswith("q_") else names[name] for name in weights.split()
        )
        hidden = jax.nn.silu(jnp.matmul(names["x"], gate)) * jnp.matmul(names["x"], up)
        wanted = jnp.matmul(hidden, down, preferred_element_type=jnp.float32)
        for name in results:
            error = names[name].astype(jnp.float32) - wanted
            # Roundings of bfloat16, of 2**-9 at most each: of three factors of hidden, and of every device's sums.
            assert np.linalg.norm(error) <= 2.0**-6 * np.linalg.norm(wanted), name
    assert jax.typeof(names["e4"]).sharding.spec == P("model", None)


def test_int4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    (tmp_path / "checkpoint").mkdir()
    write_checkpoint(tmp_path / "checkpoint", "gptq", rng, first=0)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks_of("int4.md"):
        exec(block, names)
    dense = jnp.matmul(names["x"], names["qw"].dequantize(), preferred_element_type=jnp.float32)
    # Sums of K products of bfloat16 numbers in float32, rounded once to bfloat16.
    size = jnp.matmul(abs(names["x"]), abs(names["qw"].dequantize()), preferred_element_type=jnp.float32)
    for matrix in (names["columns"], names["rows"]):
        error = abs(jaxgemm.matmul(names["x"], matrix, preferred_element_type=jnp.float32) - dense)
        assert (error <= 2 * names["qw"].k * 2.0**-24 * size).all()
    assert names["by_scales"].shape == names["qw"].scales.shape
    assert names["each"].shape == (3, 16, 256)
