"""Rules that keep the kernels' source executable without a GPU: only the PTX layer may know the hardware."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.emulator.build import ROOT

CUDA, EMULATED = ROOT / "cuda", ROOT / "tests" / "emulator"
_FOLDERS = ("kernels", "tile", "epilogue", "mainloop", "peers")
SOURCES = sorted(
    path for folder in _FOLDERS for path in (CUDA / folder).glob("**/*") if path.suffix in (".cu", ".cuh", ".cc", ".h")
)
SOURCES += sorted(path for folder in ("reference", "probes") for path in (EMULATED / folder).glob("*.cu*"))

_FORBIDDEN = {
    r"\b(?:__)?asm(?:__)?\b": "inline PTX belongs into cuda/ptx",
    r"\bnvcuda\b": "cuda/ptx/wmma.cuh has what nvcuda::wmma has",
    r"\b__shared__\b": "cuda/ptx/shared_storage.cuh gives shared memory",
    r"<<<": "kernels are launched by launch_kernel()",
    r'#\s*include\s*"\.\./': "headers are included by their path below cuda/",
    r"#\s*(if|ifdef|ifndef|elif).*(EMU|emulator|__CUDACC__|__NVCC__|__GNUC__)": "kernels do not know who compiles them",
}


# The compiler copies in place, where the emulator does not see it.
_UNSEEN = re.compile(r"\bmem(?:cpy|set|move)\b")


def _code(path: Path) -> str:
    """The text without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_the_ptx_layer_knows_the_hardware(path: Path) -> None:
    code = _code(path)
    found = [why for pattern, why in _FORBIDDEN.items() if re.search(pattern, code)]
    assert not (path.is_relative_to(CUDA) and _UNSEEN.search(code)), f"{path}: assign elements instead"
    assert not found, f"{path.relative_to(ROOT)}: {'; '.join(found)}"


def _functions(path: Path) -> list[str]:
    """The names of a header's inline functions, overloads included."""
    code = re.sub(r"^\s*#define(.*\\\n)*.*$", "", _code(path), flags=re.MULTILINE)
    return sorted(re.findall(r"\b(?:EMU_INLINE|__device__|inline)\s[\w:<>&*\s]*?[\s&*](\w+)\(", code))


def _headers(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.glob("*.cuh") if not path.stem.endswith("_types")}


def test_every_instruction_group_is_emulated() -> None:
    """With the same functions; what both share is in one *_types.cuh below cuda/."""
    real, emulated = _headers(CUDA / "ptx"), _headers(EMULATED / "ptx")
    assert real.keys() == emulated.keys()
    for name, path in real.items():
        assert _functions(path) == _functions(emulated[name]), name
    assert not list((EMULATED / "ptx").glob("*_types.cuh"))
