"""tests/jax_suite.py: that it puts jaxgemm where JAX's dot_general was; and the tests that JAX's wheel does have."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.internal_test_util import test_harnesses

from benchmarks.trees import EVIDENCE_TREES
from jaxgemm._target import PORTABLE_SM
from tests.jax_suite import OUTCOMES, REPORT, SUITES, difference, in_place, installed, runs

SQUARE = np.ones((3, 3), np.float32)
MADE_OF_IT: dict[str, Callable[..., Any]] = {
    "matmul": jnp.matmul,
    "dot": jnp.dot,
    "inner": jnp.inner,
    "vdot": jnp.vdot,
    "tensordot": jnp.tensordot,
    "einsum": lambda x, y: jnp.einsum("ij,jk->ik", x, y),
    "lax.dot": lambda x, y: lax.dot(x, y),
    "lax.dot_general": lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))),
    "lax.batch_matmul": lambda x, y: lax.batch_matmul(x[None], y[None]),
}


def primitives(function: Callable[..., Any]) -> str:
    return str(jax.make_jaxpr(lambda x, y: function(x, y))(SQUARE, SQUARE))


@pytest.mark.parametrize("name", MADE_OF_IT)
def test_in_place(name: str) -> None:
    with in_place() as calls:
        text = primitives(MADE_OF_IT[name])
    assert calls["calls"] == 1
    assert "jaxgemm_gemm[" in text and "dot_general[" not in text
    text = primitives(MADE_OF_IT[name])
    assert "jaxgemm_gemm[" not in text and "dot_general[" in text


@pytest.mark.parametrize("name", MADE_OF_IT)
def test_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's primitive stays in the jaxpr; for a GPU, it is lowered to a kernel."""
    monkeypatch.setattr("jaxgemm._install.target_sm", lambda: PORTABLE_SM)  # what it is lowered for here

    def program() -> str:
        function = jax.jit(lambda x, y: MADE_OF_IT[name](x, y))
        return function.trace(SQUARE, SQUARE).lower(lowering_platforms=("cuda",)).as_text()

    with installed() as calls:
        assert "jaxgemm" not in primitives(MADE_OF_IT[name])
        text = program()
    taken = name != "lax.batch_matmul"
    assert calls["calls"] == taken
    assert ("@jaxgemm_gemm" in text) == taken
    assert "jaxgemm" not in program()


def test_dot_of_what_cannot_be_multiplied() -> None:
    with in_place(), pytest.raises(ValueError, match="dimension_numbers must be specified"):
        lax.dot(np.ones((2, 2, 2)), np.ones((2, 2)))


def test_differences_are_those_of_the_test_without_its_case() -> None:
    assert difference("lax_numpy_test.py::LaxBackedNumpyTests::testMixedPrecisionDot12", "cpu") is not None
    assert difference("lax_test.py::LaxTest::testDot12", "gpu") is None
    assert difference("lax_test.py::LaxTest::testDotAlgorithmConfig", "gpu") is not None
    assert difference("lax_test.py::LaxTest::testDotAlgorithmConfig", "cpu") is None
    assert difference("lax_numpy_test.py::LaxBackedNumpyTests::testMixedPrecisionDot12", "gpu", "install") is None


def test_what_runs_where() -> None:
    both = [("function", name) for name in SUITES], [("install", name) for name in SUITES if name != "sharding"]
    assert runs(list(SUITES), None, gpu=True) == both[0] + both[1]
    assert runs(list(SUITES), None, gpu=False) == both[0]
    assert runs(["vmap"], ["install"], gpu=True) == [("install", "vmap")]
    for suites, gpu in ((["vmap"], False), (["sharding"], True)):
        with pytest.raises(ValueError, match="runs at level install on this machine"):
            runs(suites, ["install"], gpu=gpu)


HARNESSES = [harness for harness in test_harnesses.all_harnesses if harness.group_name == "dot_general"]


@pytest.mark.slow
def test_harnesses_of_the_wheel() -> None:
    """Bit by bit, as both are XLA's dot on the CPU."""
    wrong, compared = [], 0
    for harness in HARNESSES:
        if not harness.filter("cpu"):
            continue
        operands = harness.dyn_args_maker(np.random.RandomState(0))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is not available, and will be truncated")
            expected = jax.jit(harness.dyn_fun)(*operands)
            with in_place() as calls:
                got = jax.jit(harness.dyn_fun)(*operands)
        compared += calls["calls"] > 0
        same = got.dtype == expected.dtype and np.array_equal(got, expected, equal_nan=got.dtype != np.bool_)
        if not same:
            wrong.append(harness.fullname)
    assert not wrong
    assert compared > 200


def test_report() -> None:
    report = json.loads(REPORT.read_text())
    assert set(report) == {"device", "jax", "cases", "trees", "rows"}
    assert set(report["trees"]) == set(EVIDENCE_TREES)
    expected = [("function", name) for name in SUITES]
    expected += [("install", name) for name, suite in SUITES.items() if not suite.devices]
    assert [(row["level"], row["suite"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert set(row) == {"level", "suite", "platform", *OUTCOMES, "calls"}
        assert row["failed"] == 0 and row["passed"] > 0 and row["calls"] > 0
