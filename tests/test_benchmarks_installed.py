"""benchmarks/installed.py: models before and after ``jaxgemm.install()``, with a timer that is not there."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import flax_models, installed
from benchmarks.render import main as render
from jaxgemm._timing import Timing
from tests.helpers import ROOT

CASES = {case.name: case for case in flax_models.cases(small=True)}
COMMITTED = sorted((ROOT / "benchmarks" / "results" / installed.DIRECTORY).glob("*.json"))


def timer(fns: Any, sets: Any, **plan: Any) -> dict[str, Timing]:
    us = {"jax": 30.0, "installed": 20.0}
    return {name: Timing(us[name], 1, 2, ("kernel",), 9, "cupti") for name in fns}


@pytest.mark.parametrize("program", installed.PASSES)
@pytest.mark.parametrize("name", CASES)
def test_a_row(name: str, program: str) -> None:
    row = installed.measure(CASES[name], program, rounds=2, calls=1, timer=timer)
    assert list(row) == list(installed.InstalledRow.__annotations__)
    assert row["device_us"] == {"jax": 30.0, "installed": 20.0}
    assert row["kernels_installed"] == 0, "this is a CPU"
    assert row["loss_difference"] == 0
    assert all(us > 0 for us in row["wall_us"].values())


def test_the_two_programs_are_compiled_under_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxgemm._options import current

    seen = []

    def function(x: jax.Array) -> jax.Array:
        seen.append(current().install)
        return x

    for variant in installed.VARIANTS:
        installed.compiled(function, (jax.numpy.ones(3),), variant, "off")
    assert seen == [False, True]


def test_wall_takes_turns() -> None:
    now, called = [0.0], []

    def function(name: str, seconds: float) -> Any:
        def call(x: Any) -> Any:
            called.append(name)
            now[0] += seconds
            return x

        return call

    fns = {"a": function("a", 1e-6), "b": function("b", 3e-6)}
    found = installed.wall(fns, (1,), rounds=2, calls=1, clock=lambda: now[0])
    assert found == {"a": pytest.approx(1.0), "b": pytest.approx(3.0)}
    assert called == ["b", "b", "a", "a", "a", "a", "b", "b"], "each once before it is timed"


def test_losses_that_are_no_numbers_are_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flax_models.Case, "forward", lambda self, params, x, target: x.sum() * math.nan)
    with pytest.raises(RuntimeError, match="losses that cannot be"):
        installed.measure(CASES["perceptron"], "forward", rounds=1, calls=1, timer=timer)


def test_there_is_a_result() -> None:
    assert COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results(path: Path) -> None:
    document = json.loads(path.read_text())
    installed.validate_installed(document)
    assert {row["model"] for row in document["rows"]} == {case.name for case in flax_models.cases()}
    assert any(row["kernels_installed"] for row in document["rows"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_us", {"jax": 1.0}),
        ("device_us", {"jax": 1.0, "installed": math.nan}),
        ("wall_us", {"jax": 0.0, "installed": 1.0}),
        ("loss_difference", math.nan),
        ("loss_difference", 0.5),
        ("program", "backward"),
    ],
)
def test_wrong_files_are_refused(field: str, value: Any) -> None:
    document = json.loads(COMMITTED[0].read_text())
    document["rows"][0][field] = value
    with pytest.raises(ValueError, match="row 0"):
        installed.validate_installed(document)
    document = json.loads(COMMITTED[0].read_text())
    document["rows"].append(copy.deepcopy(document["rows"][0]))
    with pytest.raises(ValueError, match="there twice"):
        installed.validate_installed(document)


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if jax.default_backend() != "gpu":
        assert installed.main([]) == 1
        assert "it needs a GPU" in capsys.readouterr().err


def test_the_page_is_what_the_results_say() -> None:
    assert render(["--check"]) == 0
    page = (ROOT / "docs" / "install.md").read_text()
    for row in json.loads(COMMITTED[0].read_text())["rows"]:
        speed = row["device_us"]["jax"] / row["device_us"]["installed"]
        assert f"{row['program']} | {row['kernels_installed']} |" in page
        assert f"{speed:.3f}" in page
