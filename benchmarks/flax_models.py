"""Models of Flax as their users write them, without a word of jaxgemm: what ``benchmarks.installed`` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Block(nn.Module):
    """A pre-norm transformer block."""

    width: int
    heads: int
    dtype: Any
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0]) if self.causal else None
        h = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads, dtype=self.dtype)(h, mask=mask)
        h = nn.LayerNorm(dtype=self.dtype)(x)
        h = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype)(h))
        return x + nn.Dense(self.width, dtype=self.dtype)(h)


class LanguageModel(nn.Module):
    """GPT-2's sizes, among them a vocabulary that is a multiple of nothing; its head has weights of its own."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        x = x + self.param("position", nn.initializers.normal(0.02), (tokens.shape[1], self.width)).astype(self.dtype)
        for _ in range(self.layers):
            x = Block(self.width, self.heads, self.dtype, causal=True)(x)
        return nn.Dense(self.vocabulary, use_bias=False, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


class VisionTransformer(nn.Module):
    """Patches of 16 x 16, a class token, and 1,000 classes: 197 tokens an image."""

    layers: int
    width: int
    heads: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (16, 16), strides=(16, 16), dtype=self.dtype)(images.astype(self.dtype))
        x = x.reshape(x.shape[0], -1, self.width)
        token = self.param("token", nn.initializers.zeros, (1, 1, self.width)).astype(self.dtype)
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, self.width)), x], axis=1)
        x = x + self.param("position", nn.initializers.normal(0.02), x.shape[1:]).astype(self.dtype)
        for _ in range(self.layers):
            x = Block(self.width, self.heads, self.dtype, causal=False)(x)
        return nn.Dense(1000, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)[:, 0])


class Perceptron(nn.Module):
    """A regression in float32 at HIGHEST, as the sciences do it."""

    layers: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.silu(nn.Dense(self.width, precision="highest")(x))
        return nn.Dense(16, precision="highest")(x)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its inputs, and what its outputs are compared with.

    Attributes:
      name: of the table.
      model: the module.
      inputs: makes inputs and targets.
      loss: of outputs and targets.
    """

    name: str
    model: nn.Module
    inputs: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    loss: Callable[[jax.Array, jax.Array], jax.Array]

    def forward(self, params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        """The loss of a batch."""
        return self.loss(self.model.apply(params, x), target)  # type: ignore[arg-type]

    def step(self, params: Any, state: Any, x: jax.Array, target: jax.Array) -> tuple[jax.Array, Any, Any]:
        """A training step: the loss, and parameters and state of AdamW after it."""
        loss, gradient = jax.value_and_grad(self.forward)(params, x, target)
        updates, state = OPTIMISER.update(gradient, state, params)
        return loss, optax.apply_updates(params, updates), state


OPTIMISER = optax.adamw(1e-4)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def _square_error(out: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.square(out - target).mean()


def _language(batch: int, length: int, vocabulary: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    def inputs(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = jax.random.randint(key, (batch, length + 1), 0, vocabulary)
        return tokens[:, :-1], tokens[:, 1:]

    return inputs


def _images(batch: int, side: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    def inputs(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels = jax.random.split(key)
        return jax.random.normal(images, (batch, side, side, 3)), jax.random.randint(labels, (batch,), 0, 1000)

    return inputs


def _features(batch: int, width: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    def inputs(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, target = jax.random.split(key)
        return jax.random.normal(x, (batch, width)), jax.random.normal(target, (batch, 16))

    return inputs


def cases(small: bool = False) -> list[Case]:
    """What is measured; ``small``: the same programs of sizes that a CPU can run."""
    if small:
        return [
            Case("language", LanguageModel(1, 32, 2, 57), _language(2, 8, 57), _cross_entropy),
            Case("vision", VisionTransformer(1, 32, 2), _images(2, 32), _cross_entropy),
            Case("perceptron", Perceptron(2, 48), _features(24, 48), _square_error),
        ]
    return [
        Case("GPT-2 sizes, 6 layers, bfloat16, 8 x 1,024 tokens", LanguageModel(6, 768, 12, 50257),
             _language(8, 1024, 50257), _cross_entropy),
        Case("ViT-B/16, 6 layers, bfloat16, 64 images", VisionTransformer(6, 768, 12),
             _images(64, 224), _cross_entropy),
        Case("8 layers of 2,048, float32 at HIGHEST, batch 4,096", Perceptron(8, 2048),
             _features(4096, 2048), _square_error),
    ]  # fmt: skip
