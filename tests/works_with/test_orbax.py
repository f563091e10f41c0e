"""Orbax: quantised weights are restored into the shardings that a model wants them in (see also
tests/test_quantized_matrix.py: all kinds of them on one device, and those that another version packed).

Works with: Orbax (orbax-checkpoint >= 0.12)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm.formats import from_codes
from tests.helpers import integers
from tests.works_with.support import MIXED, assert_ours, on_gpu

K, N, GROUP, LAYERS = 512, 128, 64, 2


def weights(rng: np.random.Generator, *batch: int) -> jaxgemm.QuantizedMatrix:
    """Whose products with small integers are exact."""
    codes = rng.integers(4, 13, (*batch, K, N), np.uint8)
    groups = (*batch, K // GROUP, N)
    scales = 2.0 ** rng.integers(-1, 2, groups).astype(np.float32)
    return from_codes(codes, jnp.asarray(scales, jnp.bfloat16), rng.integers(5, 11, groups, np.uint8), group_size=GROUP)


def devices() -> int:
    """A power of two, up to the eight parts that the matrix has along K and along N."""
    return 1 << min(3, len(jax.devices()).bit_length() - 1)


@pytest.mark.parametrize("spec", [P(None, "model"), P("model", None)], ids=["columns", "rows"])
def test_restored_into_shardings(spec: P, tmp_path: Path, rng: np.random.Generator) -> None:
    mesh = jax.make_mesh((devices(),), ("model",), devices=jax.devices()[: devices()])
    params = {"layer": weights(rng), "stack": weights(rng, LAYERS)}
    specs = {"layer": params["layer"].specs(spec), "stack": params["stack"].specs(P(None, *spec))}
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", params)
        checkpointer.wait_until_finished()
        restored: Any = checkpointer.restore(tmp_path / "step", like)

    assert jax.tree.structure(restored) == jax.tree.structure(params)
    for (path, got), saved, sharding in zip(
        jax.tree.leaves_with_path(restored), jax.tree.leaves(params), jax.tree.leaves(shardings), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert got.sharding.is_equivalent_to(sharding, got.ndim), f"{name} is sharded as {got.sharding}"
        assert len({shard.device for shard in got.addressable_shards}) == devices(), name
        assert got.dtype == saved.dtype, name
        np.testing.assert_array_equal(np.asarray(got), np.asarray(saved), err_msg=name)

    def product(x: jax.Array, matrix: Any) -> jax.Array:
        return jaxgemm.matmul(x, matrix, preferred_element_type=jnp.float32)

    x = integers(rng, (5, K), jnp.bfloat16)
    exact = np.asarray(x, np.float32) @ np.asarray(params["layer"].dequantize(jnp.float32))
    everywhere = jax.device_put(x, NamedSharding(mesh, P()))
    np.testing.assert_array_equal(np.asarray(jax.jit(product)(everywhere, restored["layer"])), exact)
    # Without a GPU the program of one device has to do: XLA asks for the lowering of a part when it compiles.
    assert_ours(product, *((everywhere, restored["layer"]) if on_gpu() else (x, params["layer"])), target=MIXED)
