"""The benchmarks' shapes, tables, plot and tree hashes. No GPU needed."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import counter_file, peers, plot, render, results, rungs, shapes, trees
from benchmarks.limits import LIMITS
from jaxgemm._native import _core
from tests.benchmark_data import HEADER

FAKE_US = {"slow:1": 80_000.0, "fast:1": 300.0, "fast:2": 200.0}


def test_dense_suite_has_the_agreed_problems() -> None:
    dense = shapes.dense()
    groups = {name: len(problems) for name, problems in shapes.dense_groups().items()}
    assert groups == {
        "bfloat16 squares": 6,
        "bfloat16 layers, M <= 64": 18,
        "bfloat16 layers, M 128 to 512": 12,
        "bfloat16 layers, M >= 2048": 12,
        "bfloat16 irregular": 5,
        "bfloat16 batched": 1,
        "bfloat16 with bias or activation": 16,
        "float16": 2,
        "float32 default": 3,
        "float32 highest": 3,
        "int8": 4,
        "float8_e4m3fn": 6,
    }
    assert len(dense) == len(set(dense)) == 88
    for example in (
        shapes.Problem(1, 16384, 16384, 16384, "NN", "bfloat16", "bfloat16", "bfloat16", "default"),
        shapes.Problem(1, 16, 8192, 28672, "NN", "bfloat16", "bfloat16", "bfloat16", "default"),
        shapes.Problem(1, 8192, 8192, 8191, "NN", "bfloat16", "bfloat16", "bfloat16", "default"),
        shapes.Problem(64, 512, 512, 512, "NN", "bfloat16", "bfloat16", "bfloat16", "default"),
        shapes.Problem(1, 8192, 8192, 8192, "NN", "float32", "float32", "float32", "highest"),
        shapes.Problem(1, 4096, 4096, 4096, "NT", "int8", "int8", "int32", "default"),
        shapes.Problem(1, 64, 28672, 8192, "NT", "float8_e4m3fn", "float8_e4m3fn", "bfloat16", "default"),
        shapes.Problem(
            1, 512, 14336, 4096, "NN", "bfloat16", "bfloat16", "bfloat16", "default", bias=True, activation="gelu_tanh"
        ),
    ):
        assert example in dense


def test_ladder_suite_multiplies_float32_at_both_precisions() -> None:
    ladder = shapes.ladder()
    squares = [problem for problem in ladder if problem not in shapes.LADDER_ROWS]
    assert len(ladder) == len(set(ladder)) == len(squares) + 2 == 20
    assert {problem.dtype_label for problem in ladder} == {
        "float32, highest",
        "float32, default",
        *(dtype for dtype in shapes.OUT_DTYPES if dtype != "float32"),
    }
    assert all(problem.m == problem.n == problem.k for problem in squares)
    assert all(problem.m == 1 for problem in shapes.LADDER_ROWS)
    assert all(problem.layout == "NN" for problem in ladder)


def test_random_suite_is_drawn_once_and_for_all() -> None:
    groups = shapes.random_groups()
    assert groups == shapes.random_groups()
    assert {name: len(set(problems)) for name, problems in groups.items()} == dict.fromkeys(groups, 16)
    assert [problems[0].label for problems in groups.values()] == [
        "float32 3072x768x577 TN",
        "bfloat16 12x128x32x128 NN",
        "float16 512x1x256x128 NN",
        "bfloat16 16x1x1536x5120 NN to float32",
        "bfloat16 3002x50257x80 TT",
    ]
    drawn = shapes.random_suite()
    assert len({problem.label for problem in drawn}) == len(drawn)
    assert {problem.layout for problem in drawn} == set(shapes.LAYOUTS)
    assert all(problem.min_bytes <= 2**31 and problem.flops <= 2**41 for problem in drawn)


@pytest.mark.parametrize(("tf32", "expected"), [(False, ["highest"]), (True, ["default", "highest"])])
def test_ladder_measures_the_default_of_float32_where_it_is_tf32(tf32: bool, expected: list[str]) -> None:
    info = SimpleNamespace(
        name="a:1", family="a", dtypes=[("float32",) * 3], layouts=["NN"], tf32=tf32, highest=True, cta_tile=(8, 8, 8)
    )
    found = [p for p in shapes.ladder() if p.m == shapes.LADDER_SIZE and peers.on_rung(cast(Any, info), p)]
    assert sorted(p.precision for p in found) == expected


@pytest.mark.parametrize("layout", shapes.LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_dimension_numbers_give_the_product(layout: shapes.Layout, batch: int) -> None:
    problem = shapes.problem(5, 7, 4, "float32", batch=batch, layout=layout, precision="highest")
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (problem.lhs_shape, problem.rhs_shape))
    a = lhs if layout[0] == "N" else np.swapaxes(lhs, -1, -2)
    b = rhs if layout[1] == "N" else np.swapaxes(rhs, -1, -2)
    np.testing.assert_array_equal(lax.dot_general(lhs, rhs, problem.dimension_numbers), a @ b)
    assert lhs.shape[problem.lhs_m_axis] == problem.m


def test_problem_counts_bytes_and_operations() -> None:
    problem = shapes.problem(2, 3, 5, "int8", batch=7)
    assert problem.flops == 2 * 7 * 2 * 3 * 5
    assert problem.input_bytes == 7 * (10 + 15)
    assert problem.min_bytes == 7 * (10 + 15 + 4 * 6)
    assert problem.label == "int8 7x2x3x5 NN"


def test_peer_compiles_and_kernel_name_is_found() -> None:
    problem = shapes.problem(4, 4, 8, "bfloat16", layout="NT")
    lhs, rhs = problem.operands(1)
    assert (lhs.shape, rhs.shape) == (problem.lhs_shape, problem.rhs_shape)
    out = peers.compile_peer(problem, {})(lhs, rhs)
    assert out.dtype == jnp.bfloat16 and out.shape == (4, 4)
    program = '{kernel = "naive:16x16", other = "mma"} \\22 "\\"quoted:8x8\\""'
    assert peers.called_kernel(program, ["naive:16x16", "naive:32x32"]) == "naive:16x16"
    assert peers.called_kernel(program, ["quoted:8x8"]) == "quoted:8x8"
    assert peers.called_kernel(program, ["naive:16"]) is None
    with pytest.raises(RuntimeError, match="expected one kernel"):
        peers.called_kernel(program, ["naive:16x16", "quoted:8x8"])


def document_of(rows: Iterable[results.Row]) -> results.Document:
    return {**HEADER, "rows": list(rows)}


def block(name: str) -> str:
    return f"<!-- begin {name} -->\nold\n<!-- end {name} -->"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one result file and a README to fill."""
    rows = []
    for problem in shapes.ladder():
        if problem.lhs_dtype == "bfloat16" and problem.m <= 4096:
            for name, us in FAKE_US.items() if problem.m > 1 else {"slow:1": 30.0, "row:1": 20.0}.items():
                rows.append(results.make_row("ladder", problem, name, (us, us, us), {"jnp": 100.0}, 0.5))
    rows += [
        results.make_row("dense", problem, "fast:2", (50.0, 49.0, 51.0), {"jnp": 100.0}, 0.5)
        for problem in shapes.dense()[:3]
    ]
    rows += [
        results.make_row("random", problem, "fast:2", (50.0, 49.0, 51.0), {"jnp": 20.0}, 0.5)
        for problem in shapes.random_groups()["any sizes"] if problem.label.endswith("highest")
    ]  # fmt: skip
    target = tmp_path / "benchmarks" / "results" / "nvidia-h200.json"
    target.parent.mkdir(parents=True)
    target.write_text(results.dumps(document_of(rows)))
    (tmp_path / "README.md").write_text(f"# Title\n\n{block('ladder')}\n\n{block('dense')}\n\nrest\n")
    (tmp_path / "docs").mkdir()
    blocks = "\n\n".join(map(block, ("rung slow", "rung fast", "rung row", "rung unmeasured", "counters")))
    (tmp_path / "docs" / "ladder.md").write_text(f"# Rungs\n\n{blocks}\n\nrest\n")
    (tmp_path / "docs" / "host_cost.md").write_text(block("host cost"))
    (tmp_path / "docs" / "int4_benchmarks.md").write_text(block("int4"))
    return tmp_path


def test_render_writes_tables_and_plot_and_checks_them(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--root", str(tree)]
    assert render.main([*arguments, "--check"]) == 1
    assert render.main(arguments) == 0
    assert render.main([*arguments, "--check"]) == 0
    readme = (tree / "README.md").read_text()
    assert readme.startswith("# Title\n") and readme.endswith("\nrest\n") and "old" not in readme
    fast = next(line for line in readme.splitlines() if "`fast:2`" in line)
    assert fast == "| `fast:2` | bfloat16 | 200.0 | 687 | 400.00 | 50 % | 80 % |"
    assert "| bfloat16 squares | 3 | 2.00 | 2.00 | 2.00 |" in readme
    assert "| random: any sizes | 2 | 0.40 | 0.40 | 0.40 |" in readme and "random: layers" not in readme
    assert "`fast:1`" not in readme and "| jnp.dot | bfloat16 | 100.0 | 1374 |" in readme
    page = (tree / "benchmarks" / "results" / "nvidia-h200.md").read_text()
    assert "| bfloat16 squares | 3 | 2.000 | n/a |" in page and "`fast:1`" in page and "1024³" in page
    assert "## Random\n" in page and "| float32 3002x3002x8191 NT highest | `fast:2` |" in page

    ladder = (tree / "docs" / "ladder.md").read_text()
    assert ladder.startswith("# Rungs\n") and ladder.endswith("\nrest\n") and "old" not in ladder
    slow, fast, row, unmeasured, counters = ladder.split("<!-- begin ")[1:]
    assert "`slow:1`" in slow and "`fast:2`" not in slow
    assert "| `fast:2` | bfloat16 | 200.0 | 687 | 400.00 | 50 % | 80 % |" in fast
    assert "\n256 products of 1 x 128 x 2048, NVIDIA" in row and "products" not in slow
    assert "| `row:1` | bfloat16 | 20.0 | 6.7 | 1.50 |" in row
    assert "## Ladder, bfloat16, 256 products of 1 x 128 x 2048\n" in page
    assert "Not measured yet." in unmeasured and "Not measured yet." in counters

    svg = tree / "docs" / "ladder.svg"
    first = svg.read_bytes()
    svg.unlink()
    render.main(arguments)
    assert svg.read_bytes() == first

    capsys.readouterr()
    svg.write_text(svg.read_text().replace(plot.embedded_digest(svg) or "", "0" * 64))
    assert render.main([*arguments, "--check"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "out of date: docs/ladder.svg"


def counters_of(problem: shapes.Problem, name: str, **values: float) -> counter_file.CounterRow:
    metrics = {key: key for key in values}
    return counter_file.make_counter_row(problem, name, counter_file.Launch("", values, {}), metrics)


def test_render_shows_counters(tree: Path) -> None:
    square = shapes.problem(4096, 4096, 4096)
    values = {
        "tensor_pipe_pct": 62.5,
        "shared_load_conflicts": 10.0,
        "shared_load_wavefronts": 1000.0,
        "shared_store_conflicts": 0.0,
        "shared_store_wavefronts": 0.0,
        "stall_barrier": 0.5,
        "stall_long_scoreboard": 4.0,
        "stall_wait": 1.0,
    }
    rows = [
        counters_of(square, "fast:2", **values),
        counters_of(dataclasses.replace(square, m=64), "slow:1", **values),
    ]
    document = {**HEADER, "metrics": {key: key for key in values}, "rows": rows}
    (tree / "benchmarks" / "results" / "nvidia-h200-counters.json").write_text(results.dumps(document))
    assert render.outdated(tree, write=True)
    text = (tree / "docs" / "ladder.md").read_text()
    line = (
        "| `fast:2` | bfloat16 | n/a | 62 % | n/a | n/a | n/a | n/a | n/a | n/a | n/a | 1.0 % | none | "
        "global memory, fixed latencies |"
    )
    assert text.count(line) == 2  # of the rung, and of all
    assert "`slow:1` | bfloat16 | n/a" not in text
    assert not list((tree / "benchmarks" / "results").glob("*-counters.md"))


def test_single_rows_of_another_gpu_are_shown_where_there_is_no_square(tree: Path) -> None:
    problem = shapes.LADDER_ROWS[1]
    names = ("slow:1", "row:1")
    rows = [results.make_row("ladder", problem, name, (10.0, 10.0, 10.0), {"jnp": 100.0}, 0.5) for name in names]
    other = {**document_of(rows), "device": "NVIDIA H100"}
    (tree / "benchmarks" / "results" / "nvidia-h100.json").write_text(results.dumps(other))
    assert render.outdated(tree, write=True)
    slow, _, row, *_ = (tree / "docs" / "ladder.md").read_text().split("<!-- begin ")[1:]
    assert "H100" not in slow and "4096³, NVIDIA H200" in slow
    assert row.count("256 products of 1 x 128 x 2048, NVIDIA") == 2


def test_every_rung_has_a_section() -> None:
    text = (trees.REPOSITORY / "docs" / "ladder.md").read_text()
    sections = rungs.rung_sections(text)
    for family in dict.fromkeys(info.family for info in _core.kernels()):
        assert family in sections and f"\n## {family}\n" in text


@pytest.mark.parametrize("file", ["README.md", "docs/ladder.md", "docs/host_cost.md", "docs/int4_benchmarks.md"])
def test_render_needs_its_markers(file: str, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / file).write_text("no markers")
    assert render.main(["--root", str(tree), "--check"]) == 1
    assert f"{file} needs exactly one" in capsys.readouterr().err


def test_limit_is_the_larger_of_arithmetic_and_bytes() -> None:
    limits = LIMITS["NVIDIA H200"]
    assert limits.floor_us(shapes.problem(8192, 8192, 8192)) == pytest.approx(2 * 8192**3 / 855e6)
    one_row = shapes.problem(1, 4096, 4096)
    assert limits.floor_us(one_row) == pytest.approx(one_row.min_bytes / 4296e3)
    assert limits.tflops(shapes.problem(8, 8, 8, "float32")) == 449.0
    highest = shapes.problem(8, 8, 8, "float32", precision="highest")
    assert limits.tflops(highest) == pytest.approx(449 / 3)
    assert limits.lines(highest) == {"CUDA cores, datasheet": 66.9, "three TF32 products": pytest.approx(449 / 3)}
    bfloat16 = shapes.problem(8, 8, 8)
    measured = dataclasses.replace(limits, mma_sync_tflops={"bfloat16": 600.0})
    assert [*limits.lines(bfloat16).values()] == [989.5, 855.0]
    assert measured.lines(bfloat16)["mma.sync alone, measured"] == 600.0
    assert all(dtype in {"tf32", *limits.datasheet_tflops} for dtype in shapes.OUT_DTYPES)


def git(*command: str, cwd: Path) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    return subprocess.run(
        ["git", *identity, *command], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_tree_hash_is_gits(tmp_path: Path) -> None:
    source = tmp_path / "cuda"
    for name in ("a.cu", "a/b.cuh", "a-b/c.h", "ab.txt", "z/deep/er.cc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"content of {name}\n")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("a.cu")
    git("init", "-q", cwd=tmp_path)
    git("add", "-A", cwd=tmp_path)
    git("commit", "-qm", "all", cwd=tmp_path)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "x.pyc").write_bytes(b"x")
    (source / "module.abi3.so").write_bytes(b"x")
    (source / "empty").mkdir()
    assert trees.tree_hash(source) == git("rev-parse", "HEAD:cuda", cwd=tmp_path)
    (source / "a.cu").write_text("changed\n")
    assert trees.tree_hash(source) != git("rev-parse", "HEAD:cuda", cwd=tmp_path)


def test_evidence_trees_name_this_repositorys_sources() -> None:
    hashes = trees.evidence_trees()
    assert list(hashes) == ["cuda", "jaxgemm"] and all(len(sha) == 40 for sha in hashes.values())


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("name", trees.EVIDENCE_TREES)
def test_tree_hash_of_a_clean_checkout_is_gits(name: str) -> None:
    try:
        if git("status", "--porcelain", "--", name, cwd=trees.REPOSITORY):
            pytest.skip(f"{name}/ has uncommitted changes")
        expected = git("rev-parse", f"HEAD:{name}", cwd=trees.REPOSITORY)
    except subprocess.CalledProcessError:
        pytest.skip("not a git checkout")
    assert trees.tree_hash(trees.REPOSITORY / name) == expected


def test_problems_are_plain_data() -> None:
    problem = shapes.problem(4, 5, 6, layout="TT")
    assert shapes.Problem(**dataclasses.asdict(problem)) == problem
