"""jaxgemm.quantize and from_codes of arrays on a mesh of explicit axes: as on one device, split as the arrays are."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm import formats
from jaxgemm.formats import from_codes
from tests.helpers import assert_same, normal
from tests.test_mixed_sharding import place
from tests.test_sharding import collectives, mesh_of, put

FORMS: dict[str, dict[str, Any]] = {
    "symmetric": {},
    "zeros": {"symmetric": False},
    "8 bits": {"bits": 8, "symmetric": False},
    "squared error": {"method": "mse"},
    "whole columns": {"group_size": -1},
}
SPECS = [P(), P("x", None), P(None, "x"), P("y", "x"), P(None, ("x", "y"))]


def check(got: Any, wanted: Any, specs: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    leaves = zip(*map(jax.tree.leaves, (got, wanted, specs)), strict=True)
    for a, b, spec in leaves:
        assert jax.typeof(a).sharding.spec == P(*spec, *[None] * (a.ndim - len(spec)))
        assert_same(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_quantize(form: str, spec: P, rng: np.random.Generator) -> None:
    mesh, w = mesh_of(AxisType.Explicit), normal(rng, (512, 128))
    quantize = functools.partial(jaxgemm.quantize, **{"group_size": 64, **FORMS[form]})
    whole = FORMS[form].get("group_size") == -1
    # XLA divides by one number for a whole column in another way than element by element.
    for function in (quantize, jax.jit(quantize)):
        wanted = function(w)
        with jax.set_mesh(mesh):
            check(function(put(mesh, w, spec)), wanted, wanted.specs(P(None, *spec[1:]) if whole else spec))
    with jax.set_mesh(mesh):
        gathered = {"all-gather": 1} if whole and spec and spec[0] else {}
        assert collectives(quantize, put(mesh, w, spec)) == gathered


@pytest.mark.parametrize(
    ("shape", "options", "spec", "found"),
    [
        ((256, 128), {"group_size": 128}, P("x", None), P(None, None)),  # 64 rows are half a group
        ((512, 128), {"group_size": 64}, P(("x", "y"), None), P(("x", "y"), None)),
        ((256, 128), {"group_size": 64}, P(("x", "y"), None), P("x", None)),  # 32 rows are half a tile
        ((256, 72), {"group_size": 64}, P(None, "x"), P(None, None)),
        ((4, 256, 64), {"group_size": 64}, P("x", None, "y"), P("x", None, "y")),
        ((64, 512), {"group_size": 64, "axis": -1}, P("y", "x"), P("x", "y")),
    ],
    ids=str,
)
def test_parts(shape: Any, options: Any, spec: P, found: P, rng: np.random.Generator) -> None:
    """They are whole tiles and groups, or the dimension is gathered."""
    mesh, w = mesh_of(AxisType.Explicit), normal(rng, shape)
    wanted = jaxgemm.quantize(w, **options)
    with jax.set_mesh(mesh):
        check(jaxgemm.quantize(put(mesh, w, spec), **options), wanted, wanted.specs(found))


@pytest.mark.parametrize("group_size", [64, -1])
def test_from_codes(group_size: int, rng: np.random.Generator) -> None:
    """Whose scales stay as they are."""
    mesh = mesh_of(AxisType.Explicit)
    codes = jnp.asarray(rng.integers(0, 16, (256, 128), np.uint8))
    scales = normal(rng, (4 if group_size == 64 else 1, 128))
    wanted = from_codes(codes, scales, group_size=group_size)
    with jax.set_mesh(mesh):
        scale_spec = P("x" if group_size == 64 else None, "y")
        got = from_codes(put(mesh, codes, P("x", "y")), put(mesh, scales, scale_spec), group_size=group_size)
        check(got, wanted, wanted.specs(P("x", "y")))
        with pytest.raises(ValueError, match="codes of 4 bits are below 16, the largest of these is 16"):
            from_codes(put(mesh, codes + 1, P("x", "y")), put(mesh, scales, scale_spec), group_size=group_size)


@pytest.mark.parametrize("name", ["awq", "gptq", "compressed_tensors"])
def test_checkpoints_of_what_is_split(name: str, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    matrix = jaxgemm.quantize(normal(rng, (512, 128)), group_size=64, symmetric=False, scale_dtype=jnp.float16)
    write = getattr(formats, f"to_{name}")
    for spec in (P("x", None), P(None, "x")):
        got, wanted = write(place(mesh, matrix, spec)), write(matrix)
        assert got.keys() == wanted.keys()
        for tensor in wanted:
            assert_same(got[tensor], wanted[tensor])


def test_a_model_is_quantised_where_it_is(rng: np.random.Generator) -> None:
    mesh, x, w = mesh_of(AxisType.Explicit), normal(rng, (16, 512)), normal(rng, (512, 128))
    wanted = jaxgemm.matmul(x, jaxgemm.quantize(w, group_size=64))
    with jax.set_mesh(mesh):
        quantised = jax.jit(functools.partial(jaxgemm.quantize, group_size=64))(put(mesh, w, P("x", None)))
        out = jax.jit(functools.partial(jaxgemm.matmul, out_sharding=P("x", None)))(x, quantised)
        assert jax.typeof(out).sharding.spec == P("x", None)
    size = jnp.matmul(abs(x), abs(jaxgemm.quantize(w, group_size=64).dequantize()))
    assert (abs(np.asarray(out) - np.asarray(wanted)) <= 512 * 2.0**-24 * 2 * np.asarray(size)).all()
