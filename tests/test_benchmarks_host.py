"""Host cost: the loop that measures, with a fake clock, the file, and its tables. No GPU needed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import host_cost, host_file, peers
from tests.benchmark_data import HEADER


class FakeDevice:
    """A clock that advances by what each call takes of the host, and a queue that the device works off."""

    def __init__(self, device_s: float = 0.0) -> None:
        self.now = self.idle_at = 0.0
        self.device_s = device_s
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self, name: str, host_s: Any) -> Any:
        def fn(*args: Any) -> str:
            assert args == ("x", "w")
            self.log.append(name)
            self.now += host_s(self.log.count(name)) if callable(host_s) else host_s
            self.idle_at = max(self.idle_at, self.now) + self.device_s
            return name

        return fn

    def wait(self, out: str) -> None:
        self.log.append(f"wait {out}")
        self.now = max(self.now, self.idle_at)


def measure(fake: FakeDevice, fns: dict[str, Any], **plan: int) -> dict[str, dict[str, list[float]]]:
    return host_cost.measure(fns, ("x", "w"), clock=fake.clock, wait=fake.wait, **plan)


def test_functions_take_turns_and_every_measurement_begins_idle() -> None:
    fake = FakeDevice()
    measure(fake, {"a": fake.call("a", 1e-6), "b": fake.call("b", 1e-6)}, calls=4, burst=2, rounds=3)

    def one(name: str) -> list[str]:
        return [*[name] * 4, f"wait {name}", *([name] * 2 + [f"wait {name}"]) * 2]

    warm_up = [entry for name in "ab" for entry in [*[name] * host_cost.WARM_UP_CALLS, f"wait {name}"]]
    assert fake.log == [*warm_up, *(entry for name in "abbaab" for entry in one(name))]


def test_dispatch_does_not_wait_and_total_does() -> None:
    fake = FakeDevice(device_s=30e-6)
    fns = {"a": fake.call("a", 5e-6), "b": fake.call("b", 10e-6)}
    found = measure(fake, fns, calls=100, burst=10, rounds=11)
    assert list(found) == ["a", "b"] and list(found["a"]) == list(host_file.FIGURES)
    for name, host_us in (("a", 5.0), ("b", 10.0)):
        assert found[name]["dispatch"] == found[name]["burst"] == [host_us] * 3
        assert found[name]["total"] == pytest.approx(
            [30 + host_us / 100] * 3, rel=1e-3
        )  # the first call's, then 100 x 30


def test_median_and_percentiles_are_over_rounds() -> None:
    fake = FakeDevice()
    calls, rounds = 10, 11

    def host_s(count: int) -> float:
        """After the warm-up, a call in round r takes r + 1 microseconds."""
        return (max(count - host_cost.WARM_UP_CALLS - 1, 0) // (2 * calls) + 1) * 1e-6

    found = measure(fake, {"a": fake.call("a", host_s)}, calls=calls, burst=5, rounds=rounds)
    assert found["a"] == {figure: pytest.approx([6, 2, 10]) for figure in host_file.FIGURES}


def test_as_many_calls_and_rounds_as_were_asked_for() -> None:
    assert host_cost.CALLS == 1000 and host_cost.ROUNDS >= 11 and host_cost.CALLS % host_cost.BURST == 0


@pytest.mark.parametrize("case", host_cost.cases(), ids=lambda case: case.label)
def test_both_sides_of_a_case_are_one_function(case: host_cost.Case) -> None:
    args = case.operands()
    ours, theirs = (case.jitted(variant, "default")(*args) for variant in ("jaxgemm", "jnp"))
    assert ours.dtype == theirs.dtype == jnp.dtype(case.problem.out_dtype) and ours.shape == theirs.shape
    exact = np.asarray(theirs, np.float32)
    assert np.abs(np.asarray(ours, np.float32) - exact).max() <= 0.03 * np.abs(exact).max()
    assert all(arg.committed for arg in args)


def test_xla_knows_the_options() -> None:
    case = host_cost.cases()[0]
    args = case.operands()
    for variant in ("jaxgemm", *peers.PEERS):
        for mode in host_file.MODES:
            case.jitted(variant, mode)(*args)


def test_it_refuses_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert host_cost.main(["--out", str(tmp_path / "out.json")]) == 1
    assert "needs a GPU, JAX's backend is cpu" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_a_program_that_calls_no_kernel_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match="would run XLA's dot"):
        host_cost.run_case(host_cost.cases()[0])  # as on every machine whose GPU has no kernels


def figures(us: float) -> dict[str, list[float]]:
    return {figure: [us, us - 0.5, us + 0.5] for figure in host_file.FIGURES}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[host_file.HostDocument]:
    """What a run with a fake GPU, kernel and measurement writes into a directory of results."""
    times = {"jaxgemm": 6.0, "jnp": 8.0, "jnp_cublas": 10.0}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(host_cost, "current_header", lambda: HEADER)
    monkeypatch.setattr(host_cost, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "called_kernel", lambda program, names: "mma:1")
    monkeypatch.setattr(host_cost, "measure", lambda fns, args: {key: figures(times[key[1]]) for key in fns})
    assert host_cost.main([]) == 0
    return host_file.load_host(tmp_path)


def test_a_run_is_written_and_rendered(written: list[host_file.HostDocument], tmp_path: Path) -> None:
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == ["host/nvidia-h200.json"]
    rows = written[0]["rows"]
    assert [row["command_buffers"] for row in rows] == [*("default", "on"), *["default"] * 4, *("default", "off", "on")]
    page = host_file.host_page("<!-- begin host cost -->\nold\n<!-- end host cost -->", written)
    assert "old" not in page and "15 rounds of 1,000 calls, bursts of 20" in page and HEADER["device"] in page
    cells = "6.0 (5.5 to 6.5) | 8.0 (7.5 to 8.5) | 10.0 (9.5 to 10.5) | 0.75 |"
    assert page.count(f"| 8 x bfloat16 128x128x128 NN | `mma:1` | off | {cells}") == len(host_file.FIGURES)


def test_schema_violations_are_found(written: list[host_file.HostDocument]) -> None:
    row: Any = written[0]["rows"][0]
    for change, message in (
        ({"extra": 1}, "header fields"),
        ({"calls": 0}, "must be positive"),
        ({"rows": [{**row, "extra": 1}]}, "has the fields"),
        ({"rows": [{**row, "command_buffers": "maybe"}]}, "'maybe'"),
        ({"rows": [{**row, "us": {"jaxgemm": figures(6.0)}}]}, r"variants \['jaxgemm'\]"),
        ({"rows": [{**row, "us": {**row["us"], "jnp": {"total": [1.0, 1.0, 1.0]}}}]}, r"has of jnp \['total'\]"),
        ({"rows": [{**row, "us": {**row["us"], "jnp": {**figures(6.0), "total": [1.0, 2.0, 3.0]}}}]}, "cannot be"),
        ({"rows": [{**row, "us": {**row["us"], "jnp": figures(float("nan"))}}]}, "cannot be"),
        ({"rows": [row, row]}, "there twice"),
    ):
        with pytest.raises(ValueError, match=message):
            host_file.validate_host(cast(Any, {**copy.deepcopy(written[0]), **change}))


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    assert host_file.load_host(tmp_path) == []
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "gpu.json").write_text("{}")
    with pytest.raises(ValueError, match=r"gpu\.json: header fields"):
        host_file.load_host(tmp_path)
