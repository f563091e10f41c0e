"""jaxgemm/__init__.py and _native.py: importing the package, from a checkout, incomplete, and without side effects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxgemm._native import _core
from tests.helpers import ROOT, run_python

CORE = Path(_core.__file__)

# Forgets every jaxgemm but those of the folders that a test names: a real installation, editable or not, is no help.
# What else lies beside one (JAX, in most environments) stays importable through a folder of links.
FORGET_INSTALLED = """
import os, sys, tempfile
sys.meta_path = [f for f in sys.meta_path if getattr(f, '__module__', '').startswith('_frozen_importlib')
                 or 'BuiltinImporter' in repr(f) or 'FrozenImporter' in repr(f)]
links = tempfile.TemporaryDirectory()
def without_jaxgemm(path):
    if path in os.environ['ALLOWED'].split(os.pathsep) or not os.path.isdir(os.path.join(path or '.', 'jaxgemm')):
        return path
    folder = tempfile.mkdtemp(dir=links.name)
    for entry in os.listdir(path or '.'):
        if entry != 'jaxgemm':
            os.symlink(os.path.abspath(os.path.join(path, entry)), os.path.join(folder, entry))
    return folder
sys.path = [without_jaxgemm(path) for path in sys.path]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the package's Python files and no compiled module."""
    shutil.copytree(
        ROOT / "jaxgemm", tmp_path / "source" / "jaxgemm", ignore=shutil.ignore_patterns("_core*", "__pycache__")
    )
    return tmp_path / "source"


def test_a_checkout_finds_the_compiled_module_of_the_installed_package(checkout: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    shutil.copytree(checkout / "jaxgemm", installed / "jaxgemm")
    shutil.copy(CORE, installed / "jaxgemm")
    done = run_python(
        FORGET_INSTALLED + "import jaxgemm\nfrom jaxgemm import _core\n"
        "print(jaxgemm.__file__, _core.__file__, len(jaxgemm.kernels()))",
        python_path=[checkout, installed],
        ALLOWED=f"{checkout}:{installed}",
    )
    assert done.returncode == 0, done.stderr
    package, core, kernels = done.stdout.split()
    assert Path(package) == checkout / "jaxgemm" / "__init__.py"
    assert Path(core) == installed / "jaxgemm" / CORE.name
    assert int(kernels) >= 5


def test_without_the_compiled_module_the_error_has_a_remedy(checkout: Path) -> None:
    done = run_python(FORGET_INSTALLED + "import jaxgemm", python_path=[checkout], ALLOWED=str(checkout))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: jaxgemm's compiled module jaxgemm._core cannot be imported (")
    assert "Build and install it with `python -m pip install .` in jaxgemm's source folder." in last


def test_a_broken_compiled_module_is_named(checkout: Path) -> None:
    (checkout / "jaxgemm" / CORE.name).write_bytes(b"no library")
    done = run_python(FORGET_INSTALLED + "import jaxgemm", python_path=[checkout], ALLOWED=str(checkout))
    assert done.returncode == 1
    assert "ImportError: jaxgemm's compiled module jaxgemm._core cannot be imported (" in done.stderr
    assert CORE.name in done.stderr.strip().splitlines()[-1]


def test_a_compiled_module_of_other_activations_is_refused(checkout: Path) -> None:
    epilogue = checkout / "jaxgemm" / "_epilogue.py"
    epilogue.write_text(epilogue.read_text().replace('    "silu": jax.nn.silu,\n', ""))
    shutil.copy(CORE, checkout / "jaxgemm")
    done = run_python(FORGET_INSTALLED + "import jaxgemm", python_path=[checkout], ALLOWED=str(checkout))
    assert done.returncode == 1
    assert "install jaxgemm again from one source" in done.stderr.strip().splitlines()[-1]


def header_of(folder: Path, major: int, minor: int) -> None:
    header = folder / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#define XLA_FFI_API_MAJOR {major}\n\n#define XLA_FFI_API_MINOR {minor}\n")


@pytest.mark.parametrize(("older_by", "accepted"), [((0, 1), False), ((-1, 0), False), ((0, -1), True)])
def test_a_jaxlib_that_would_refuse_the_handlers_is_named(
    tmp_path: Path, older_by: tuple[int, int], accepted: bool
) -> None:
    major, minor, _ = _core.handler_metadata()
    header_of(tmp_path, major - older_by[0], minor - older_by[1])
    done = run_python(f"import jax\njax.ffi.include_dir = lambda: {str(tmp_path)!r}\nimport jaxgemm")
    assert done.returncode == (0 if accepted else 1), done.stderr
    if not accepted:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(f"ImportError: jaxgemm was built for version {major}.{minor} of XLA's FFI, jaxlib ")
        assert f" has {major - older_by[0]}.{minor - older_by[1]} and would refuse its kernels." in last
        assert "Install a newer jaxlib, or build jaxgemm again with `python -m pip install .`" in last


@pytest.mark.parametrize("content", [None, b"\xff#define XLA_FFI_API_MAJOR x"])
def test_headers_that_do_not_say_their_version_are_no_obstacle(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        header_of(tmp_path, 0, 0)
        next(tmp_path.rglob("c_api.h")).write_bytes(content)
    done = run_python(f"import jax\njax.ffi.include_dir = lambda: {str(tmp_path)!r}\nimport jaxgemm")
    assert done.returncode == 0, done.stderr


def test_importing_starts_no_backend() -> None:
    done = run_python(
        "import jax, jaxgemm\njaxgemm.kernels()\nprint('imported')\njax.devices()",
        JAX_PLATFORMS="no_such_platform",
    )
    assert done.stdout == "imported\n", done.stderr
    assert done.returncode == 1, "a backend cannot start here, so none has been started before"
    assert "no_such_platform" in done.stderr


def test_importing_imports_no_optional_package() -> None:
    done = run_python(
        "import sys\nimport jax\nimport jax.experimental.custom_partitioning\njaxs = set(sys.modules)\n"
        "import jaxgemm\nprint(*{m.split('.')[0] for m in set(sys.modules) - jaxs})"
    )
    assert done.returncode == 0, done.stderr
    assert "jaxgemm" in done.stdout.split()
    assert not {"rich", "matplotlib", "flatbuffers", "pytest", "scipy", "torch"} & set(done.stdout.split())
