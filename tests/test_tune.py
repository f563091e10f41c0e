"""``python -m jaxgemm tune``: what is measured, picked, written and refused, with fake kernels and a fake timer."""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import __main__ as main_module
from jaxgemm import _tune, _tune_command, _tuning, _tuning_table
from jaxgemm._native import _core
from jaxgemm._timing import Timing
from jaxgemm._tuning_table import Entry, Key, Table
from jaxgemm._version import __version__
from tests.helpers import run_python

H200 = "NVIDIA H200"
KEY = Key("bfloat16", "bfloat16", "bfloat16", "default", "NN", 1, 48, 64, 80)
MODEL, CONTENDERS = _tune.contenders(KEY, 90)
OTHERS = [name for name in CONTENDERS if name != MODEL]
BEST, WRONG, BROKEN = OTHERS[:3]


class Gpu:
    """A GPU whose kernels multiply on the CPU: their times, and what they do wrong."""

    def __init__(self) -> None:
        self.us: dict[str, float] = {}
        self.wrong: dict[str, Any] = {}
        self.source = "cupti"
        self.timed: list[list[str]] = []
        self.called: list[tuple[Key, str]] = []

    def kernel_function(self, key: Key, name: str) -> Any:
        self.called.append((key, name))
        fault = self.wrong.get(name)
        if isinstance(fault, Exception):
            raise fault
        dot = functools.partial(
            jax.lax.dot_general,
            dimension_numbers=_tune.dimension_numbers(key),
            preferred_element_type=jnp.dtype(key.out_dtype),
        )
        return dot if fault is None else lambda lhs, rhs: fault(dot(lhs, rhs))

    def compare(self, fns: Mapping[str, Any], arg_sets: Sequence[Any], **plan: Any) -> dict[str, Timing]:
        self.timed.append(list(fns))
        return {name: Timing(self.us.get(name, 50.0), 1, 2, ("k",), 20, self.source) for name in fns}  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    fake = Gpu()
    monkeypatch.setattr(_tune, "kernel_function", fake.kernel_function)
    monkeypatch.setattr(_tune, "compare", fake.compare)
    monkeypatch.setattr(_tune, "rotating_arg_sets", lambda make_args, nbytes: [make_args(0), make_args(1)])
    monkeypatch.setattr(_tune_command, "_gpu", lambda: (90, H200))
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAXGEMM_TUNING")
    _tuning.forget()
    yield fake
    _tuning.forget()


def nudged(out: jax.Array) -> jax.Array:
    return out.at[7, 5].add(1.0)


def not_a_number(out: jax.Array) -> jax.Array:
    return out.at[47, 63].set(jnp.nan)


def test_the_fastest_right_kernel_is_picked(gpu: Gpu) -> None:
    gpu.us = {MODEL: 20.0, BEST: 12.345678, WRONG: 1.0, BROKEN: 1.0}
    gpu.wrong = {WRONG: nudged, BROKEN: RuntimeError("launch failed\nat line 7")}
    result = _tune.tune(KEY, 90)
    assert result.entry == Entry(BEST, 12.346, MODEL, 20.0)
    assert gpu.timed == [[name for name in CONTENDERS if name not in (WRONG, BROKEN)]]
    assert set(result.times_us) == set(gpu.timed[0])
    assert set(result.rejected) == {WRONG, BROKEN}
    assert result.rejected[BROKEN] == "RuntimeError: launch failed"
    assert result.rejected[WRONG].endswith("error bounds off float64")
    assert not result.failure


@pytest.mark.parametrize("fault", [nudged, not_a_number, lambda out: 1 / out, lambda out: out * 1.02])
def test_wrong_results_are_not_timed(gpu: Gpu, fault: Any) -> None:
    gpu.us = {WRONG: 1.0}
    gpu.wrong = {WRONG: fault}
    result = _tune.tune(KEY, 90)
    assert list(result.rejected) == [WRONG]
    assert result.entry is not None and result.entry.kernel == MODEL


@pytest.mark.parametrize(("us", "kernel"), [(49.5, MODEL), (48.9, BEST), (50.0, MODEL), (51.0, MODEL)])
def test_the_models_choice_stays_within_the_margin(gpu: Gpu, us: float, kernel: str) -> None:
    gpu.us = {BEST: us}
    entry = _tune.tune(KEY, 90).entry
    assert entry == Entry(kernel, 50.0 if kernel == MODEL else us, MODEL, 50.0)


def test_what_teaches_nothing_makes_no_row(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.source = "wall"
    wall = _tune.tune(KEY, 90)
    assert wall.entry is None
    assert wall.failure == "no device time: CUPTI is not available"
    gpu.source = "cupti"
    for us in (0.0, -1.0, math.nan, math.inf):
        gpu.us = {BEST: us}
        timeless = _tune.tune(KEY, 90)
        assert timeless.entry is None
        assert timeless.failure.startswith("times that are not positive: ")
    gpu.us, gpu.wrong = {}, {MODEL: nudged}
    distrusted = _tune.tune(KEY, 90)
    assert distrusted.entry is None
    assert distrusted.failure.startswith(f"the model's choice, {MODEL}, is not to be trusted: its result is ")

    def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError("too many bytes")

    gpu.wrong = {}
    for step in ("compare", "rotating_arg_sets", "reference"):
        with monkeypatch.context() as patch:
            patch.setattr(_tune, step, out_of_memory)
            assert _tune.tune(KEY, 90).failure == "MemoryError: too many bytes"
    assert _tune.tune(KEY, 90).entry is not None


def test_contenders_are_what_competes_on_price() -> None:
    families = {info.name: info.family for info in _core.kernels()}
    assert MODEL in CONTENDERS
    assert {families[name] for name in CONTENDERS} == {"mma_multistage", "wgmma"}
    for sizes in [(1, 4096, 4096, 4096), (1, 1, 14336, 4096), (64, 512, 512, 512), (1, 33, 77, 129)]:
        for dtype, precision in [("bfloat16", "default"), ("float32", "highest"), ("float16", "default")]:
            key = Key(dtype, dtype, dtype, precision, "NN", *sizes)
            model, names = _tune.contenders(key, 90)
            request = _tune.request_of(key)
            native = _tune.native_problem(request, 90)
            assert model == _core.select(native)
            costs = {info.name: _core.estimated_cost(info.name, native) for info in _core.kernels()}
            able = {info.name for info in _core.kernels() if info.stages > 2 and not _core.why_not(info.name, native)}
            assert set(names) == {name for name in able if costs[name] <= 3 * costs[model]}
    with pytest.raises(ValueError, match="no kernel takes int8 x int8 -> bfloat16"):
        _tune.contenders(Key("int8", "int8", "bfloat16", "default", "NN", 1, 8, 8, 8), 90)


@pytest.mark.parametrize("layout", _tuning_table.LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_layout_is_measured_as_the_chooser_sees_it(gpu: Gpu, layout: str, batch: int) -> None:
    key = Key("float32", "float32", "float32", "highest", layout, batch, 5, 6, 7)
    result = _tune.tune(key, 90)
    assert not result.failure and not result.rejected, "the product has the reference's shape and values"
    assert {called for called, _ in gpu.called} == {key}
    assert result.times_us


def test_a_kernel_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is the custom call of that kernel, on the problem that the row is about."""
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    for layout in _tuning_table.LAYOUTS:
        key = Key("bfloat16", "bfloat16", "float32", "highest", layout, 2, 48, 64, 80)
        name = _tune.contenders(key, 90)[1][0]
        operands = _tune._operands(key, 0)
        run = jax.jit(lambda a, b, key=key, name=name: _tune.kernel_function(key, name)(a, b))
        text = run.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
        assert f'kernel = "{name}"' in text
        assert 'precision = "highest"' in text
        assert "tensor<2x48x64xf32>" in text


# The table that is written ---------------------------------------------------------------------------------------


def table(entries: dict[Key, Entry], **changes: str) -> Table:
    header = {"device": H200, "jaxgemm": __version__, "jax": "1", "driver": "2"} | changes
    return Table(**header, entries=entries)


def key(m: int) -> Key:
    return Key("bfloat16", "bfloat16", "bfloat16", "default", "NN", 1, m, 64, 80)


FAST, SLOW = Entry(BEST, 1.5, MODEL, 2.0), Entry(MODEL, 3.0, MODEL, 3.0)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.json"
    written = table({key(2): SLOW, key(1): FAST})
    _tuning_table.write(path, written)
    assert _tuning_table.read(path) == written
    rows = [line for line in path.read_text().splitlines() if '"kernel"' in line]
    assert [json.loads(line.strip().rstrip(","))["m"] for line in rows] == [1, 2], "one row a line, in order"
    assert os.listdir(path.parent) == ["table.json"]
    assert path.stat().st_mode & 0o444, "a table that ships is for everyone"


def test_merging(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    _tuning_table.merge(path, table({key(1): FAST, key(2): FAST}))
    _tuning_table.merge(path, table({key(2): SLOW, key(3): SLOW}, jax="9"))
    assert _tuning_table.read(path) == table({key(1): FAST, key(2): SLOW, key(3): SLOW}, jax="9")
    for other in ({"device": "NVIDIA H100"}, {"jaxgemm": "0.0.1"}):
        _tuning_table.write(path, table({key(1): FAST}, **other))
        _tuning_table.merge(path, table({key(2): SLOW}))
        assert _tuning_table.read(path) == table({key(2): SLOW})
    path.write_bytes(b"\0broken")
    _tuning_table.merge(path, table({key(2): SLOW}))
    assert _tuning_table.read(path) == table({key(2): SLOW})


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    _tuning_table.write(path, table({key(1): FAST}))
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        _tuning_table.merge(path, table({key(2): SLOW}))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["table.json"]


def write_many(path: Path, first: int) -> None:
    for m in range(first, first + 40):
        _tuning_table.merge(path, table({key(m): FAST}))


def test_processes_that_write_at_once_do_not_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    _tuning_table.write(path, table({}))
    workers = [multiprocessing.get_context("spawn").Process(target=write_many, args=(path, n)) for n in (1, 1001)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert _tuning_table.read(path).faults == ()
    assert [worker.exitcode for worker in workers] == [0, 0]
    final = _tuning_table.read(path)
    assert final.faults == ()
    assert key(40) in final.entries or key(1040) in final.entries, "the last of one of them"
    assert os.listdir(tmp_path) == ["table.json"]


# The command -----------------------------------------------------------------------------------------------------


def user_table() -> Table:
    path = _tuning.user_path(H200)
    assert path is not None
    return _tuning_table.read(path)


def test_the_command_writes_what_the_chooser_then_uses(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in _tune.operand_shapes(KEY)]
    assert jaxgemm.explain(*operands).kernel == MODEL
    gpu.us = {BEST: 25.0}
    assert main_module.main(["tune", "48x64x80"]) == 0
    assert user_table().entries == {KEY: Entry(BEST, 25.0, MODEL, 50.0)}
    said = jaxgemm.explain(*operands)
    assert (said.kernel, said.reason) == (BEST, f"measured the fastest on {H200} by `python -m jaxgemm tune`")
    text = " ".join(capsys.readouterr().out.split())
    assert "100.0%" in text and "50.0" in text and "25.0" in text
    assert f"1 problems measured; {_tuning.user_path(H200)}" in text


def test_the_command_reports_what_failed_and_goes_on(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.us = {BEST: 25.0, WRONG: 1.0}
    gpu.wrong = {WRONG: nudged}
    assert main_module.main(["tune", "48x64x80", "--dtype", "float8_e4m3fn", "bfloat16"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert f"FAILED {KEY}, {WRONG}: its result is " in text
    assert "FAILED float8_e4m3fn 48x64x80 NN: no kernel takes float8_e4m3fn" in text
    assert user_table().entries == {KEY: Entry(BEST, 25.0, MODEL, 50.0)}


def test_problems_of_the_command_line(gpu: Gpu, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("# layers\n8x16x24  # the first\n\n3x8x16x24\n8x16x24\n")
    options = ["--layout", "NN", "TT", "--dtype", "float32", "int8", "--precision", "highest", "--batch", "2"]
    assert main_module.main(["tune", "1x5x6x7", "--shapes", str(shapes), *options]) == 0
    expected = {
        Key(dtype, dtype, out, "highest", layout, *sizes)
        for dtype, out in (("float32", "float32"), ("int8", "int32"))
        for layout in ("NN", "TT")
        for sizes in ((1, 5, 6, 7), (2, 8, 16, 24), (3, 8, 16, 24))
    }
    assert {called for called, _ in gpu.called} == expected
    assert len(gpu.timed) == len(expected), "each once"
    assert set(user_table().entries) == expected


def test_without_sizes_there_is_a_list(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Key] = []

    def tune(key: Key, sm: int) -> _tune.Result:
        tried.append(key)
        return _tune.Result(key, {MODEL: 5.0}, MODEL)

    monkeypatch.setattr(_tune, "tune", tune)
    assert main_module.main(["tune", "--out-dtype", "float32"]) == 0
    assert [(key.batch, key.m, key.n, key.k) for key in tried] == _tune.DEFAULT_SIZES
    assert {(key.lhs_dtype, key.out_dtype, key.layout) for key in tried} == {("bfloat16", "float32", "NN")}


def test_output_is_a_file_of_its_own(gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nvidia-h200.json"
    assert main_module.main(["tune", "48x64x80", "--output", str(path)]) == 0
    assert main_module.main(["tune", "8x8x8", "--output", str(path)]) == 0
    assert len(_tuning_table.read(path).entries) == 2
    user = _tuning.user_path(H200)
    assert user is not None and not user.exists()
    _tuning_table.write(path, table({key(1): FAST}, device="NVIDIA H100"))
    notes = tmp_path / "notes.txt"
    notes.write_text("not a table")
    for other, why in ((path, "was measured on 'NVIDIA H100', not on NVIDIA H200"), (notes, "is not JSON")):
        before = other.read_bytes()
        assert main_module.main(["tune", "8x8x8", "--output", str(other)]) == 2
        assert f"--output {other} would be written over, and {why}" in capsys.readouterr().err
        assert other.read_bytes() == before


def test_a_broken_cache_is_replaced(gpu: Gpu) -> None:
    path = _tuning.user_path(H200)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert main_module.main(["tune", "48x64x80"]) == 0
    assert list(user_table().entries) == [KEY]


def test_a_folder_that_cannot_be_written_stops_the_command(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert main_module.main(["tune", "48x64x80", "8x8x8"]) == 1
    assert f"FAILED {_tuning.user_path(H200)} cannot be written: " in capsys.readouterr().out
    assert len(gpu.timed) == 1


def test_the_limit_leaves_the_rest(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["tune", "48x64x80", "8x8x8", "8x8x16", "--limit-s", "1e-9"]) == 0
    assert list(user_table().entries) == [KEY]
    assert "2 of 3 problems were not begun" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["off", "shipped"])
def test_the_command_says_that_its_table_does_not_count(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAXGEMM_TUNING", setting)
    assert main_module.main(["tune", "48x64x80"]) == 0
    assert f"JAXGEMM_TUNING={setting}: this table does not count" in capsys.readouterr().out
    assert list(user_table().entries) == [KEY]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["12x12"], "'12x12' is not MxNxK or BATCHxMxNxK in positive numbers"),
        (["1x2x3x4x5"], "'1x2x3x4x5' is not MxNxK"),
        (["0x1x1"], "'0x1x1' is not MxNxK"),
        (["-1x1x1"], "unrecognized arguments|is not MxNxK|expected"),
        (["1x2x3.5"], "'1x2x3.5' is not MxNxK"),
        (["1x2x" + "9" * 13], "is not MxNxK"),
        (["--layout", "NX"], "invalid choice: 'NX'"),
        (["--dtype", "float17"], "invalid choice: 'float17'"),
        (["--out-dtype", "float17"], "invalid choice: 'float17'"),
        (["--precision", "low"], "invalid choice: 'low'"),
        (["--batch", "0"], "--batch 0 is not a positive number"),
        (["--limit-s", "0"], "--limit-s 0.0 is not a positive number"),
        (["--limit-s", "nan"], "--limit-s nan is not a positive number"),
        (["--shapes", "/no/such/file"], "--shapes /no/such/file: .*No such file"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main_module.main(["tune", *arguments])
    assert refused.value.code == 2
    assert pytest.importorskip("re").search(message, capsys.readouterr().err)


def test_wrong_shapes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shapes"
    for content, message in (
        (b"1x2x3\nseven\n", "'seven' is not MxNxK"),
        (b"# none\n", "no sizes"),
        (b"\xff", "utf-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(SystemExit):
            main_module.main(["tune", "--shapes", str(path)])
        text = capsys.readouterr().err
        assert f"--shapes {path}: " in text and message in text


def test_sizes_that_no_buffer_has(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    size = "9" * 12
    assert main_module.main(["tune", f"{size}x{size}x{size}"]) == 2
    assert "has too many elements" in capsys.readouterr().err


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["tune", "8x8x8"]) == 2
    text = capsys.readouterr().err
    assert "no CUDA GPU here, so there is nothing to measure" in text
    assert "jax[cuda13]" in text


def test_the_gpu_must_be_the_one_that_kernels_are_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = jax.devices()[0].device_kind
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(RuntimeError, match=f"JAX's first device is {kind}, and kernels are chosen for {H200}"):
        _tune_command._gpu()
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, kind))
    assert _tune_command._gpu() == (90, kind)
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (75, kind))
    with pytest.raises(RuntimeError, match="needs a GPU of compute capability 8"):
        _tune_command._gpu()
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(RuntimeError, match="no CUDA GPU here"):
        _tune_command._gpu()


def test_the_commands_of_the_module() -> None:
    code = "import sys\nfrom jaxgemm.__main__ import main\nsys.argv = ['jaxgemm', {!r}, '8x8x8']\nsys.exit(main())"
    tune = run_python(code.format("tune"), JAX_PLATFORMS="cpu")
    assert tune.returncode == 2
    assert tune.stderr.startswith("python -m jaxgemm tune: no CUDA GPU here")
    other = run_python(code.format("tun"), JAX_PLATFORMS="cpu")
    assert other.returncode == 2
    assert "unrecognized arguments: tun 8x8x8" in other.stderr
