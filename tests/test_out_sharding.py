"""Results that are wanted split: what is moved between eight host devices to make them, and ``out_sharding=``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm._partition import scattered_axes
from tests.helpers import assert_same, integers, struct
from tests.several_gpus.program import compiled
from tests.test_mixed_sharding import moves_of_weights, place, weights
from tests.test_sharding import collectives, mesh_of, put

# K split over axes that the result is wanted split over, too: sums are moved, not operands.
SCATTERED: dict[str, tuple[P, P, P, dict[str, int]]] = {
    "M": (P(None, "x"), P("x", None), P("x", None), {"reduce-scatter": 1}),
    "N": (P(None, "x"), P("x", None), P(None, "x"), {"reduce-scatter": 1}),
    "M and N": (P(None, ("x", "y")), P(("x", "y"), None), P("x", "y"), {"reduce-scatter": 2}),
    "M by both axes": (P(None, ("x", "y")), P(("x", "y"), None), P(("x", "y"), None), {"reduce-scatter": 1}),
    "M after another axis": (P("y", "x"), P("x", None), P(("y", "x"), None), {"reduce-scatter": 1}),
    "N after another axis": (P(None, "x"), P("x", "y"), P(None, ("y", "x")), {"reduce-scatter": 1}),
    "M before another axis": (
        P("y", "x"),
        P("x", None),
        P(("x", "y"), None),
        {"all-reduce": 1, "collective-permute": 1},
    ),
    "one of two": (P(None, ("x", "y")), P(("x", "y"), None), P("y", None), {"all-reduce": 1, "reduce-scatter": 1}),
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", list(SCATTERED))
def test_sums_that_are_wanted_split(name: str, kind: AxisType, dtype: Any, rng: np.random.Generator) -> None:
    lhs_spec, rhs_spec, out_spec, expected = SCATTERED[name]
    mesh = mesh_of(kind)
    x, y = integers(rng, (16, 24), dtype), integers(rng, (24, 8), dtype)
    wanted = NamedSharding(mesh, out_spec)
    product = jax.jit(jaxgemm.matmul, out_shardings=wanted)
    if kind == AxisType.Explicit:
        product = functools.partial(jaxgemm.matmul, out_sharding=out_spec)
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, lhs_spec), put(mesh, y, rhs_spec)
        out = product(*sharded)
        assert collectives(product, *sharded) == expected
    assert out.sharding.is_equivalent_to(wanted, 2)
    assert_same(np.asarray(out), np.asarray(jnp.matmul(x, y)))


# Elements that four devices receive, each, for one of a collective's result.
RECEIVED = {"all-gather": 0.75, "all-to-all": 0.75, "all-reduce": 1.5, "reduce-scatter": 3.0, "collective-permute": 1.0}
SPECS = [P(None, None), P("x", None), P(None, "x")]
# Where operands of a call are to be split along another dimension XLA gathers them; those of its own dot it exchanges,
# from JAX 0.11 on.
GATHERED = {
    (P(None, "x"), P(None, "x"), P("x", None)),
    (P("x", None), P("x", None), P(None, "x")),
    (P(None, None), P("x", None), P(None, "x")),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("lhs_spec", SPECS, ids=str)
@pytest.mark.parametrize("rhs_spec", SPECS, ids=str)
def test_no_more_is_moved_than_for_jnp_matmul(lhs_spec: P, rhs_spec: P, kind: AxisType) -> None:
    mesh = mesh_of(kind)
    lhs, rhs = (
        struct(shape).update(sharding=NamedSharding(mesh, spec))
        for shape, spec in (((64, 128), lhs_spec), ((128, 32), rhs_spec))
    )

    def received(matmul: Any, out_spec: P) -> float:
        if kind == AxisType.Explicit:
            _, program = compiled(functools.partial(matmul, out_sharding=out_spec), lhs, rhs)
        else:
            wanted = NamedSharding(mesh, out_spec)
            _, program = compiled(lambda x, w: lax.with_sharding_constraint(matmul(x, w), wanted), lhs, rhs)
        return sum(RECEIVED[name] * sum(sizes) for name, sizes in program.collectives().items())

    with jax.set_mesh(mesh):
        for out_spec in SPECS:
            more = received(jaxgemm.matmul, out_spec) - received(jnp.matmul, out_spec)
            allowed = kind == AxisType.Auto and (lhs_spec, rhs_spec, out_spec) in GATHERED
            as_expected = (more > 0) == allowed or (more <= 0 and jax.__version_info__ < (0, 11))
            assert as_expected, f"{lhs_spec} x {rhs_spec} -> {out_spec}: {more} elements more"


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_operands_are_not_gathered_where_the_result_can_be(kind: AxisType, rng: np.random.Generator) -> None:
    mesh = mesh_of(kind)
    for lhs_spec, rhs_spec, batch in [
        (P("x", None), P(None, None), False),
        (P(None, None), P(None, "x"), False),
        (P("x", None, None), P(None, None, None), True),
    ]:
        lhs, rhs = ((4, 16, 24), (4, 24, 8)) if batch else ((16, 24), (24, 8))
        x, w = integers(rng, lhs), integers(rng, rhs)
        whole = P(*[None] * x.ndim)
        explicit = {"out_sharding": whole} if kind == AxisType.Explicit else {}
        product = jax.jit(functools.partial(jaxgemm.matmul, **explicit), out_shardings=NamedSharding(mesh, whole))
        with jax.set_mesh(mesh):
            sharded = put(mesh, x, lhs_spec), put(mesh, w, rhs_spec)
            out = product(*sharded)
            _, program = compiled(product, *sharded)
        assert program.collectives() == {"all-gather": [out.size]}
        assert_same(np.asarray(out), np.asarray(jnp.matmul(x, w)))


def test_which_axes_sums_are_scattered_over() -> None:
    shape = {"x": 4, "y": 2, "z": 3}
    for entry, of_k, size, found in [
        (("y", "x"), "x", 16, ("x",)),
        (("x", "y"), "x", 16, ()),
        (("z", "y", "x"), "xy", 48, ("y", "x")),
        (("y", "x"), "yx", 20, ()),  # which is no whole number of rows for each of eight
        ((), "x", 16, ()),
    ]:
        assert scattered_axes(entry, of_k, size, shape) == found


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(
    ("lhs", "rhs", "specs"),
    [
        ((16, 24), (24, 8), (P(None, "x"), P("x", "y"), P(None, "y"))),
        ((16, 24), (24, 8), (P(None, "x"), P("x", None), P("x", None))),
        ((2, 16, 24), (24, 8), (P(None, None, "x"), P("x", "y"), P(None, None, "y"))),
        ((4, 2, 16, 24), (2, 24, 8), (P("x", "y"), P("y"), P("x", "y", None, None))),
        ((2, 16, 24), (3, 2, 24, 8), (P("y", None, "x"), P(None, "y", "x"), P(None, "y", "x", None))),
        ((24,), (4, 24, 8), (P("x"), P(None, "x", "y"), P(None, "y"))),
    ],
    ids=str,
)
def test_out_sharding_of_matmul(lhs: Any, rhs: Any, specs: Any, fused: bool, rng: np.random.Generator) -> None:
    """Is that of the result as it is returned, and of its gradient."""
    x, w, bias = integers(rng, lhs), integers(rng, rhs), integers(rng, rhs[-1:])
    epilogue = {"bias": bias, "activation": "relu"} if fused else {}
    mesh = mesh_of(AxisType.Explicit)

    def loss(x: Any, w: Any, **kwargs: Any) -> Any:
        out = jaxgemm.matmul(x, w, **kwargs)
        return out.sum(), out

    wanted, gradients = (jaxgemm.matmul(x, w, **epilogue), jax.grad(loss, (0, 1), has_aux=True)(x, w, **epilogue)[0])
    with jax.set_mesh(mesh):
        if fused:
            epilogue["bias"] = put(mesh, bias, P(*specs[2][len(wanted.shape) - 1 :]))
        sharded = put(mesh, x, specs[0]), put(mesh, w, specs[1])
        both = jax.jit(jax.grad(functools.partial(loss, out_sharding=specs[2], **epilogue), (0, 1), has_aux=True))
        got, out = both(*sharded)
        assert jax.typeof(out).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, specs[2]), out.ndim)
        forward = functools.partial(jaxgemm.matmul, out_sharding=specs[2], **epilogue)
        assert set(collectives(forward, *sharded)) <= {"all-reduce", "reduce-scatter"}
    assert_same(np.asarray(out), np.asarray(wanted))
    for a, b in zip(got, gradients, strict=True):
        assert_same(np.asarray(a), np.asarray(b))


OPERANDS = {
    "rhs": (None, P(None, "y"), None),
    "rhs whose K is split": (None, P("x", None), P(None, None)),
    "rhs and a result of K's axis": (None, P("x", None), P("x", None)),
    "lhs": (P("x", None), None, None),
    "none": (None, None, None),
    "none but the result": (None, None, P("x", "y")),
}


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", list(OPERANDS))
def test_operands_that_are_on_no_mesh(name: str, fused: bool, rng: np.random.Generator) -> None:
    """Which are arrays of before a mesh of explicit axes was set, or NumPy's: they are whole on every device. Results
    and gradients are those of jnp.matmul, and so are their types.
    """
    *specs, out_spec = OPERANDS[name]
    x, w = integers(rng, (16, 24)), integers(rng, (24, 8))

    def both(matmul: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            out = matmul(x, w, out_sharding=out_spec)
            return out.sum(), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))

    def relu(x: Any, w: Any, **kwargs: Any) -> Any:
        return jax.nn.relu(jnp.matmul(x, w, **kwargs))

    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        operands = [a if spec is None else put(mesh, a, spec) for a, spec in zip((x, w), specs, strict=True)]
        ours = functools.partial(jaxgemm.matmul, activation="relu") if fused else jaxgemm.matmul
        got, wanted = both(ours)(*operands), both(relu if fused else jnp.matmul)(*operands)
        assert [jax.typeof(a) for a in jax.tree.leaves(got)] == [jax.typeof(a) for a in jax.tree.leaves(wanted)]
        eager = ours(*operands, out_sharding=out_spec)
    for a, b in zip(jax.tree.leaves((got, eager)), jax.tree.leaves((wanted, wanted[1])), strict=True):
        assert_same(np.asarray(a), np.asarray(b))


REFUSED: dict[str, tuple[tuple[AxisType, ...], Any, str]] = {
    "automatic": ((AxisType.Auto,) * 2, P("x"), r"asks for axis 'x', but the explicit axes of the mesh are \(\):"),
    "one automatic": (
        (AxisType.Explicit, AxisType.Auto),
        P("x", "y"),
        r"axis 'y', but the explicit axes of the mesh are \('x',\): ",
    ),
    "unreduced": ((AxisType.Auto,) * 2, P(None, unreduced={"x"}), "Unreduced axes can only refer to .* `Explicit`"),
    "unconstrained": (
        (AxisType.Explicit, AxisType.Auto),
        P(P.UNCONSTRAINED),
        "asks for axis UNCONSTRAINED, but the explicit axes",
    ),
    "unknown": ((AxisType.Explicit,) * 2, P("z"), "z of .* is not found in mesh"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_out_shardings_of_axes_that_are_not_explicit(name: str) -> None:
    """They are errors of JAX's, too, but for what says something of the mesh's other axes."""
    kinds, spec, message = REFUSED[name]
    x, w, numbers = jnp.ones((16, 24)), jnp.ones((24, 8)), (((1,), (0,)), ((), ()))
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=kinds)
    with jax.set_mesh(mesh):
        for product in (jaxgemm.matmul, lambda x, w, **kwargs: jaxgemm.dot_general(x, w, numbers, **kwargs)):
            with pytest.raises(ValueError, match=message):
                product(x, w, out_sharding=spec)
        with pytest.raises((ValueError, KeyError)):
            jnp.matmul(x, w, out_sharding=spec)


def test_out_shardings_that_are_refused() -> None:
    x, w = jnp.ones((4, 2, 16, 24)), jnp.ones((2, 24, 8))
    mesh, other = mesh_of(AxisType.Explicit), jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="has 5 dimensions, the result has 4"):
            jaxgemm.matmul(x, w, out_sharding=P(None, None, None, None, "x"))
        with pytest.raises(ValueError, match=r"leaves parts of the sums on their devices.*jax\.reshard"):
            jaxgemm.matmul(x, w, activation="relu", out_sharding=P(None, unreduced={"x"}))
        with pytest.raises(ValueError, match=r"out_sharding is of .* but the mesh that is set is .* a PartitionSpec"):
            jaxgemm.matmul(x, w, out_sharding=NamedSharding(other, P("x")))
        with pytest.raises(TypeError, match=r"out_sharding='x' is a str: give a jax\.sharding\.PartitionSpec or"):
            jaxgemm.matmul(x, w, out_sharding="x")
    with pytest.raises(ValueError, match=r"out_sharding=.* without a mesh: .* set a mesh with jax\.set_mesh"):
        jaxgemm.matmul(x, w, out_sharding=P())
    matrix = jaxgemm.quantize(w[0], group_size=8)
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="with quantised weights, of whose products no parts of the sums stay"):
            jaxgemm.matmul(x, matrix, out_sharding=P(None, unreduced={"x"}))
        with pytest.raises(ValueError, match="has 5 dimensions, the result has 4"):
            jaxgemm.matmul(x, matrix, out_sharding=P(None, None, None, None, "x"))


# --- quantised weights ------------------------------------------------------------------------------------------------

WANTED = [P(), P("x", None), P(None, "y"), P(("y", "x"), None), P("y", "x")]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("out_spec", WANTED, ids=str)
@pytest.mark.parametrize("spec", [P(), P("x", None), P(None, "x"), P("x", "y"), P(None, ("y", "x"))], ids=str)
def test_out_sharding_with_quantised_weights(spec: P, out_spec: P, fused: bool, rng: np.random.Generator) -> None:
    """Is that of the result, whatever that of x, and no weights are moved; gradients have the sharding of x."""
    mesh = mesh_of(AxisType.Explicit)
    x, matrix, bias = integers(rng, (16, 512)), weights(rng), integers(rng, (128,))
    epilogue = {"bias": bias, "activation": "relu"} if fused else {}

    def loss(x: Any, w: Any, product: Any) -> Any:
        out = product(x, w)
        return out.sum(), out

    dense = functools.partial(jaxgemm.matmul, precision="highest", **epilogue)
    gradient, wanted = jax.grad(loss, has_aux=True)(x, matrix.dequantize(), dense)
    with jax.set_mesh(mesh):
        placed = place(mesh, matrix, spec)
        for x_spec in (None, P(), P("x", None), P("y", "x")):
            operands = x if x_spec is None else put(mesh, x, x_spec), placed
            product = functools.partial(jaxgemm.matmul, out_sharding=out_spec, **epilogue)
            gradients = jax.grad(functools.partial(loss, product=product), has_aux=True)
            program = jax.jit(gradients).lower(*operands).compile()
            assert moves_of_weights(program.as_text()) == []
            got, out = program(*operands)
            assert jax.typeof(out).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, out_spec), 2)
            of_x = NamedSharding(mesh.abstract_mesh, x_spec or P())
            assert jax.typeof(got).sharding.is_equivalent_to(of_x, 2)
            assert_same(np.asarray(out), np.asarray(wanted))
            assert_same(np.asarray(got), np.asarray(gradient))


@pytest.mark.parametrize(
    ("shape", "batch", "out_spec"),
    [
        ((512,), (), P("x")),
        ((4, 8, 512), (), P("x", None, "y")),
        ((4, 8, 512), (4,), P("x", "y")),
        ((512,), (4,), P("x", "y")),
        ((2, 4, 8, 512), (4,), P("y", "x")),
        ((8, 512), (4, 1), P("x", None, None, "y")),
    ],
    ids=str,
)
def test_out_sharding_of_experts(shape: Any, batch: Any, out_spec: P, rng: np.random.Generator) -> None:
    """And of operands of one dimension, and of dimensions that are tokens of the same weights."""
    mesh = mesh_of(AxisType.Explicit)
    x, matrix = integers(rng, shape), weights(rng, *batch)
    wanted = jnp.matmul(x, matrix.dequantize(), precision="highest")
    with jax.set_mesh(mesh):
        operands = put(mesh, x, P()), place(mesh, matrix, P())
        out = jax.jit(functools.partial(jaxgemm.matmul, out_sharding=out_spec))(*operands)
        assert jax.typeof(out).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, out_spec), out.ndim)
    assert_same(np.asarray(out), np.asarray(wanted))


@pytest.mark.parametrize(
    ("shape", "numbers", "out_spec"),
    [
        ((3, 4, 512, 8), (((2,), (1,)), ((1,), (0,))), P("x", None, "y")),
        ((3, 4, 512), (((2,), (1,)), ((1,), (0,))), P("x", None, "y")),
        ((4, 512), (((1,), (1,)), ((0,), (0,))), P("x", "y")),
    ],
    ids=str,
)
def test_out_sharding_of_quantised_dot_general(shape: Any, numbers: Any, out_spec: P, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    x, experts = integers(rng, shape), weights(rng, 4)
    wanted = lax.dot_general(x, experts.dequantize(), numbers, precision="highest")
    with jax.set_mesh(mesh):
        out = jaxgemm.dot_general(x, place(mesh, experts, P("x")), numbers, out_sharding=out_spec)
        assert jax.typeof(out).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, out_spec), out.ndim)
    assert_same(np.asarray(out), np.asarray(wanted))


def test_out_sharding_of_quantised_products_under_vmap(rng: np.random.Generator) -> None:
    """The axis that vmap adds is split as that of the operands."""
    mesh = mesh_of(AxisType.Explicit)
    x, y, experts = integers(rng, (4, 8, 512)), integers(rng, (2, 8, 512)), weights(rng, 4)
    first = jax.tree.map(lambda leaf: leaf[0], experts)
    wanted = [jnp.matmul(a, w.dequantize(), precision="highest") for a, w in ((x, experts), (y, first))]
    with jax.set_mesh(mesh):
        rows = functools.partial(jaxgemm.matmul, out_sharding=P("y", None))
        each = jax.jit(jax.vmap(rows))(put(mesh, x, P("x", None, None)), place(mesh, experts, P("x")))
        rows = functools.partial(jaxgemm.matmul, rhs=place(mesh, first, P("x")), out_sharding=P("x", None))
        same = jax.jit(jax.vmap(rows))(put(mesh, y, P("y", None, None)))
        specs = [jax.typeof(out).sharding.spec for out in (each, same)]
    assert specs == [P("x", "y", None), P("y", "x", None)]
    assert_same(np.asarray(each), np.asarray(wanted[0]))
    assert_same(np.asarray(same), np.asarray(wanted[1]))


if hasattr(jax.sharding, "no_collectives"):  # from JAX 0.12 on

    def test_forbidden_collectives(rng: np.random.Generator) -> None:
        """``jax.sharding.no_collectives`` is an error wherever we need one over those axes, and only there."""
        x, w = integers(rng, (16, 256)), integers(rng, (256, 32))
        matrix = jaxgemm.quantize(w, bits=4, group_size=64)
        mesh = mesh_of(AxisType.Explicit)
        with jax.set_mesh(mesh), jax.sharding.no_collectives({"x"}):  # pyright: ignore
            rows = put(mesh, x, P(None, "x")), put(mesh, w, P("x", None))
            quantised = place(mesh, matrix, P("x", None))
            for operands, wanted in ((rows, P()), (rows, P("x")), ((rows[0], quantised), None)):
                with pytest.raises(Exception, match="Collective across axis 'x' is forbidden"):
                    jax.jit(functools.partial(jaxgemm.matmul, out_sharding=wanted))(*operands)
            tokens, columns = put(mesh, x, P("x", None)), P(None, "y")
            jax.jit(jaxgemm.matmul)(tokens, put(mesh, w, columns))
            jax.jit(jaxgemm.matmul)(tokens, place(mesh, matrix, columns))
            for other in (P("y"), P(None, "y")):
                out = jaxgemm.matmul(put(mesh, x, P(None, "y")), put(mesh, w, P("y", None)), out_sharding=other)
                assert_same(np.asarray(out), np.asarray(x @ w))
