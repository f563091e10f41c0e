"""A decoder like Llama 3's in plain JAX, with weights of 16 and of 4 bits: tokens per second and bytes of weights.

    python -m docs.examples.llama_decoder --layers 32 --batch 1 16

Weights are random. Those of the layers are quantised by ``jaxgemm.quantize`` and multiplied by ``jaxgemm.matmul``; the
embedding and the last product stay as they are, as in most quantised checkpoints. Products of 16 bits are jax.numpy's.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxgemm

ROPE_THETA, NORM_EPSILON = 500_000.0, 1e-5
PREFILLS = 4
"""In one program: starting it is then little of its time."""


@dataclass(frozen=True)
class Dims:
    """Sizes of a model."""

    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int


DIMS = {
    # Meta, "The Llama 3 Herd of Models", 2024, table 3.
    "llama-3-8b": Dims(hidden=4096, feed_forward=14336, heads=32, kv_heads=8, head=128, vocabulary=128256),
    "tiny": Dims(hidden=128, feed_forward=384, heads=4, kv_heads=2, head=32, vocabulary=512),
}
QUANTIZED = ("qkv", "out", "gate", "up", "down")
"""The weights of layers that are quantised; norms are not."""


class Cache(NamedTuple):
    """Keys and values (layers, batch, positions, heads, head) of the tokens so far."""

    keys: jax.Array
    values: jax.Array


# --- weights ----------------------------------------------------------------------------------------------------------


def random_weights(dims: Dims, layers: int, dtype: Any = jnp.bfloat16, seed: int = 0) -> dict[str, Any]:
    """Normal, of a size that keeps activations near 1; those of layers are stacked for ``lax.scan``."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 + len(QUANTIZED)))

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def matrix(key: jax.Array, shape: tuple[int, ...], k: int) -> jax.Array:
        return (jax.random.normal(key, shape, jnp.float32) / k**0.5).astype(dtype)

    def stacked(k: int, n: int) -> jax.Array:
        return lax.map(lambda key: matrix(key, (k, n), k), jax.random.split(next(keys), layers))

    joined = (dims.heads + 2 * dims.kv_heads) * dims.head
    of_layers = {
        "qkv": stacked(dims.hidden, joined),
        "out": stacked(dims.heads * dims.head, dims.hidden),
        "gate": stacked(dims.hidden, dims.feed_forward),
        "up": stacked(dims.hidden, dims.feed_forward),
        "down": stacked(dims.feed_forward, dims.hidden),
        "norm_1": jnp.ones((layers, dims.hidden), dtype),
        "norm_2": jnp.ones((layers, dims.hidden), dtype),
    }
    return {
        "layers": of_layers,
        "embedding": matrix(next(keys), (dims.vocabulary, dims.hidden), 1),
        "norm": jnp.ones(dims.hidden, dtype),
        "unembedding": matrix(next(keys), (dims.hidden, dims.vocabulary), dims.hidden),
    }


def _changed(weights: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    layers = {name: change(w) if name in QUANTIZED else w for name, w in weights["layers"].items()}
    return {**weights, "layers": layers}


def quantized(weights: Mapping[str, Any], group_size: int = 128) -> dict[str, Any]:
    """The weights with 4-bit layers; one layer at a time, as quantising takes several times their memory."""
    one = functools.partial(jaxgemm.quantize, group_size=group_size)
    return _changed(weights, jax.jit(lambda w: lax.map(one, w)))


def dequantized(weights: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`quantized` made, with arrays again."""
    return _changed(weights, lambda w: w.dequantize())


def nbytes(weights: Any) -> int:
    """Of all arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(weights))


# --- model ------------------------------------------------------------------------------------------------------------


def product(x: jax.Array, w: Any, activation: str | None = None) -> jax.Array:
    """``activation(x @ w)``, rounded once."""
    if isinstance(w, jaxgemm.QuantizedMatrix):
        return jaxgemm.matmul(x, w, activation=activation)
    if activation is None:
        return jnp.matmul(x, w)
    accumulator = jnp.matmul(x, w, preferred_element_type=jnp.float32)
    return getattr(jax.nn, activation)(accumulator).astype(x.dtype)


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """RMSNorm."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype) * weight


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary position embedding of (batch, tokens, heads, head)."""
    half = x.shape[-1] // 2
    frequencies = ROPE_THETA ** (-np.arange(half, dtype=np.float32) / half)
    angles = positions[:, None, None] * frequencies
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attention(q: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array) -> jax.Array:
    """Each token sees those up to its own position; several heads of q share one of keys and values."""
    batch, tokens, heads, head = q.shape
    grouped = q.reshape(batch, tokens, keys.shape[2], -1, head)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, keys, preferred_element_type=jnp.float32) / head**0.5
    seen = jnp.arange(keys.shape[1]) <= positions[:, None]
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(q.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", shares, values).reshape(batch, tokens, heads * head)


def forward(
    dims: Dims, weights: Mapping[str, Any], tokens: jax.Array, start: jax.Array | int, cache: Cache
) -> tuple[jax.Array, Cache]:
    """Logits (batch, vocabulary) behind the last of ``tokens`` (batch, tokens), which follow ``start`` earlier ones."""
    positions = start + jnp.arange(tokens.shape[1])

    def layer(x: jax.Array, scanned: tuple[dict[str, Any], Cache]) -> tuple[jax.Array, Cache]:
        w, cached = scanned
        joined = product(norm(x, w["norm_1"]), w["qkv"]).reshape(*x.shape[:2], -1, dims.head)
        q, k, v = jnp.split(joined, [dims.heads, dims.heads + dims.kv_heads], axis=2)
        keys = lax.dynamic_update_slice_in_dim(cached.keys, rotated(k, positions), start, axis=1)
        values = lax.dynamic_update_slice_in_dim(cached.values, v, start, axis=1)
        x = x + product(attention(rotated(q, positions), keys, values, positions), w["out"])
        inner = norm(x, w["norm_2"])
        x = x + product(product(inner, w["gate"], "silu") * product(inner, w["up"]), w["down"])
        return x, Cache(keys, values)

    x, cache = lax.scan(layer, weights["embedding"][tokens], (weights["layers"], cache))
    last = norm(x[:, -1], weights["norm"])
    return jnp.matmul(last, weights["unembedding"], preferred_element_type=jnp.float32), cache


def empty_cache(dims: Dims, weights: Mapping[str, Any], batch: int, positions: int) -> Cache:
    """Room for so many tokens."""
    layers = weights["layers"]["norm_1"].shape[0]
    zeros = jnp.zeros((layers, batch, positions, dims.kv_heads, dims.head), weights["norm"].dtype)
    return Cache(zeros, zeros)


# --- measurement ------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def prefills(dims: Dims, weights: Mapping[str, Any], tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """PREFILLS prompts, one after the other: each depends on the result of the one before it."""

    def one(_: Any, state: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
        tokens, cache = state
        logits, cache = forward(dims, weights, tokens, 0, cache)
        return (tokens + jnp.argmax(logits, -1)[:, None]) % dims.vocabulary, cache

    return lax.fori_loop(0, PREFILLS, one, (tokens, cache))


@functools.partial(jax.jit, static_argnums=(0, 5))
def decode(
    dims: Dims, weights: Mapping[str, Any], token: jax.Array, start: jax.Array, cache: Cache, steps: int
) -> jax.Array:
    """The tokens (steps, batch) that follow, each the likeliest one: all steps in one program."""

    def step(state: tuple[jax.Array, Cache], i: jax.Array) -> tuple[tuple[jax.Array, Cache], jax.Array]:
        token, cache = state
        logits, cache = forward(dims, weights, token[:, None], start + i, cache)
        token = jnp.argmax(logits, -1)
        return (token, cache), token

    return lax.scan(step, (token, cache), jnp.arange(steps))[1]


@dataclass(frozen=True)
class Row:
    """One kind of weights at one batch size."""

    weights: str
    batch: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    layer_bytes: int
    weight_bytes: int


def seconds(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median time of each call until its result is there; calls take turns."""
    for call in calls.values():
        jax.block_until_ready(call())  # compiles
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(call())
            samples[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in samples.items()}


def measure(
    dims: Dims, kinds: Mapping[str, Mapping[str, Any]], batch: int, prompt: int, steps: int, rounds: int
) -> list[Row]:
    """A row for each kind of weights."""
    tokens = jax.random.randint(jax.random.key(1), (batch, prompt), 0, dims.vocabulary)
    prefill_calls, decode_calls = {}, {}
    for kind, weights in kinds.items():
        cache = empty_cache(dims, weights, batch, prompt + steps)
        _, filled = prefills(dims, weights, tokens, cache)
        start = jnp.int32(prompt)
        prefill_calls[kind] = functools.partial(prefills, dims, weights, tokens, cache)
        decode_calls[kind] = functools.partial(decode, dims, weights, tokens[:, -1], start, filled, steps)
    prefill_s, decode_s = seconds(prefill_calls, rounds), seconds(decode_calls, rounds)
    return [
        Row(
            kind,
            batch,
            batch * steps / decode_s[kind],
            batch * prompt * PREFILLS / prefill_s[kind],
            nbytes(weights["layers"]),
            nbytes(weights),
        )
        for kind, weights in kinds.items()
    ]


def draw(path: Path, document: Mapping[str, Any]) -> None:
    """The plot of a result: bars of each kind of weights."""
    from benchmarks import plot

    rows = document["rows"]

    def panel(title: str, values: Mapping[str, float]) -> plot.Panel:
        dense = {kind: value for kind, value in values.items() if kind != "int4"}
        return plot.Panel(title, {"int4": values["int4"]}, dense, {})

    panels = [panel("layers' weights", {row["weights"]: row["layer_bytes"] / 1e9 for row in rows})]
    units = ["GB"]
    for what in ("decode", "prefill"):
        for batch in dict.fromkeys(row["batch"] for row in rows):
            rates = {row["weights"]: row[f"{what}_tokens_per_s"] for row in rows if row["batch"] == batch}
            panels.append(panel(f"{what}, batch {batch}", rates))
            units.append("tokens per second")
    plot.draw(path, document["device"], panels, f"{document['dims']}, layers: {document['layers']}", units)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m docs.examples.llama_decoder")
    parser.add_argument("--dims", choices=DIMS, default="llama-3-8b")
    parser.add_argument("--layers", type=int, default=1, help="Llama-3-8B has 32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    args = parser.parse_args(argv)
    dims = DIMS[args.dims]
    dense = random_weights(dims, args.layers)
    kinds = {"bfloat16": dense, "int4": quantized(dense, args.group_size)}
    document: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        **{name: getattr(args, name) for name in ("dims", "layers", "prompt", "steps", "group_size", "rounds")},
        "rows": [],
    }
    print(f"{document['device']}, {args.dims}, layers: {args.layers}, prompts of {args.prompt}, {args.steps} steps")
    for batch in args.batch:
        for row in measure(dims, kinds, batch, args.prompt, args.steps, args.rounds):
            document["rows"].append(asdict(row))
            print(
                f"{row.weights:>8}, batch {row.batch}: {row.decode_tokens_per_s:,.0f} tokens/s decoded, "
                f"{row.prefill_tokens_per_s:,.0f} tokens/s of prompts; layers' weights {row.layer_bytes / 1e9:.3g} GB, "
                f"all {row.weight_bytes / 1e9:.3g} GB"
            )
    if args.out:
        args.out.write_text(json.dumps(document, indent=2) + "\n")
    if args.plot:
        draw(args.plot, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
