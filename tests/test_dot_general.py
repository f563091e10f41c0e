"""jaxgemm/_dot_general.py and ``einsum`` against ``lax.dot_general`` and ``jnp.einsum``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from tests.helpers import assert_same, integers, struct

Numbers = tuple[tuple[Any, Any], tuple[Any, Any]]

# The shapes and dimension numbers of JAX's own tests of dot_general (tests/lax_test.py), and some without contraction.
PATTERNS: list[tuple[tuple[int, ...], tuple[int, ...], Numbers]] = [
    ((3, 5), (2, 5), (([1], [1]), ([], []))),
    ((5, 3), (5, 2), (([0], [0]), ([], []))),
    ((5, 3, 2), (5, 2, 4), (([2], [1]), ([0], [0]))),
    ((3, 5), (5,), (([1], [0]), ([], []))),
    ((3, 3, 2), (3, 2, 4), (([2], [1]), ([0], [0]))),
    ((3, 4, 2), (3, 2, 4), (([2], [1]), ([0], [0]))),
    ((3, 3, 2), (2, 3, 4), (([2], [0]), ([0], [1]))),
    ((3, 4, 2, 4), (3, 4, 3, 2), (([2], [3]), ([0, 1], [0, 1]))),
    ((2, 3, 4), (4, 5), (([2], [0]), ([], []))),
    ((4, 3, 2), (5, 4), (([0], [1]), ([], []))),
    ((2, 3, 4, 5), (2, 3, 5, 6), (([3], [2]), ([0, 1], [0, 1]))),
    ((2, 3, 4, 5), (5, 4, 6, 3), (([2, 3], [1, 0]), ([1], [3]))),
    ((5, 4, 3, 2), (2, 3, 6), (([3, 2], [0, 1]), ([], []))),
    ((2, 3), (4, 5), (([], []), ([], []))),
    ((2, 3), (3, 2), (([0, 1], [1, 0]), ([], []))),
    ((3,), (3,), (([0], [0]), ([], []))),
    ((3,), (3,), (([], []), ([0], [0]))),
    ((), (), (([], []), ([], []))),
    ((), (3, 4), (([], []), ([], []))),
    ((2, 3, 4), (4, 3, 2), (([], []), ([2, 0], [0, 2]))),
    ((2, 3, 4), (2, 4, 3), (([], []), ([0, 1, 2], [0, 2, 1]))),
    ((0, 3), (3, 4), (([1], [0]), ([], []))),
    ((2, 0), (0, 4), (([1], [0]), ([], []))),
    ((0, 2, 3), (0, 3, 4), (([2], [1]), ([0], [0]))),
    ((3, 2, 4), (4, 5, 3), (([2], [0]), ([0], [2]))),
]


@pytest.mark.parametrize(("lhs", "rhs", "numbers"), PATTERNS, ids=str)
def test_patterns(lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: Numbers, rng: np.random.Generator) -> None:
    x, y = integers(rng, lhs), integers(rng, rhs)
    want = lax.dot_general(x, y, numbers)
    assert_same(jaxgemm.dot_general(x, y, numbers), want)
    assert_same(jax.jit(functools.partial(jaxgemm.dot_general, dimension_numbers=numbers))(x, y), want)


def random_numbers(rng: np.random.Generator) -> tuple[list[int], list[int], Numbers]:
    """Sizes and dimension numbers of a random dot_general, its dimensions permuted."""
    nb, nc, nm, nn = (int(i) for i in rng.integers(0, 3, 4))
    left, right = rng.permutation(nb + nc + nm), rng.permutation(nb + nc + nn)
    lhs, rhs = [int(s) for s in rng.integers(1, 4, len(left))], [int(s) for s in rng.integers(1, 4, len(right))]
    for a, b in zip(left[: nb + nc], right[: nb + nc], strict=True):
        rhs[b] = lhs[a]
    groups = [tuple(int(d) for d in g) for g in (left[nb : nb + nc], right[nb : nb + nc], left[:nb], right[:nb])]
    return lhs, rhs, ((groups[0], groups[1]), (groups[2], groups[3]))


def test_random_patterns(rng: np.random.Generator) -> None:
    for _ in range(60):
        lhs, rhs, numbers = random_numbers(rng)
        x, y = integers(rng, lhs), integers(rng, rhs)
        np.testing.assert_array_equal(
            jaxgemm.dot_general(x, y, numbers), lax.dot_general(x, y, numbers), err_msg=f"{lhs} {rhs} {numbers}"
        )


def test_abstract_results_follow_lax(rng: np.random.Generator) -> None:
    dtypes = ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64", "float8_e5m2"]
    preferred = [None, "int32", "bfloat16", "float32", "complex64"]
    compared = 0
    for _ in range(600):
        lhs, rhs, numbers = random_numbers(rng)
        left = str(rng.choice(dtypes))
        right = left if rng.random() < 0.6 else str(rng.choice(dtypes))
        wanted = preferred[rng.integers(len(preferred))]

        def abstract(function: Any, wanted: str | None = wanted, numbers: Numbers = numbers) -> Any:
            return lambda x, y: function(x, y, numbers, preferred_element_type=wanted)

        pair = struct(lhs, left), struct(rhs, right)
        try:
            want = jax.eval_shape(abstract(lax.dot_general), *pair)
        except TypeError:
            with pytest.raises(TypeError):
                jax.eval_shape(abstract(jaxgemm.dot_general), *pair)
        else:
            assert jax.eval_shape(abstract(jaxgemm.dot_general), *pair) == want
            compared += 1
    assert compared > 300


@pytest.mark.parametrize(
    ("left", "right", "preferred"),
    [
        ("int8", "int8", "int32"), ("bfloat16", "bfloat16", "float32"), ("float16", "float16", "float32"),
        ("bfloat16", "float32", None), ("float32", "bfloat16", "float32"), ("float8_e4m3fn", "float8_e5m2", "float32"),
        ("int8", "float32", None), ("complex64", "complex64", None),
    ],
)  # fmt: skip
def test_values_of_mixed_and_preferred_dtypes(
    left: str, right: str, preferred: str | None, rng: np.random.Generator
) -> None:
    x, y = integers(rng, (4, 7), left), integers(rng, (7, 3), right)
    numbers = (((1,), (0,)), ((), ()))
    out = jaxgemm.dot_general(x, y, numbers, None, preferred)
    assert_same(out, lax.dot_general(x, y, numbers, None, preferred))
    both = np.complex64 if "complex64" in (left, right) else np.float64
    np.testing.assert_array_equal(np.asarray(out, both), np.asarray(x, both) @ np.asarray(y, both))


def test_operands_that_are_no_arrays() -> None:
    numbers = (((0,), (0,)), ((), ()))
    assert jaxgemm.dot_general(np.ones(3, np.float32), np.ones(3, np.float32), numbers) == 3.0
    assert jaxgemm.dot_general(2.0, 3.0, (((), ()), ((), ()))) == 6.0
    assert jaxgemm.dot_general(np.ones((2, 3)), jnp.ones(3), (((1,), 0), ((), ()))).shape == (2,)


BAD: list[tuple[str, Any, str]] = [
    (
        "sizes",
        (((1,), (1,)), ((), ())),
        r"contracting dimensions of equal sizes: dimension 1 of lhs \(2, 3\) has 3, dimension 1 of rhs \(3, 4\) has 4",
    ),
    (
        "batch sizes",
        (((), ()), ((0,), (0,))),
        r"batch dimensions of equal sizes: dimension 0 of lhs \(2, 3\) has 2, dimension 0 of rhs",
    ),
    ("negative", (((-1,), (0,)), ((), ())), r"dimension -1 .* is out of range: lhs has 2 dimensions"),
    ("too large", (((1,), (2,)), ((), ())), r"dimension 2 .* is out of range: rhs has 2 dimensions"),
    ("duplicate", (((1, 1), (0, 1)), ((), ())), "distinct|equal"),
    ("both roles", (((1,), (0,)), ((1,), (0,))), "disjoint"),
    ("unequal lengths", (((0, 1), (0,)), ((), ())), "got 2 contracting dimensions of lhs and 1 of rhs"),
    ("not nested", (1, 0), r"dimension_numbers must be \(\(lhs_contracting, rhs_contracting\), \(lhs_batch"),
    ("None", None, r"with sequences of int, got None"),
    ("floats", (((1.0,), (0.0,)), ((), ())), r"dimension_numbers must be "),
    ("three parts", (((1,), (0,)), ((), ()), ()), r"dimension_numbers must be "),
]


@pytest.mark.parametrize(("numbers", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_dimension_numbers(numbers: Any, text: str) -> None:
    x, y = jnp.ones((2, 3)), jnp.ones((3, 4))
    with pytest.raises(TypeError, match=text):
        jaxgemm.dot_general(x, y, numbers)


def test_signature_is_that_of_lax() -> None:
    x, y = jnp.ones((2, 3)), jnp.ones((3, 4))
    out = jaxgemm.dot_general(
        x, y, dimension_numbers=(((1,), (0,)), ((), ())), precision="highest", preferred_element_type=jnp.bfloat16
    )
    assert out.dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="precision='medium' is none of"):
        jaxgemm.dot_general(x, y, (((1,), (0,)), ((), ())), "medium")


EINSUMS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,kj->ik", [(2, 3), (4, 3)]),
    ("ji,jk->ik", [(3, 2), (3, 4)]),
    ("ji,kj->ki", [(3, 2), (4, 3)]),
    ("i,i", [(3,), (3,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("ij,j->i", [(2, 3), (3,)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
    ("bij,jk->bik", [(5, 2, 3), (3, 4)]),
    ("ij,bjk->bik", [(2, 3), (5, 3, 4)]),
    ("bij,bjk->kib", [(5, 2, 3), (5, 3, 4)]),
    ("...ij,...jk->...ik", [(5, 6, 2, 3), (6, 3, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("bhqk,bkhd->bqhd", [(2, 4, 3, 6), (2, 6, 4, 5)]),
    ("btd,dhk->bthk", [(2, 3, 4), (4, 5, 6)]),
    ("bthk,hkd->btd", [(2, 3, 5, 6), (5, 6, 4)]),
    ("ebd,edf->ebf", [(3, 2, 4), (3, 4, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("ii,ij->j", [(3, 3), (3, 4)]),
    ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]),
    ("ijk->ki", [(2, 3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("aij,ajk->aik", [(1, 2, 3), (4, 3, 5)]),
    ("abc,abd->cd", [(2, 3, 4), (2, 3, 5)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS, ids=str)
def test_einsum(subscripts: str, shapes: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    operands = [integers(rng, shape, bound=4) for shape in shapes]
    want = jnp.einsum(subscripts, *operands)
    assert_same(jaxgemm.einsum(subscripts, *operands), want)
    if len(shapes) > 1 and "->ij" not in subscripts:
        text = str(jax.make_jaxpr(functools.partial(jaxgemm.einsum, subscripts))(*operands))
        assert "jaxgemm_gemm" in text
        assert " dot_general[" not in text


def test_einsum_keywords(rng: np.random.Generator) -> None:
    x, y = integers(rng, (2, 3), jnp.bfloat16), integers(rng, (3, 4), jnp.bfloat16)
    out = jaxgemm.einsum("ij,jk->ik", x, y, preferred_element_type=np.float32, precision="highest", optimize="optimal")
    assert_same(out, jnp.einsum("ij,jk->ik", x, y, preferred_element_type=np.float32))
    assert_same(jaxgemm.einsum(x, [0, 1], y, [1, 2], [0, 2]), jnp.einsum("ij,jk->ik", x, y))
    with pytest.raises(ValueError, match=r"[Ss]ize|dimension"):
        jaxgemm.einsum("ij,jk->ik", x, x)


def test_eager_calls_of_one_shape_compile_once(rng: np.random.Generator) -> None:
    x, y = integers(rng, (13, 11)), integers(rng, (11, 17))
    jaxgemm.einsum("ij,jk->ik", x, y)
    jaxgemm.dot_general(x, y, (((1,), (0,)), ((), ())))
    counted: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: counted.append(name) if "backend_compile" in name else None
    )
    try:
        jaxgemm.einsum("ij,jk->ik", x, y)
        jaxgemm.dot_general(x, y, (((1,), (0,)), ((), ())))
        assert not counted
        jaxgemm.dot_general(x[:3], y, (((1,), (0,)), ((), ())))
        assert counted, "the listener hears compilations"
    finally:
        jax.monitoring.clear_event_listeners()
