"""What the build makes of the sources, and facts that are written down in more than one file."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxgemm
from jaxgemm import _core

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def readelf(*options):
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    command = ["readelf", "--wide", *options, _core.__file__]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_version_is_that_of_the_installed_distribution():
    assert jaxgemm.__version__ == importlib.metadata.version("jaxgemm")


def test_distribution_has_the_tuning_tables():
    tables = {f"jaxgemm/tuning/{path.name}" for path in (ROOT / "jaxgemm" / "tuning").glob("*.json")}
    assert "jaxgemm/tuning/nvidia-h200.json" in tables
    files = {str(path) for path in importlib.metadata.files("jaxgemm") or []}
    if "jaxgemm/_tuning.py" in files:  # an editable installation lists no file of the package
        assert tables <= files


def test_module_has_a_stable_abi_from_python_3_12_on():
    expected = ".abi3.so" if sys.version_info >= (3, 12) else ".cpython-311-"
    assert expected in Path(_core.__file__).name


def test_module_needs_no_cuda_library_and_no_folder_of_the_build():
    dynamic = readelf("--dynamic")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert needed
    allowed = re.compile(r"(lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread)|ld-linux.*)\.so\.\d+")
    assert [name for name in needed if not allowed.fullmatch(name)] == []
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert str(ROOT).encode() not in Path(_core.__file__).read_bytes()


def test_module_exports_its_entry_point_only():
    symbols = readelf("--dyn-syms").splitlines()
    rows = [line.split() for line in symbols if re.match(r"\s*\d+:", line)]
    assert [row[7] for row in rows if len(row) > 7 and row[6] != "UND"] == ["PyInit__core"]


def test_hooks_run_the_versions_of_the_dev_extra():
    pins = dict(pin.split("==") for pin in PROJECT["project"]["optional-dependencies"]["dev"])
    hooks = dict(re.findall(r"repo: \S+/(\S+)\n +rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text()))
    assert hooks == {"ruff-pre-commit": pins["ruff"], "mirrors-clang-format": pins["clang-format"]}


def test_contributing_installs_the_build_tools_of_the_dev_extra():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    pins = set(PROJECT["project"]["optional-dependencies"]["dev"])
    for pin in re.findall(r"'([a-z-]+==\d+\.\d+\.\d+)'", text):
        assert pin in pins


def configured_archs(value):
    """What cmake/CudaArchs.cmake makes of the variable JAXGEMM_ARCHS: the architectures, or the error."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    command = ["cmake", f"-DJAXGEMM_ARCHS={value}", "-P", str(ROOT / "cmake" / "CudaArchs.cmake")]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    match = re.search(r"-- CUDA architectures: (\S+)", result.stdout)
    return match[1] if result.returncode == 0 and match else " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("value", "archs"),
    [
        ("", "80-real;90a-real;90-virtual"),
        ("90a-real", "90a-real"),
        ("80, 90a-real", "80;90a-real"),
        ("80 80 120f-virtual", "80;120f-virtual"),
    ],
)
def test_archs(value, archs):
    assert configured_archs(value) == archs


@pytest.mark.parametrize("value", ["sm_90", "90b", "75-real", "90a-cubin", "hopper", "8.0", "80;x"])
def test_bad_archs_are_refused(value):
    assert f"'{value.split(';')[-1]}' is not an architecture" in configured_archs(value)
