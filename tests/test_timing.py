"""How device times are taken from CUPTI's records, with a fake CUPTI. No GPU needed."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxgemm import _timing


class FakeCupti:
    """Records the kernels that the fake functions below "launch"."""

    def __init__(self) -> None:
        self.records: list[tuple[str, float]] = []
        self.active = False

    def launch(self, name: str, ms: float) -> None:
        if self.active:
            self.records.append((name, ms))

    def _cupti_init(self) -> None:
        self.records, self.active = [], True

    def _cupti_get_timings(self, finalize: bool, /) -> list[tuple[str, float]]:
        assert not finalize
        self.active = False
        return self.records


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    fake = FakeCupti()
    monkeypatch.setattr(_timing, "find_cupti", lambda: fake)
    return fake


def test_compare_sums_the_kernels_of_each_call(cupti: FakeCupti) -> None:
    seen: list[tuple[str, int]] = []

    def a(x: int) -> None:
        seen.append(("a", x))
        cupti.launch("pad", 0.001)
        cupti.launch("gemm", 0.002)

    def b(x: int) -> None:
        seen.append(("b", x))
        cupti.launch("gemm", 0.005)

    timings = _timing.compare({"a": a, "b": b}, [(0,), (1,), (2,)], rounds=6)
    assert timings["a"].us == pytest.approx(3) and timings["b"].us == pytest.approx(5)
    assert timings["a"].kernels == ("pad", "gemm") and timings["a"].samples == 6
    assert timings["a"].source == "cupti"
    rounds = [seen[i : i + 2] for i in range(len(seen) - 14, len(seen), 2)]
    assert [x for calls in rounds for _, x in calls] == [i % 3 for i in range(14)]  # advance with every call of either
    assert {"".join(sorted(name for name, _ in calls)) for calls in rounds} == {"ab"}
    assert len({calls[0][0] for calls in rounds}) == 2, "the same function always comes first"


def test_compare_retries_once_then_says_what_does_not_match(cupti: FakeCupti) -> None:
    calls = 0

    def unsteady() -> None:
        nonlocal calls
        calls += 1
        cupti.launch(f"kernel{calls // 9}", 0.001)

    with pytest.raises(_timing.TimingError, match=r"unsteady.*should launch|two equal calls"):
        _timing.compare({"unsteady": unsteady}, [()], rounds=20)

    failures = [True]

    def hiccup() -> None:
        cupti.launch("gemm", 0.001)
        if cupti.active and failures and len(cupti.records) > 4:
            failures.pop()
            cupti.launch("stray", 0.001)

    assert _timing.compare({"hiccup": hiccup}, [()], rounds=8)["hiccup"].kernels == ("gemm",)


def test_split_records_rejects_what_does_not_match() -> None:
    kernels = {"a": ("pad", "gemm"), "b": ("gemm",)}
    records = [("gemm", 1.0), ("pad", 2.0), ("gemm", 4.0)]
    assert _timing.split_records(records, ["a", "b"], kernels) == {"a": [3000.0], "b": [4000.0]}
    with pytest.raises(_timing.TimingError, match="recorded 3 kernels where 1 calls launch 2"):
        _timing.split_records(records, ["a"], kernels)
    with pytest.raises(_timing.TimingError, match=r"call 1 \(b\) should launch \['gemm'\], CUPTI recorded \['pad'\]"):
        _timing.split_records([records[0], records[1], records[1]], ["a", "b"], kernels)


def test_compare_names_the_function_that_fails() -> None:
    def broken(x: int) -> None:
        raise ValueError(f"bad {x}")

    with pytest.raises(RuntimeError, match="broken failed: bad 3"):
        _timing.compare({"broken": broken}, [(3,)])
    with pytest.raises(ValueError, match="no inputs for a"):
        _timing.compare({"a": abs}, {})


def test_compare_uses_the_hosts_clock_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timing, "find_cupti", lambda: None)
    timing = _timing.compare({"add": jnp.add}, {"add": [(jnp.ones(3), 1)]}, rounds=30, min_rounds=4, budget_s=0)["add"]
    assert timing.source == "wall" and timing.samples == 4 and 0 < timing.us_p10 <= timing.us <= timing.us_p90


@pytest.mark.parametrize(("nbytes", "count"), [(300, 2), (100, 2), (99, 3), (10, 20), (1, 50)])
def test_rotating_arg_sets_exceed_twice_the_cache(nbytes: int, count: int) -> None:
    sets = _timing.rotating_arg_sets(lambda i: (i,), nbytes, l2_bytes=100, max_sets=50)
    assert sets == [(i,) for i in range(count)]


def test_random_arrays_differ_by_seed_and_fit_the_dtype() -> None:
    first, second = (_timing.random_array(seed, (64, 64), "int8") for seed in (0, 1))
    assert first.dtype == jnp.int8 and int(first.min()) >= -64 and int(first.max()) < 64
    assert not (first == second).all()
    assert abs(float(_timing.random_array(0, (64, 64), "float8_e4m3fn").astype(jnp.float32).std()) - 1) < 0.05
