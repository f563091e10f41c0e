"""Sharded layers: the driver on CPU devices, its clock and its recorder replaced; the file, its tables, its page."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import render, sharded, sharded_file, sharded_timing
from benchmarks import sharded_layers as sl
from benchmarks.sharded import ALL_REDUCE, TRAINING, Case, Inputs, Program
from benchmarks.sharded_layers import ALL_BLOCKS, BLOCKS, JOINED_BLOCKS, LLAMA_70B, Dims
from tests.benchmark_data import HEADER
from tests.helpers import ROOT
from tests.several_gpus import data

DIMS = Dims(hidden=256, intermediate=512, heads=2, kv_heads=2)
TIMES = {"jaxgemm": [6.0, 5.5, 6.5], "jnp": [18.0, 17.5, 18.5], ALL_REDUCE: [2.0, 1.5, 2.5]}


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Two sets, not one hundred: weights of this size would all be in the cache of a GPU."""
    with pytest.MonkeyPatch.context() as patch, jax.default_device(jax.devices("cpu")[0]):
        patch.setattr(Inputs, "sets_of", lambda self, block: 2)
        found = Inputs(jax.devices("cpu")[:2], DIMS)
        for block in ALL_BLOCKS:
            assert len(found.sets(block, "int4", 3)) == 2
    return found


def programs_of(case: Case, inputs: Inputs) -> dict[str, Program]:
    return (sharded.training_programs if case.block == TRAINING else sharded.layer_programs)(case, inputs)


@pytest.mark.parametrize("case", sharded.cases([24], [1, 8], [32], small=True), ids=lambda case: case.label)
def test_both_sides_of_a_case_are_one_function(case: Case, inputs: Inputs) -> None:
    programs = programs_of(case, inputs)
    assert list(programs) == sharded_file.variants({"block": case.block})
    apart = sharded.difference(case, programs)
    assert 0 <= apart <= sharded_file.MAX_DIFFERENCE
    for program in programs.values():
        for out in jax.tree.leaves(program.run(*program.fresh())):
            assert len(out.sharding.device_set) == 2 and np.isfinite(np.asarray(out, np.float32)).all()
    ours, theirs = (jax.tree.leaves(programs[name].args) for name in ("jaxgemm", "jnp"))
    assert (jnp.uint8 in [leaf.dtype for leaf in ours]) == (case.weights == "int4")
    assert jnp.uint8 not in [leaf.dtype for leaf in theirs]


def test_a_wrong_result_is_not_measured(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sharded.PRODUCTS, "jaxgemm", lambda x, w: jnp.matmul(x, w) * 1.1)
    for block in ("mlp", TRAINING):
        run = new_run(inputs)
        assert run.all([Case(block, "bfloat16", 8, "auto", 2, 1)], lambda: None) == 1
        (error,) = run.document["errors"].values()
        assert "one of them is wrong" in error and run.document["rows"] == []
    monkeypatch.setitem(sharded.PRODUCTS, "jaxgemm", lambda x, w: jnp.matmul(x, w) * jnp.nan)
    case = Case("mlp", "bfloat16", 8, "auto", 2, 1)
    assert np.isnan(sharded.difference(case, programs_of(case, inputs)))


def test_layers_use_the_sets_in_turn_and_all_of_them(inputs: Inputs) -> None:
    """Three layers of two sets: that is x + f(x + f(x + f(x)))."""
    case = Case("mlp", "bfloat16", 8, "auto", 3, 1)
    program = programs_of(case, inputs)["jnp"]
    x, sets = program.args
    y = x
    for weights in (sets[0], sets[1], sets[0]):
        hidden = jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])
        y = x + hidden @ weights["down"]
    found, wanted = (np.asarray(out, np.float32) for out in (program.run(*program.fresh()), y))
    assert np.abs(found - wanted).max() <= 2.0**-6 * np.abs(wanted).max()
    assert np.abs(found - np.asarray(x, np.float32)).max() > 0.1


def test_sets_are_larger_than_the_cache() -> None:
    for devices in (2, 4, 8):
        made = Inputs([jax.devices("cpu")[0]] * devices, LLAMA_70B)
        for block in ALL_BLOCKS:
            numbers = sum(k * n for k, n in LLAMA_70B.shapes(block).values())
            assert made.sets_of(block) * numbers / 2 / devices >= 2 * sharded.L2_BYTES
    assert LLAMA_70B.shapes("mlp") == {"gate": (8192, 28672), "up": (8192, 28672), "down": (28672, 8192)}
    assert LLAMA_70B.shapes("joined_mlp") == {"gate_up": (8192, 57344), "down": (28672, 8192)}
    assert LLAMA_70B.shapes("joined_attention") == {"qkv": (8192, 10240), "o": (8192, 8192)}
    assert LLAMA_70B.shapes("attention") == {"q": (8192, 8192), "k": (8192, 1024), "v": (8192, 1024), "o": (8192, 8192)}


def joined(block: str, weights: dict[str, Any], dims: Dims) -> dict[str, Any]:
    """The weights of a block whose products are joined, of those of the block itself."""
    groups = {"gate_up": ("gate", "up"), "qkv": ("q", "k", "v")}
    found = {}
    for name, (k, n) in dims.shapes(block).items():
        parts = [weights[part] for part in groups.get(name, ())]
        in_turn = dims.kv_heads if name == "qkv" else dims.intermediate // dims.head_dim
        dealt = [part.reshape(k, in_turn, -1) for part in parts]
        found[name] = jnp.concatenate(dealt, axis=2).reshape(k, n) if parts else weights[name]
    return found


@pytest.mark.parametrize("partition", sl.PARTITIONS)
@pytest.mark.parametrize(("joined_block", "block"), list(zip(JOINED_BLOCKS, BLOCKS, strict=True)))
def test_joined_products_are_those_of_each(joined_block: str, block: str, partition: str) -> None:
    """Every number is a sum of the same products, in any order: of integers, and so exact."""
    dims = Dims(hidden=512, intermediate=1024, heads=8, kv_heads=4)
    with jax.default_device(jax.devices("cpu")[0]):
        x, weights = data.tokens(1, 5, dims), data.dense_weights(2, block, dims)
        wanted = sl.whole_layer(block, dims, jnp.matmul)(x, weights)
    mesh = sl.make_mesh(jax.devices("cpu")[:4], sl.MODEL, partition)
    with jax.set_mesh(mesh):
        placed = sl.place(mesh, joined(joined_block, weights, dims))
        layer = sl.tensor_parallel(joined_block, dims, jnp.matmul, mesh, partition)
        found = jax.jit(layer)(jax.device_put(x, NamedSharding(mesh, P(None, None))), placed)
    assert np.abs(np.asarray(wanted, np.float32)).max() > 0
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(wanted, np.float32))


@pytest.mark.parametrize("block", [*ALL_BLOCKS, sharded.SEQUENCE])
def test_a_layers_program_goes_on_in_the_same_place(block: str, inputs: Inputs) -> None:
    """Each result is where x was; x itself, and every number, stays in range."""
    for name, program in programs_of(Case(block, "int4", 8, "auto", 2, 1), inputs).items():
        x, *rest = program.fresh()
        for _ in range(16):
            places = [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]
            out = program.run(x, *rest)
            assert x.is_deleted() and out.sharding == program.args[0].sharding, name
            x = out
            assert [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards] == places, name
        assert not program.args[0].is_deleted()
        assert np.isfinite(np.asarray(x, np.float32)).all() and "alias" in program.run.as_text()


class FakeDevice:
    """A clock that only waiting advances, by what was started."""

    def __init__(self) -> None:
        self.now, self.queued = 0.0, 0.0
        self.log: list[str] = []

    def program(self, name: str, seconds: Any) -> Program:
        def run(x: str) -> str:
            assert x == "x"
            self.log.append(name)
            self.queued += seconds(self.log.count(name)) if callable(seconds) else seconds
            return name

        return Program(run, ("x",))

    def wait(self, out: str) -> None:
        self.log.append(f"wait {out}")
        self.now, self.queued = self.now + self.queued, 0.0


def test_programs_take_turns_and_time_is_per_layer() -> None:
    fake = FakeDevice()
    programs = {"a": fake.program("a", 80e-6), "b": fake.program("b", 40e-6)}
    found = sharded_timing.measure(programs, 4, 3, 2, clock=lambda: fake.now, wait=fake.wait)
    assert found == {"a": [20.0] * 3, "b": [10.0] * 3}
    warm_up = [entry for name in "ab" for entry in (name, name, f"wait {name}")]
    assert fake.log == [*warm_up, *(entry for name in "abba" for entry in (*[name] * 3, f"wait {name}"))]


def test_calls_of_a_program_that_goes_on_are_given_the_last_result() -> None:
    """Begun on a copy, which is waited for before the clock is read."""
    fake, given = FakeDevice(), []

    def run(x: jax.Array, more: str) -> jax.Array:
        given.append((int(x), more))
        fake.queued += 1e-6
        return x + 1

    def wait(out: Any) -> None:
        fake.wait("")
        fake.now += 0.0 if int(out) else 1.0  # what the copy takes

    program = Program(run, (jnp.int32(0), "w"), goes_on=True)
    found = sharded_timing.measure({"a": program}, 1, 3, 1, clock=lambda: fake.now, wait=wait)
    assert found["a"] == [1.0] * 3
    assert given == [(n, "w") for count in (sharded_timing.WARM_UP_CALLS, 3) for n in range(count)]


def test_median_and_percentiles_are_over_rounds() -> None:
    fake = FakeDevice()
    program = fake.program("a", lambda count: (count - sharded_timing.WARM_UP_CALLS) * 1e-6)
    found = sharded_timing.measure({"a": program}, 1, 1, 11, clock=lambda: fake.now, wait=fake.wait)
    assert found["a"] == [6, 2, 10]


class FakeCupti:
    def __init__(self, kernels: list[str]) -> None:
        self.kernels = kernels

    def _cupti_init(self) -> None: ...

    def _cupti_get_timings(self, finalize: bool, /) -> list[tuple[str, float]]:
        return [(name, 0.008) for name in self.kernels]


class Executable:
    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self) -> jax.Array:
        return jnp.zeros(1)

    def as_text(self) -> str:
        return self.text


def test_kernels_are_summed_without_collectives(inputs: Inputs) -> None:
    """Those of NCCL, and those that XLA makes of an all-reduce: named after that, or after what it comes from."""
    case = Case("mlp", "bfloat16", 8, "auto", 2, 1)
    text = "\n".join(
        [
            "  ROOT %psum_invariant.112.2 = bf16[1,8192]{1,0} all-reduce(%param_0.112), channel_id=1",
            "  %sum.7 = (bf16[8]{0}, bf16[8]{0}) all-reduce-start(%fusion), channel_id=2",
            "  %fusion = bf16[8]{0} fusion(%all-reduce.3), kind=kLoop",
        ]
    )
    programs = {name: Program(Executable(text), ()) for name in ("jaxgemm", "jnp")}
    collectives = [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "AllReduceKernelImpl", "all_reduce_one_shot",
        "psum_invariant_112_0_fusion_1", "sum_fusion", "void jaxgemm::(anonymous)::peer_sum_kernel<float, 2>(Peers)",
    ]  # fmt: skip
    found = sharded_timing.kernel_times(FakeCupti(["gemm", "fusion", "psum", *collectives]), programs, case.layers, 2)
    assert found == dict.fromkeys(programs, 3 * 8.0 / (sharded_timing.RECORDED_CALLS * 2 * 2))
    with pytest.raises(sharded_timing.TimingError, match="no kernel of jaxgemm"):
        sharded_timing.kernel_times(FakeCupti(collectives), programs, 2, 2)


@pytest.mark.parametrize("quote", ['"', '\\"'])
def test_kernels_are_named(quote: str) -> None:
    """As XLA writes attributes: as they are, or within a string."""

    call = f"backend_config={{batch = 1, kernel = {quote}wgmma:64x64x64{quote}, split = 0}}"
    other = f'custom_call_target="jaxgemm_mixed", backend_config={{kernel = {quote}int4_tma:8x16{quote}}}'
    text = f'%a = custom-call(%x), custom_call_target="jaxgemm_gemm", {call}\n' * 2 + f"%b = f({other})\n"
    assert Program(Executable(text), ()).kernels == ["wgmma:64x64x64", "int4_tma:8x16"]


def new_run(inputs: Inputs, **options: Any) -> sharded.Run:
    dims = {"hidden": 256, "intermediate": 512, "heads": 2, "kv_heads": 2}
    document: sharded_file.ShardedDocument = {
        **HEADER, "devices": 2, "dims": dims, "rounds": 3, "errors": {}, "rows": []
    }  # fmt: skip
    options = {"out": None, "limit_s": 1000.0, "measure": fake_measure, **options}
    return sharded.Run(document, inputs=inputs, **options)


def fake_measure(programs: Any, layers: int, calls: int, rounds: int) -> dict[str, list[float]]:
    assert rounds == 3
    return {name: TIMES[name] for name in programs}


def test_what_fails_is_recorded_and_the_rest_is_measured(inputs: Inputs, tmp_path: Path) -> None:
    good, bad = Case("mlp", "bfloat16", 8, "auto", 2, 1), Case("attention", "bfloat16", 0, "nothing", 2, 1)
    out = tmp_path / "a" / "out.json"

    def flaky(programs: Any, *plan: int) -> Any:
        if programs["jnp"].args[0].shape[0] == 9:
            raise RuntimeError("CUDA error")
        return fake_measure(programs, *plan)

    run = new_run(inputs, out=out, measure=flaky)
    work = [Case("mlp", "bfloat16", 9, "auto", 2, 1), good, bad]
    assert run.all(work, lambda: FakeCupti(["nccl"])) == 1
    document = json.loads(out.read_text())
    assert [row["block"] for row in document["rows"]] == ["mlp"]
    assert document["errors"]["mlp bfloat16 M=9 auto"] == "RuntimeError: CUDA error"
    assert set(document["errors"]) == {work[0].label, bad.label, f"kernels of {good.label}"}
    assert document["rows"][0]["kernel_us"] == {}
    assert "What failed:" in sharded_file.sharded_tables(document)[-1]


def test_nothing_is_begun_after_the_limit(inputs: Inputs) -> None:
    now = [0.0]

    def slow(programs: Any, *plan: int) -> Any:
        now[0] += 60.0
        return fake_measure(programs, *plan)

    run = new_run(inputs, limit_s=50.0, clock=lambda: now[0], measure=slow)
    work = [Case("mlp", "bfloat16", m, "auto", 2, 1) for m in (8, 16)]
    assert run.all(work, lambda: FakeCupti(["gemm"])) == 1
    assert [row["m"] for row in run.document["rows"]] == [8]
    assert run.document["errors"] == {work[1].label: "not begun: 60 s had passed"}
    assert run.document["rows"][0]["kernel_us"], "there is a time of its own for recording"
    now[0] += sharded.RECORDING_S
    assert run.all([], lambda: FakeCupti(["gemm"])) == 1
    assert "kernels of mlp bfloat16 M=8 auto" in run.document["errors"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[sharded_file.ShardedDocument]:
    """What a run with fake times writes into a directory of results."""
    monkeypatch.setattr(sharded, "current_header", lambda: HEADER)
    monkeypatch.setattr(sharded, "SMOKE_DIMS", DIMS)
    monkeypatch.setattr(Inputs, "sets_of", lambda self, block: 2)
    monkeypatch.setattr(Program, "kernels", ["wgmma:1"])
    out = tmp_path / "sharded" / "nvidia-h200-x2.json"
    arguments = ["--smoke", "--devices", "2", "--rounds", "3", "--prefill", "8", "--decode", "1", "--training", "8"]
    found = {"measure": fake_measure, "find_cupti": lambda: FakeCupti(["gemm"])}
    assert sharded.main([*arguments, "--out", str(out)], **found) == 0
    return sharded_file.load_sharded(tmp_path)


def test_a_run_is_written_and_rendered(written: list[sharded_file.ShardedDocument]) -> None:
    (document,) = written
    assert document["devices"] == 2 and len(document["rows"]) == 2 * 8 and document["errors"] == {}
    page = sharded_file.sharded_page("<!-- begin sharding -->\nold\n<!-- end sharding -->", written)
    assert "old" not in page and f"2 x {HEADER['device']}" in page and "3 rounds" in page
    title = "**Tensor-parallel, 4-bit weights against bfloat16 weights**"
    assert f"{title}: 8 of 8 are at least 2.5 times as fast as `jnp.matmul`." in page
    times = "6.0 (5.5 to 6.5) | 18.0 (17.5 to 18.5) | 3.00 | 2.0 | 1.0 | 1.0 | 1.00 |"
    assert f"| attention projections | 1 | shard_map | `wgmma:1` | {times}" in page
    assert "| MLP, step | 8 | jit, automatic axes | `wgmma:1` |" in page and page.count("| n/a |") == 4
    document["rows"][0]["us"]["jaxgemm"] = [18.1, 18.1, 18.1]
    assert "**: 3 of 4 are at least 1 times" in sharded_file.sharded_tables(document)[0]


def test_schema_violations_are_found(written: list[sharded_file.ShardedDocument]) -> None:
    row: Any = written[0]["rows"][0]
    us = row["us"]
    for change, message in (
        ({"extra": 1}, "header fields"),
        ({"devices": 0}, "must be a positive number"),
        ({"rows": [{**row, "extra": 1}]}, "has the fields"),
        ({"rows": [{**row, "block": "moe"}]}, "'moe'"),
        ({"rows": [{**row, "partition": "none"}]}, "partitioned by 'none'"),
        ({"rows": [{**row, "us": {"jaxgemm": us["jaxgemm"]}}]}, r"times of \['jaxgemm'\]"),
        ({"rows": [{**row, "us": {**us, "jnp": [1.0, 2.0, 3.0]}}]}, "cannot be"),
        ({"rows": [{**row, "us": {**us, "jnp": [float("nan")] * 3}}]}, "cannot be"),
        ({"rows": [{**row, "kernel_us": {"jaxgemm": 1.0, "jnp": float("nan")}}]}, "kernels that cannot be"),
        ({"rows": [{**row, "kernel_us": {"jaxgemm": 1.0}}]}, "has times of"),
        ({"rows": [{**row, "difference": float("nan")}]}, "is wrong"),
        ({"rows": [{**row, "difference": 0.04}]}, "is wrong"),
        ({"rows": [row, row]}, "there twice"),
    ):
        with pytest.raises(ValueError, match=message):
            sharded_file.validate_sharded({**copy.deepcopy(written[0]), **change})  # type: ignore[typeddict-item]


def test_files_are_named_where_they_are_wrong(tmp_path: Path) -> None:
    assert sharded_file.load_sharded(tmp_path) == []
    (tmp_path / "sharded").mkdir()
    (tmp_path / "sharded" / "gpu.json").write_text("{}")
    with pytest.raises(ValueError, match=r"gpu\.json: header fields"):
        sharded_file.load_sharded(tmp_path)


def test_the_committed_page_is_what_the_results_give() -> None:
    page = (ROOT / sharded_file.PAGE).read_text()
    assert (
        sharded_file.sharded_page(page, sharded_file.load_sharded(render.REPOSITORY / "benchmarks" / "results")) == page
    )


def test_it_refuses_without_two_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert sharded.main(["--devices", "1"]) == 1
    assert "it needs two GPUs, JAX has 1 x" in capsys.readouterr().err


def test_all_that_was_asked_for_is_measured() -> None:
    found = sharded.cases([2048, 4096], [1, 16, 64], [4096])
    assert len({case.label for case in found}) == len(found) == 2 * (3 * 2 + 4 * 3 + 2 + 1)
    assert all(case.layers * case.calls >= 128 for case in found if case.weights == "int4")


def test_the_examples_of_the_page() -> None:
    """In the order of the page; all ways of splitting give what one device computes, within roundings to bfloat16."""
    text = (ROOT / sharded_file.PAGE).read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(block, names)
    x, dense = names["x"], [names[name].astype(jnp.float32) for name in ("gate", "up", "down")]
    quantised = [names[f"q_{name}"].dequantize(jnp.float32) for name in ("gate", "up", "down")]
    for results, (gate, up, down) in ((("y", "z", "e", "s"), dense), (("y4", "z4", "e4", "s4", "j4"), quantised)):
        wanted = (jax.nn.silu(x @ gate) * (x @ up)) @ down
        for name in results:
            error = np.abs(np.asarray(names[name], np.float32) - wanted).max()
            assert error <= 2.0**-5 * np.abs(wanted).max(), name
