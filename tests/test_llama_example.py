"""docs/examples/llama_decoder.py at small sizes, on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import shapes
from docs.examples import llama_decoder as llama
from jaxgemm._main_job import LLAMA_8B_FEED_FORWARD, LLAMA_8B_HIDDEN

TINY = llama.DIMS["tiny"]
LAYERS, BATCH, TOKENS = 2, 3, 12


@functools.cache
def dense_weights(dtype: Any) -> Any:
    return llama.random_weights(TINY, LAYERS, dtype)


forward = jax.jit(llama.forward, static_argnums=0)


def tokens_of(batch: int, tokens: int) -> jax.Array:
    return jax.random.randint(jax.random.key(7), (batch, tokens), 0, TINY.vocabulary)


def logits_of(weights: Any) -> np.ndarray:
    cache = llama.empty_cache(TINY, weights, BATCH, TOKENS)
    logits, _ = forward(TINY, weights, tokens_of(BATCH, TOKENS), 0, cache)
    assert logits.shape == (BATCH, TINY.vocabulary) and logits.dtype == jnp.float32
    return np.asarray(logits, np.float64)


def with_arrays_of(weights: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), weights)


def test_int4_logits_are_those_of_the_dequantised_weights_in_float32() -> None:
    """Sums of at most 384 numbers in another order, nine products deep, move no logit (their size is 1) by 1e-4."""
    weights = llama.quantized(dense_weights(jnp.float32), 32)
    wanted = logits_of(llama.dequantized(weights))
    assert 0.5 < wanted.std() < 2
    np.testing.assert_allclose(logits_of(weights), wanted, rtol=0, atol=1e-4)


def test_int4_logits_are_near_those_of_the_dequantised_weights_in_bfloat16() -> None:
    """Both round to bfloat16 at the same places, maybe another way: each of their errors against float32 is a draw of
    the same distribution, so that none of int4's is more than twice the largest of the other's.
    """
    weights = llama.quantized(dense_weights(jnp.bfloat16), 32)
    dense = llama.dequantized(weights)
    exact = logits_of(with_arrays_of(dense, jnp.float32))
    bound = 2 * abs(logits_of(dense) - exact).max()
    assert 0 < bound < 0.2
    assert (abs(logits_of(weights) - exact) <= bound).all()
    down = weights["layers"]["down"]
    wrong = dataclasses.replace(down, scales=down.scales[:, ::-1])
    assert abs(logits_of({**weights, "layers": {**weights["layers"], "down": wrong}}) - exact).max() > bound


@pytest.mark.parametrize("kind", ["dense", "int4"])
def test_decoding_behind_a_prompt_is_a_longer_prompt(kind: str) -> None:
    """In float32, where other sums' orders are all that differs."""
    weights = dense_weights(jnp.float32)
    weights = llama.quantized(weights, 64) if kind == "int4" else weights
    tokens, prompt = tokens_of(BATCH, TOKENS), TOKENS - 2
    empty = llama.empty_cache(TINY, weights, BATCH, TOKENS + 3)
    logits, cache = forward(TINY, weights, tokens[:, :prompt], 0, empty)
    for i in range(prompt, TOKENS):
        logits, cache = forward(TINY, weights, tokens[:, i : i + 1], i, cache)
        longer, filled = forward(TINY, weights, tokens[:, : i + 1], 0, empty)
        np.testing.assert_allclose(logits, longer, rtol=0, atol=1e-4)
        np.testing.assert_allclose(cache.keys, filled.keys, rtol=0, atol=1e-4)
    forgotten, _ = forward(TINY, weights, tokens[:, -1:], TOKENS - 1, empty)
    assert abs(forgotten - longer).max() > 0.1  # the cache is used


def test_the_loop_decodes_the_likeliest_tokens() -> None:
    weights = dense_weights(jnp.float32)
    tokens = tokens_of(BATCH, 5)
    logits, cache = forward(TINY, weights, tokens, 0, llama.empty_cache(TINY, weights, BATCH, 9))
    first = jnp.argmax(logits, -1)
    found = llama.decode(TINY, weights, first, jnp.int32(5), cache, 2)
    for step in range(2):
        tokens = jnp.concatenate([tokens, (first if step == 0 else found[step - 1])[:, None]], 1)
        empty = llama.empty_cache(TINY, weights, BATCH, 9)
        np.testing.assert_array_equal(found[step], jnp.argmax(forward(TINY, weights, tokens, 0, empty)[0], -1))


def test_products_of_layers_are_quantised_calls() -> None:
    """Five in the program of a layer, which is scanned; the sixth product is that of the dense unembedding."""
    weights = llama.quantized(dense_weights(jnp.bfloat16))
    cache = llama.empty_cache(TINY, weights, 1, 4)
    text = str(jax.make_jaxpr(llama.forward, static_argnums=0)(TINY, weights, tokens_of(1, 4), 0, cache))
    assert text.count("jaxgemm_mixed_gemm[") == 5 and text.count("activation='silu'") == 1


def test_dimensions_are_those_that_are_measured_elsewhere() -> None:
    dims = llama.DIMS["llama-3-8b"]
    assert (dims.hidden, dims.feed_forward) == (LLAMA_8B_HIDDEN, LLAMA_8B_FEED_FORWARD)
    joined = (dims.heads + 2 * dims.kv_heads) * dims.head
    assert {(joined, dims.hidden), (dims.hidden, dims.heads * dims.head)} <= set(shapes.INT4_NK)
    assert {(dims.hidden, dims.feed_forward), (2 * dims.feed_forward, dims.hidden)} <= set(shapes.INT4_NK)


def test_the_example_runs_and_writes_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    sizes = ["--dims", "tiny", "--batch", "2", "--prompt", "4", "--steps", "3", "--rounds", "1"]
    assert llama.main([*sizes, "--out", str(out), "--plot", str(plot)]) == 0
    document = json.loads(out.read_text())
    rows = [(row["weights"], row["batch"]) for row in document["rows"]]
    assert rows == [("bfloat16", 2), ("int4", 2)]
    dense, packed = (row["layer_bytes"] for row in document["rows"])
    norms = 2 * 2 * TINY.hidden
    assert (packed - norms) / (dense - norms) == pytest.approx((4 + 16 / 128) / 16)
    assert all(row["decode_tokens_per_s"] > 0 and row["prefill_tokens_per_s"] > 0 for row in document["rows"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    text = plot.read_text()
    assert "decode, batch 2" in text and "tokens per second" in text and "TFLOP/s" not in text
