"""jaxgemm/_matmul.py: shapes, dtypes and errors of ``matmul`` against ``jnp.matmul``."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from benchmarks.checks import STEEPEST
from tests.helpers import MATMUL_SHAPES, assert_same, integers, normal, struct

DTYPES = [
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64",
    "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
X64_DTYPES = ["int32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


@pytest.mark.parametrize(("lhs", "rhs"), MATMUL_SHAPES, ids=str)
def test_shapes(lhs: tuple[int, ...], rhs: tuple[int, ...], rng: np.random.Generator) -> None:
    x, y = integers(rng, lhs), integers(rng, rhs)
    assert_same(jaxgemm.matmul(x, y), jnp.matmul(x, y))
    if x.ndim > 1 or y.ndim > 1:
        assert_same(jax.jit(jaxgemm.matmul)(x, y), jnp.matmul(x, y))


def test_random_broadcasts(rng: np.random.Generator) -> None:
    for _ in range(150):
        rank = int(rng.integers(0, 4))
        batch = [int(s) for s in rng.choice([0, 1, 2, 3], rank, p=[0.05, 0.25, 0.35, 0.35])]
        shapes = []
        for matrix in ((2, 3), (3, 4)):
            own = batch[int(rng.integers(0, rank + 1)) :]
            shapes.append((*(1 if rng.random() < 0.3 else s for s in own), *matrix))
        x, y = (integers(rng, shape) for shape in shapes)
        np.testing.assert_array_equal(jaxgemm.matmul(x, y), np.matmul(x, y), err_msg=str(shapes))


def result_of(function: Any, x: Any, y: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Shape, dtype and weak type, or the kind of error."""
    try:
        out = jax.eval_shape(functools.partial(function, **kwargs), x, y)
    except (TypeError, ValueError) as error:
        return (type(error),)
    return out.shape, out.dtype, out.weak_type


@pytest.mark.parametrize("preferred", [None, "float32", "bfloat16", "int32"])
def test_every_pair_of_dtypes_promotes_as_in_jnp(preferred: str | None) -> None:
    for left, right in itertools.product(DTYPES, DTYPES):
        pair = struct((2, 3), left), struct((3, 4), right)
        want = result_of(jnp.matmul, *pair, preferred_element_type=preferred)
        got = result_of(jaxgemm.matmul, *pair, preferred_element_type=preferred)
        assert got == want, (left, right)


def test_every_pair_of_wide_dtypes_promotes_as_in_jnp() -> None:
    with jax.enable_x64(True):
        for left, right in itertools.product(X64_DTYPES, X64_DTYPES):
            pair = struct((2, 3), left), struct((3, 4), right)
            assert result_of(jaxgemm.matmul, *pair) == result_of(jnp.matmul, *pair), (left, right)


@pytest.mark.parametrize("left", [1, 1.0, 1j, True, np.float32(2), np.int8(3)])
def test_weak_types(left: Any) -> None:
    vector = jnp.full((3,), left)
    for dtype in ("int8", "float16", "bfloat16", "float32"):
        other = jnp.ones((3,), dtype)
        for x, y in ((vector, other), (other, vector), (vector, vector)):
            got = jaxgemm.matmul(x, y)
            if vector.dtype == np.int32 and other.dtype == np.int8 and x is not y:
                assert (got.dtype, got.weak_type) == (np.int8, False)  # jnp.matmul raises: a bug of its own
                continue
            want = jnp.matmul(x, y)
            assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), (x.aval, y.aval)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint8", "float16", "bfloat16", "float32", "complex64"])
def test_values_of_every_dtype(dtype: str, rng: np.random.Generator) -> None:
    x, y = integers(rng, (4, 5), dtype, 4), integers(rng, (5, 6), dtype, 4)
    assert_same(jaxgemm.matmul(x, y), jnp.matmul(x, y))
    mixed = integers(rng, (5, 6), np.float32, 4)
    assert_same(jaxgemm.matmul(x, mixed), jnp.matmul(x, mixed))


def test_values_of_wide_dtypes(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):
        for dtype in ("int64", "float64", "complex128"):
            x, y = integers(rng, (4, 5), dtype, 2**20), integers(rng, (5, 6), dtype, 2**20)
            assert_same(jaxgemm.matmul(x, y), jnp.matmul(x, y))
            np.testing.assert_array_equal(jaxgemm.matmul(x, y), np.asarray(x) @ np.asarray(y))


@pytest.mark.parametrize("preferred", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_preferred_element_type(dtype: str, preferred: str, rng: np.random.Generator) -> None:
    x, y = integers(rng, (4, 5), dtype), integers(rng, (5, 6), dtype)
    out = jaxgemm.matmul(x, y, preferred_element_type=preferred)
    assert_same(out, jnp.matmul(x, y, preferred_element_type=preferred))
    fused = jaxgemm.matmul(x, y, preferred_element_type=preferred, activation="relu")
    assert_same(fused, jax.nn.relu(out))


def test_integers_accumulate_where_asked(rng: np.random.Generator) -> None:
    x, y = integers(rng, (4, 50), np.int8, 100), integers(rng, (50, 6), np.int8, 100)
    out = jaxgemm.matmul(x, y, preferred_element_type=np.int32)
    assert_same(out, jnp.asarray(np.asarray(x, np.int32) @ np.asarray(y, np.int32)))
    assert np.abs(out).max() > 127


PRECISIONS: list[Any] = [
    None, "default", "high", "highest", "bfloat16", "tensorfloat32", "float32", "fastest", *lax.Precision,
    (lax.Precision.HIGHEST, lax.Precision.DEFAULT), ("highest", "default"), ["default", "high"],
    lax.DotAlgorithmPreset.F32_F32_F32, "F32_F32_F32", lax.DotAlgorithmPreset.DEFAULT,
]  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_precisions(precision: Any, rng: np.random.Generator) -> None:
    x, y = integers(rng, (4, 5)), integers(rng, (5, 6))

    def bound(function: Any) -> Any:
        (equation,) = jax.make_jaxpr(functools.partial(function, precision=precision))(x, y).eqns
        return equation.params["precision"]

    assert bound(jaxgemm.matmul) == bound(
        lambda a, b, **kwargs: lax.dot_general(a, b, (((1,), (0,)), ((), ())), **kwargs)
    )
    assert_same(jaxgemm.matmul(x, y, precision=precision), jnp.matmul(x, y))


def test_default_matmul_precision() -> None:
    x, y = jnp.ones((4, 5)), jnp.ones((5, 6))
    with jax.default_matmul_precision("highest"):
        (equation,) = jax.make_jaxpr(jaxgemm.matmul)(x, y).eqns
        (given,) = jax.make_jaxpr(functools.partial(jaxgemm.matmul, precision="default"))(x, y).eqns
    assert equation.params["precision"] == (lax.Precision.HIGHEST,) * 2
    assert given.params["precision"] == (lax.Precision.DEFAULT,) * 2


@pytest.mark.parametrize(
    "precision", ["medium", 3, ("high",), ("high", "high", "high"), ("high", "F32_F32_F32"), object]
)
def test_a_precision_that_is_none(precision: Any) -> None:
    with pytest.raises(ValueError, match=r"is none of: None, 'default', 'high', 'highest', a jax.lax.Precision"):
        jaxgemm.matmul(jnp.ones((2, 2)), jnp.ones((2, 2)), precision=precision)


BIASED = [s for s in MATMUL_SHAPES if len(s[1]) > 1 and 0 not in (*s[0], *s[1])]


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bias_and_activation_are_rounded_once(dtype: str, activation: str | None, rng: np.random.Generator) -> None:
    x, y, bias = normal(rng, (7, 33), dtype), normal(rng, (33, 9), dtype), normal(rng, (9,), dtype)
    out = jaxgemm.matmul(x, y, bias=bias, activation=activation)
    assert out.dtype == x.dtype
    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in (x, y, bias)]
        exact = wide[0] @ wide[1] + wide[2]
        want = np.asarray(ACTIVATIONS[activation](jnp.asarray(exact)) if activation else exact)
    # 34 roundings of float32 in the sum, no activation is steeper than STEEPEST and each errs by a few float32
    # roundings of its argument, and the result is rounded once.
    magnitude = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])
    unit = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    bound = STEEPEST * 34 * 2.0**-24 * magnitude + 16 * 2.0**-24 * np.abs(exact) + unit * np.abs(want) + 2.0**-25
    assert (np.abs(np.asarray(out, np.float64) - want) <= bound).all()


@pytest.mark.parametrize(("lhs", "rhs"), BIASED, ids=str)
def test_bias_and_activation_for_every_shape(lhs: Any, rhs: Any, rng: np.random.Generator) -> None:
    x, y = integers(rng, lhs), integers(rng, rhs)
    plain = jnp.matmul(x, y)
    of_each = (*plain.shape[:-2], 1, plain.shape[-1]) if plain.ndim > 1 else ()
    for bias_shape in ((plain.shape[-1],), plain.shape, (1,) * plain.ndim, (), (1,), of_each):
        bias = integers(rng, bias_shape)
        out = jaxgemm.matmul(x, y, bias=bias, activation="relu")
        assert_same(out, jax.nn.relu(plain + bias))
    assert_same(jaxgemm.matmul(x, y, activation="relu"), jax.nn.relu(plain))
    column = integers(rng, (plain.shape[-2], 1)) if plain.ndim > 1 else integers(rng, (1,))
    assert_same(jaxgemm.matmul(x, y, bias=column), plain + column)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_derivatives_of_a_bias_have_its_dtype(dtype: str, activation: str | None, rng: np.random.Generator) -> None:
    x, y, bias = normal(rng, (3, 8), "bfloat16"), normal(rng, (8, 5), "bfloat16"), normal(rng, (5,), dtype)

    def summed(matmul: Any, bias: jax.Array) -> jax.Array:
        return matmul(x, y, bias).sum()

    def ours(x: Any, y: Any, bias: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x, y, bias=bias, activation=activation, preferred_element_type=np.float32)

    def composed(x: Any, y: Any, bias: jax.Array) -> jax.Array:
        out = jnp.matmul(x, y, preferred_element_type=np.float32) + bias.astype(np.float32)
        return out if activation is None else jax.nn.silu(out)

    gradient, expected = (jax.grad(functools.partial(summed, matmul))(bias) for matmul in (ours, composed))
    assert gradient.dtype == bias.dtype
    np.testing.assert_allclose(np.asarray(gradient, np.float32), np.asarray(expected, np.float32), rtol=2**-7)


def test_empty_products_have_the_bias(rng: np.random.Generator) -> None:
    bias = integers(rng, (4,))
    out = jaxgemm.matmul(jnp.ones((3, 0)), jnp.ones((0, 4)), bias=bias, activation="relu")
    assert_same(out, jax.nn.relu(jnp.broadcast_to(bias, (3, 4))))
    assert jaxgemm.matmul(jnp.ones((0, 2)), jnp.ones((2, 4)), bias=bias).shape == (0, 4)
    assert jaxgemm.matmul(jnp.ones((3, 2)), jnp.ones((2, 0)), bias=jnp.ones((0,))).shape == (3, 0)


def test_bias_of_another_dtype_does_not_change_the_result(rng: np.random.Generator) -> None:
    x, y, bias = integers(rng, (4, 5), np.int8), integers(rng, (5, 6), np.int8), integers(rng, (6,))
    assert_same(jaxgemm.matmul(x, y, bias=bias.astype(np.int8)), jnp.matmul(x, y) + bias.astype(np.int8))
    half, whole = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    assert jaxgemm.matmul(half, whole, bias=bias).dtype == jnp.bfloat16


def test_operands_that_are_no_jax_arrays() -> None:
    x, y = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.arange(12.0, dtype=np.float32).reshape(3, 4)
    want = jnp.asarray(x @ y)
    assert_same(jaxgemm.matmul(x, y), want)
    assert_same(jaxgemm.matmul(x, jnp.asarray(y)), want)
    assert_same(jaxgemm.matmul(x[:, ::-1], y[::-1]), want)
    assert isinstance(jaxgemm.matmul(x, y), jax.Array)
    assert jaxgemm.matmul(x, y, bias=np.ones(4, np.float32)).shape == (2, 4)
    assert jaxgemm.matmul(x, y, bias=1.0).shape == (2, 4)


@pytest.mark.parametrize("place", ["lhs", "rhs"])
def test_masked_arrays_are_refused(place: str) -> None:
    masked = np.ma.array(np.ones((4, 4), np.float32), mask=np.eye(4))
    operands = (masked, np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match=rf"no masked arrays.*{place}\.filled"):
        jaxgemm.matmul(*(operands if place == "lhs" else operands[::-1]))
    with pytest.raises(ValueError, match="masked"):
        jaxgemm.matmul(*(np.ones((4, 4), np.float32),) * 2, bias=masked)


ERRORS: list[tuple[str, Any, Any, dict[str, Any], type[Exception], str]] = [
    ("K", (2, 3), (4, 5), {}, TypeError, r"shape \(2, 3\) with rhs of shape \(4, 5\): K=3 .* not K=4 .*Transpose"),
    ("K of vectors", (3,), (4,), {}, TypeError, r"K=3 \(last dimension of lhs\) is not K=4 \(dimension 0 of rhs\)"),
    ("K of a batch", (7, 2, 3), (7, 4, 5), {}, TypeError, r"K=3 .* is not K=4 \(dimension 1 of rhs\)"),
    ("batch", (2, 4, 3), (5, 3, 6), {}, ValueError, r"lhs \(2, 4, 3\) and rhs \(5, 3, 6\): 2 is neither 5"),
    ("scalar lhs", (), (3,), {}, TypeError, r"one or more dimensions, got shapes \(\) and \(3,\): use lhs \* rhs"),
    ("scalar rhs", (3,), (), {}, TypeError, r"one or more dimensions, got shapes \(3,\) and \(\)"),
    ("activation", (2, 3), (3, 4), {"activation": "tanh"}, ValueError, r"activation='tanh' is none of None, 'gelu', "),
    ("bias", (2, 3), (3, 4), {"bias": np.ones(3)}, ValueError, r"shape \(3,\) does not broadcast to .* \(2, 4\)"),
    ("large bias", (2, 3), (3, 4), {"bias": np.ones((5, 2, 4))}, ValueError, r"shape \(5, 2, 4\) does not broadcast"),
    ("kernel", (2, 3), (3, 4), {"kernel": "fast"}, ValueError, r"kernel='fast' is none of .* kernels: naive, "),
]  # fmt: skip


@pytest.mark.parametrize(("lhs", "rhs", "kwargs", "kind", "text"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_errors(lhs: Any, rhs: Any, kwargs: dict[str, Any], kind: type[Exception], text: str) -> None:
    x, y = jnp.ones(lhs), jnp.ones(rhs)
    for function in (jaxgemm.matmul, jax.jit(lambda a, b: jaxgemm.matmul(a, b, **kwargs))):
        with pytest.raises(kind, match=text):
            function(x, y, **(kwargs if function is jaxgemm.matmul else {}))


@pytest.mark.parametrize(
    "bad", ["text", None, object(), [1, 2], np.array(["a"]), {"a": 1}], ids=lambda x: type(x).__name__
)
def test_operands_that_are_no_numbers(bad: Any) -> None:
    good = jnp.ones((2, 2))
    with pytest.raises(
        TypeError, match=r"takes arrays of numbers, got lhs of type .* convert it with jnp.asarray first"
    ):
        jaxgemm.matmul(bad, good)
    with pytest.raises(TypeError, match="takes arrays of numbers, got rhs of type"):
        jaxgemm.matmul(good, bad)


@pytest.mark.parametrize("dtype", ["int8", "int32", "complex64", "bool"])
def test_an_activation_of_numbers_that_have_none(dtype: str) -> None:
    x = jnp.ones((2, 2), dtype)
    with pytest.raises(TypeError, match=rf"activation='silu' needs a floating-point result, this one is {dtype}"):
        jaxgemm.matmul(x, x, activation="silu")
    assert jaxgemm.matmul(x, x, bias=x).dtype == dtype


@pytest.mark.parametrize(
    ("operand", "bias", "preferred"),
    [("float32", "complex64", None), ("int32", "float32", None), ("int8", "float32", "int32"), ("bool", "int32", None)],
)
def test_bias_that_would_lose_its_value_is_refused(operand: str, bias: str, preferred: str | None) -> None:
    x = jnp.ones((4, 4), operand)
    with pytest.raises(TypeError, match=f"bias of dtype {bias} cannot be added to a result of dtype"):
        jaxgemm.matmul(x, x, bias=jnp.ones(4, bias), preferred_element_type=preferred)


def test_64_bit_requests_without_x64_are_those_of_lax() -> None:
    x = jnp.ones((3, 3))
    numbers = (((1,), (0,)), ((), ()))
    for wanted in (np.float64, float, "float64"):
        assert jaxgemm.dot_general(x, x, numbers, preferred_element_type=wanted).dtype == np.float32
        assert jaxgemm.matmul(x, x, bias=x[0], preferred_element_type=wanted).dtype == np.float32


def test_unequal_sizes_of_dot_general_are_named() -> None:
    x, y = jnp.ones((3, 4)), jnp.ones((5, 6))
    with pytest.raises(TypeError, match=r"dimension 1 of lhs \(3, 4\) has 4, dimension 0 of rhs \(5, 6\) has 5"):
        jaxgemm.dot_general(x, y, (((1,), (0,)), ((), ())))
    with pytest.raises(ValueError, match="kernel='nope' is none"):
        jaxgemm.einsum("ij->ji", x, kernel="nope")
