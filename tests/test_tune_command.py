"""``python -m jaxgemm tune``: what it writes, says and refuses, with fake kernels and a fake timer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import __main__ as main_module
from jaxgemm import _tune, _tune_command, _tuning, _tuning_table
from jaxgemm._tuning_table import Entry, Key, Table
from tests.helpers import run_python
from tests.tuning_data import CONTENDERS, H200, Gpu, attach_fake, document, one_off, put
from tests.tuning_data import TUNED as KEY
from tests.tuning_data import TUNED_MODEL as MODEL

BEST, WRONG = [name for name in CONTENDERS if name != MODEL][:2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    yield attach_fake(monkeypatch, tmp_path)
    _tuning.forget()


def user_table() -> Table:
    path = _tuning.user_path(H200)
    assert path is not None
    return _tuning_table.read(path)


def test_the_command_writes_what_the_chooser_then_uses(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in _tune.operand_shapes(KEY)]
    assert jaxgemm.explain(*operands).kernel == MODEL
    gpu.us = {BEST: 25.0}
    assert main_module.main(["tune", "48x64x80"]) == 0
    assert user_table().entries == {KEY: Entry(BEST, 25.0, MODEL, 50.0, 50.0)}
    said = jaxgemm.explain(*operands)
    assert (said.kernel, said.reason) == (BEST, f"measured the fastest on {H200} by `python -m jaxgemm tune`")
    text = " ".join(capsys.readouterr().out.split())
    assert "100.0%" in text and "50.0" in text and "25.0" in text
    assert f"1 problems measured; {_tuning.user_path(H200)}" in text


def test_the_command_reports_what_failed_and_goes_on(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.us = {BEST: 25.0, WRONG: 1.0}
    gpu.wrong = {WRONG: one_off}
    assert main_module.main(["tune", "48x64x80", "--dtype", "int32", "bfloat16"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert f"FAILED {KEY}, {WRONG}: its result is " in text
    assert "FAILED int32 48x64x80 NN: no kernel takes int32" in text
    assert user_table().entries == {KEY: Entry(BEST, 25.0, MODEL, 50.0, 50.0)}


def test_the_command_says_why_jaxs_product_has_no_time(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.jax_fault = RuntimeError("unsupported dtype")
    assert main_module.main(["tune", "48x64x80"]) == 0, "it is no fault of a kernel"
    assert f"{KEY}: JAX's own product was not timed, RuntimeError: unsupported dtype" in capsys.readouterr().out


@pytest.fixture
def tried(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """The problems that the command measures, which then takes no time."""
    keys: list[Key] = []

    def tune(key: Key, sm: int) -> _tune.Result:
        assert sm == 90
        keys.append(key)
        return _tune.Result(key, {MODEL: 5.0}, MODEL)

    monkeypatch.setattr(_tune, "tune", tune)
    return keys


def test_problems_of_the_command_line(tried: list[Key], tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("# layers\n8x16x24  # the first\n\n3x8x16x24\n8x16x24\n")
    dtypes = ["float32", "int8", "float8_e5m2"]
    options = ["--layout", "NN", "TT", "--dtype", *dtypes, "--precision", "highest", "--batch", "2"]
    assert main_module.main(["tune", "1x5x6x7", "--shapes", str(shapes), *options]) == 0
    assert tried == [
        Key(dtype, dtype, out, "highest", layout, *sizes)
        for dtype, out in (("float32", "float32"), ("int8", "int32"), ("float8_e5m2", "bfloat16"))
        for layout in ("NN", "TT")
        for sizes in ((1, 5, 6, 7), (2, 8, 16, 24), (3, 8, 16, 24))
    ], "each once"
    assert set(user_table().entries) == set(tried)


def test_without_sizes_there_is_a_list(tried: list[Key]) -> None:
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
    put(path, document([], device="NVIDIA H100"))
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
    assert re.search(message, capsys.readouterr().err)


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
