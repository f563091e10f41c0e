"""`python -m tests.emulator`: what a developer sees."""

from __future__ import annotations

import re

import pytest

from tests.emulator.__main__ import main
from tests.emulator.library import Emulator


@pytest.fixture
def tool(emulated: Emulator, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> tuple[int, str]:
        status = main([*map(str, arguments), "--library", str(emulated.path)])
        return status, capsys.readouterr().out

    return run


@pytest.mark.parametrize("data", ["integers", "ones", "index", "normal"])
def test_right_kernel(tool, data: str) -> None:
    options = ("--layout", "TT", "--batch", "both", "--seeds", 3, "--slow", "cp_async,tma", "--misaligned", "lhs,out")
    status, text = tool("wmma_tiled:32x32x32", 33, 34, 70, "--data", data, *options)
    assert status == 0, text
    assert "seeds 0-2: right, nothing found" in text


def test_bank_conflicts_by_line(tool) -> None:
    status, text = tool("smem_tiled", 32, 32, 32, "--layout", "TN", "--conflicts")
    assert status == 0
    assert "cuda/kernels/smem_tiled.cu:" in text


def test_wrong_value_with_its_owner(tool) -> None:
    status, text = tool("sm80.rhs_halves_swapped", 64, 64, 32)
    assert status == 1
    assert "elements are wrong; the first at row 0, col 0: got" in text
    assert "written by CTA 0, warp 0, lane 0" in text
    assert "  rows of 64: 0-63" in text


def test_race_with_both_lines(tool) -> None:
    status, text = tool("sm80.no_barrier", 64, 64, 128, "--seeds", 2)
    assert status == 1
    assert "RAW" in text
    assert text.count("reference/sm80.cuh:") >= 2


def test_refusal(tool) -> None:
    status, text = tool("sm90.tma_store", 3, 5, 8, "--multiple", 8)
    assert status == 1
    assert "error: TMA stores whole chunks of 16 bytes" in text


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("simt.early_return", "deadlock"), ("simt.no_column_mask", "out of bounds"),
        ("simt.misaligned_vector", "misaligned"), ("simt.writes_operand", "read-only"),
    ],
)  # fmt: skip
def test_findings_name_thread_cta_and_line(tool, row: str, kind: str) -> None:
    status, text = tool(row, 33, 35, 40)
    assert status == 1
    assert kind in text
    assert re.search(r"thread \d+ of CTA \d+", text)
    assert re.search(r"at .*(?:reference/simt\.cuh|epilogue\.cuh):\d+", text)


def test_unknown_names(tool) -> None:
    with pytest.raises(SystemExit, match="naive:32x32x1 does not take 'int8,int8,int32'; it takes float32"):
        tool("naive", 3, 4, 5, "--dtypes", "int8,int8,int32")
    with pytest.raises(SystemExit, match=r"near: .*wmma_tiled:64x64x64"):
        tool("wmma_tild:64x64x64", 3, 4, 5)
    with pytest.raises(SystemExit, match="'dma' is none of cp_async, tma"):
        tool("naive", 3, 4, 5, "--slow", "dma")


def test_list(tool, emulated: Emulator) -> None:
    status, text = tool("--list")
    assert status == 0
    assert len(text.splitlines()) == len(emulated.kernels)


def test_switches_are_faster_than_ucontext(emulated: Emulator, tool) -> None:
    """Ten times, which the scheduler of a busy machine may spoil once."""
    assert "per second" in tool("--speed")[1]
    ratios = []
    for _ in range(5):
        speed = emulated.speed()
        ratios.append(speed["ucontext_switch_ns"] / speed["switch_ns"])
        if ratios[-1] >= 10:
            return
    pytest.fail(f"a switch of ucontext takes {ratios} times as long")
