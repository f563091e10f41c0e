"""cmake/ptxas_advisories.py: what ptxas calls "info" fails the build where warnings are errors."""

from __future__ import annotations

import subprocess
import sys

import ptxas_advisories
import pytest
import resource_usage

from tests.helpers import ROOT

LAUNCHER = ROOT / "cmake" / "ptxas_advisories.py"
IGNORED = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at "
    "entry."
)
INJECTED = (
    "ptxas info    : (C7519) warpgroup.arrive is injected in around line 61 by compiler to allow use of registers in "
    "GMMA in function 'k'"
)
USAGE = "ptxas info    : Used 32 registers, 7510 bytes smem; not advisories: C7510 (C752) (C7600)"

# Writes its output file, prints what it is told to and returns what it is told to.
COMPILER = """
import pathlib, sys
stream, text, status, _, _, obj, *_ = sys.argv[1:]
print(text, file=getattr(sys, stream))
pathlib.Path(obj).write_text("\\n".join(sys.argv))
sys.exit(int(status))
"""


def launch(folder, text, status=0, stream="stderr"):
    """The launcher's result on such a compiler, and the output file. No path or argument is without a space."""
    folder = folder / "folder with spaces"
    folder.mkdir()
    compiler, obj = folder / "fake nvcc.py", folder / "a kernel.o"
    compiler.write_text(COMPILER)
    compile_command = [sys.executable, compiler, stream, text, str(status), "a kernel.cu", "-o", obj, "-DX=a b"]
    return subprocess.run([sys.executable, LAUNCHER, *compile_command], capture_output=True, text=True), obj


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_compiler_without_advisories_runs_as_if_alone(tmp_path, stream):
    result, obj = launch(tmp_path, USAGE, stream=stream)
    assert result.returncode == 0
    assert {"stdout": "", "stderr": "", stream: f"{USAGE}\n"} == {"stdout": result.stdout, "stderr": result.stderr}
    assert obj.read_text().endswith("a kernel.cu\n-o\n" + f"{obj}\n-DX=a b")


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_an_advisory_fails_and_leaves_no_output(tmp_path, stream):
    result, obj = launch(tmp_path, f"{USAGE}\n{INJECTED}\n{INJECTED}\n{IGNORED}", stream=stream)
    assert result.returncode == 1
    assert IGNORED in getattr(result, stream)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[1] for line in errors] == [" ptxas advisory C7508", " ptxas advisory C7519"]
    assert "__launch_bounds__" in errors[0]
    assert "wgmma.fence" in errors[1]
    assert not obj.exists()


@pytest.mark.parametrize("text", [USAGE, IGNORED])
def test_the_status_of_a_compiler_that_fails_is_kept(tmp_path, text):
    result, obj = launch(tmp_path, text, status=2)
    assert result.returncode == 2
    assert obj.exists()


def test_every_code_of_the_range_is_an_advisory():
    assert ptxas_advisories.complaints("ptxas info : (C7500) a\nptxas info : (C7599) b") == [
        "C7500: the code is slower than its source says; see above",
        "C7599: the code is slower than its source says; see above",
    ]


@pytest.mark.parametrize(("bounds", "advised"), [("128, 1", False), ("128", True)])
def test_what_the_compiler_of_this_machine_says(tmp_path, bounds, advised):
    source, obj = tmp_path / "probe.cu", tmp_path / "probe.cubin"
    source.write_text(
        f"__global__ void __launch_bounds__({bounds}) probe(float* out) {{\n"
        '  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");\n'
        "  out[threadIdx.x] = 1;\n"
        "}\n"
    )
    if (nvcc := resource_usage.find_tool("nvcc")) is None:
        pytest.skip("nvcc is not installed")
    compile_command = [nvcc, "-arch=sm_90a", "-cubin", source, "-o", obj]
    if subprocess.run(compile_command, capture_output=True).returncode != 0:
        pytest.skip("nvcc lacks a part of its toolkit")
    result = subprocess.run([sys.executable, LAUNCHER, *compile_command], capture_output=True, text=True)
    assert result.returncode == int(advised), result.stderr
    assert ("C7508" in result.stderr) == advised
    assert obj.exists() != advised
