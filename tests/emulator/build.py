"""Builds the emulator with CMake, in a folder that stays for the next time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def _tool(name: str) -> str:
    """A program of this environment, else of PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else name


def build(*, sanitize: bool = False, cuda: Path = ROOT / "cuda", folder: Path | None = None) -> Path:
    """Compiles what changed and returns the library.

    Args:
      sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer, and without the emulator's own checks of plain
        loads and stores.
      cuda: the kernels' sources.
      folder: where to build; by default one folder per kind of build under ``build/``.

    Raises:
      RuntimeError: with the compiler's output, if it does not compile.
    """
    folder = folder or ROOT / "build" / ("emulator-sanitize" if sanitize else "emulator")
    folder.mkdir(parents=True, exist_ok=True)
    strict = "JAXGEMM_WERROR=ON" in os.environ.get("SKBUILD_CMAKE_DEFINE", "")  # as for the kernels' own build
    with (folder / ".lock").open("w") as lock:  # several test workers may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run([
            _tool("cmake"), "-S", str(HERE), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None",
            f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DEMULATOR_SANITIZE={'ON' if sanitize else 'OFF'}",
            f"-DEMULATOR_CUDA_DIR={cuda}", f"-DEMULATOR_WERROR={'ON' if strict else 'OFF'}",
            *(["--fresh"] if _moved(folder) else []),
        ])  # fmt: skip
        _run([_tool("cmake"), "--build", str(folder)])
    return folder / "libjaxgemm_emulator.so"


def _moved(folder: Path) -> bool:
    """Whether the folder was configured at another place, which CMake refuses to go on with."""
    cache = folder / "CMakeCache.txt"
    return cache.exists() and f"CMAKE_CACHEFILE_DIR:INTERNAL={folder}\n" not in cache.read_text()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the emulator was not built: {' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(build(sanitize="--sanitize" in sys.argv))
