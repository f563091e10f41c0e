"""The same kernels under AddressSanitizer and UndefinedBehaviorSanitizer: neither they nor the emulator trip them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge_shapes import LAYOUTS
from tests.emulated.support import CLEAN, in_parallel
from tests.emulator.build import ROOT, build
from tests.emulator.library import Emulator

_BROKEN = ("simt.no_column_mask", "simt.row_past_tile")  # leaves its tensors; leaves shared memory
_TIMEOUT_S = 600


def _runtime() -> str | None:
    """AddressSanitizer's runtime of the compiler, which must be loaded before all else. And that of C++: it looks for
    the functions that throw as it starts, and intercepts those of Python modules that bring their own, too.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    ask = [[compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    found = [subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() for command in ask]
    return ":".join(found) if all(Path(name).is_absolute() for name in found) else None


RUNTIME = _runtime()
pytestmark = pytest.mark.skipif(RUNTIME is None, reason="the C++ compiler comes without AddressSanitizer's runtime")


@pytest.fixture(scope="module")
def library() -> Path:
    return build(sanitize=True)


def _run(library: Path, families: list[str]) -> subprocess.CompletedProcess[str]:
    assert RUNTIME is not None
    options = {"LD_PRELOAD": RUNTIME, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run(
        [sys.executable, "-m", "tests.emulated.sanitizer_cases", str(library), *families],
        env=os.environ | options, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def test_kernels_are_clean(library: Path, emulated: Emulator) -> None:
    clean = {family for families in CLEAN.values() for family in families}
    taken = [info for info in emulated.kernels.values() if "." not in info.family or info.family in clean]
    families = list(dict.fromkeys(info.family for info in taken))
    products = 0
    for done in in_parallel(lambda share: _run(library, share), (families[::2], families[1::2])):
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Sanitizer" not in done.stderr
        assert "runtime error" not in done.stderr
        products += sum(map(int, re.findall(r"right products: (\d+)", done.stdout)))
    # Of a family of the registry one is there, see build(); of the others all are.
    kernels = {info.family if "." not in info.family else info.name for info in taken}
    assert products == len(LAYOUTS) * len(kernels)


@pytest.mark.parametrize("family", _BROKEN)
def test_broken_kernel_is_stopped(family: str, library: Path) -> None:
    done = _run(library, [family])
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr, done.stdout + done.stderr
    assert "right products" not in done.stdout
