"""compute-sanitizer finds nothing in any kernel, and finds a planted defect with the same options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.report import SANITIZER, SANITIZERS
from tests.gpu.support import cuda_program

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
_TIMEOUT_S = 240
_FOUND = 77  # compute-sanitizer's exit code if it found anything
_OPTIONS: dict[str, dict[str, str]] = {
    # The allocator below pads nothing, so that what lies past a buffer is another's: kept apart by padding.
    "memcheck": {"--padding": "512", "--report-api-errors": "no"},
    "racecheck": {},
    "initcheck": {},
    "synccheck": {},
}
_ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",  # one cudaMalloc per buffer, whose bounds memcheck knows
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


def _command(sanitizer: str, tool: str) -> list[str]:
    """compute-sanitizer with one tool, for kernels of namespace jaxgemm."""
    listed = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, timeout=60, check=False).stdout
    only = "--kernel-name" if re.search(r"^\s*--kernel-name\s", listed, re.MULTILINE) else "--kernel-regex"
    known = [text for option in _OPTIONS[tool].items() if option[0] in listed for text in option]
    return [sanitizer, "--tool", tool, "--error-exitcode", str(_FOUND), only, "kns=jaxgemm", *known]


def _summary(tool: str, output: str) -> dict[str, Any] | None:
    """What the last line of compute-sanitizer says, None if it says nothing."""
    if tool == "racecheck":
        found = re.findall(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", output)
        return {"errors": max(map(int, found[-1]))} if found else None
    found = re.findall(r"ERROR SUMMARY: (\d+) errors?", output)
    return {"errors": int(found[-1])} if found else None


class _Running:
    """compute-sanitizer on one program, in the background."""

    def __init__(self, sanitizer: str, tool: str, program: list[str]) -> None:
        self.tool = tool
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        path = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [*_command(sanitizer, tool), *program],
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": path}, stdout=self.output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(self) -> tuple[int, str]:
        """Exit code and output."""
        try:
            code = self.process.wait(_TIMEOUT_S)
            self.output.seek(0)
            return code, self.output.read()
        finally:
            self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()


@pytest.fixture(scope="module")
def sanitizer() -> str:
    found = cuda_program("compute-sanitizer")
    if found is None:
        pytest.fail("compute-sanitizer is not here: it comes with the CUDA toolkit, or set CUDA_HOME")
    return found


@pytest.fixture(scope="module")
def all_kernels(sanitizer: str) -> Iterator[dict[str, _Running]]:
    """All tools at once, each on a process of its own."""
    program = [sys.executable, str(HERE / "sanitizer_cases.py")]
    running = {tool: _Running(sanitizer, tool, [*program, tool]) for tool in SANITIZERS}
    yield running
    for process in running.values():
        process.close()


@pytest.fixture(scope="module")
def planted_defects(tmp_path_factory: pytest.TempPathFactory, all_kernels: Any) -> str:
    """The program with defects, compiled while the tools are busy with ours."""
    nvcc = cuda_program("nvcc")
    if nvcc is None:
        pytest.fail("nvcc is not here: it comes with the CUDA toolkit, or set CUDA_HOME")
    binary = tmp_path_factory.mktemp("planted") / "planted_defects"
    command = [nvcc, "-arch=native", "-o", str(binary), str(HERE / "planted_defects.cu")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return str(binary)


@pytest.mark.parametrize("tool", SANITIZERS)
def test_planted_defect_is_found(
    tool: str, sanitizer: str, planted_defects: str, request: pytest.FixtureRequest
) -> None:
    code, output = _Running(sanitizer, tool, [planted_defects, tool]).finish()
    summary = _summary(tool, output)
    assert code == _FOUND, output
    assert summary is not None
    assert summary["errors"] > 0, output
    request.node.user_properties.append((SANITIZER, (tool, {"planted_defect_found": True})))


@pytest.mark.parametrize("tool", SANITIZERS)
def test_kernels_are_clean(tool: str, all_kernels: dict[str, _Running], request: pytest.FixtureRequest) -> None:
    code, output = all_kernels[tool].finish()
    assert "right products:" in output, f"exit status {code}: {output[-8000:]}"
    assert _summary(tool, output) == {"errors": 0}, output[-8000:]
    assert code == 0, output[-8000:]
    request.node.user_properties.append((SANITIZER, (tool, {"errors": 0})))
