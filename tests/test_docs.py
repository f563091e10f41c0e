"""The examples of docs/int4.md run, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from tests.helpers import ROOT
from tests.test_formats import write_checkpoint


def test_int4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    text = (ROOT / "docs" / "int4.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == text.count("```") // 2
    (tmp_path / "checkpoint").mkdir()
    write_checkpoint(tmp_path / "checkpoint", "gptq", rng, first=0)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    dense = jnp.matmul(names["x"], names["qw"].dequantize(), preferred_element_type=jnp.float32)
    # Sums of K products of bfloat16 numbers in float32, rounded once to bfloat16.
    size = jnp.matmul(abs(names["x"]), abs(names["qw"].dequantize()), preferred_element_type=jnp.float32)
    for matrix in (names["columns"], names["rows"]):
        error = abs(jaxgemm.matmul(names["x"], matrix, preferred_element_type=jnp.float32) - dense)
        assert (error <= 2 * names["qw"].k * 2.0**-24 * size).all()
    assert names["by_scales"].shape == names["qw"].scales.shape
    assert names["each"].shape == (3, 16, 256)
