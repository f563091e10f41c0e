"""Builds the emulator with CMake, in a folder that stays for the next time."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.trees import tree_hash

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CUDA = ROOT / "cuda"
_FAMILY = re.compile(r"(^JAXGEMM_FAMILY\(\w+,)([^)]*)\)", re.MULTILINE)


def _tool(name: str) -> str:
    """A program of this environment, else of PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else name


def build(*, sanitize: bool = False) -> Path:
    """Compiles what changed and returns the library.

    Args:
      sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer, and without the emulator's own checks of plain
        loads and stores. As that takes long to compile, of a family there is one kernel: the first whose k-tiles have a
        certain length (and so, where it matters, a certain element type), another one after a change of ``cuda/``.

    Raises:
      RuntimeError: with the compiler's output, if it does not compile.
    """
    with _configured(sanitize=sanitize) as folder:
        _run([_tool("cmake"), "--build", str(folder)])
    return folder / "libjaxgemm_emulator.so"


def build_variants(variants: Mapping[str, Mapping[Path, str]], wanted: Collection[str]) -> dict[str, Path]:
    """Libraries in which some files of the kernels differ, for the ``wanted`` ones of all variants.

    Compiled are a variant's ``.cu`` files that are given, with all that they include as it is in the variant. The
    others are as they are in :func:`build`.

    Args:
      variants: by name, the texts that differ, by their path below ``cuda/``.
      wanted: names of those to build.

    Raises:
      RuntimeError: with the compiler's output, if they do not compile.
    """
    with _configured(variants=variants) as folder:
        _run([_tool("cmake"), "--build", str(folder), "--target", *wanted])
    return {name: folder / f"lib{name}.so" for name in wanted}


@contextmanager
def _configured(*, sanitize: bool = False, variants: Mapping[str, Mapping[Path, str]] | None = None) -> Iterator[Path]:
    """The build folder, which stays, and nobody else's meanwhile."""
    folder = ROOT / "build" / ("emulator-sanitize" if sanitize else "emulator")
    folder.mkdir(parents=True, exist_ok=True)
    strict = "JAXGEMM_WERROR=ON" in os.environ.get("SKBUILD_CMAKE_DEFINE", "")  # as for the kernels' own build
    with (folder / ".lock").open("w") as lock:  # several test workers may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write_variants(folder / "variants", variants or {})
        if sanitize:
            copies = {path: only_kernels(text, _first_of_a_length) for path, text in _sources().items()}
            _write_copy(folder / "cuda", copies)
        _run([
            _tool("cmake"), "-S", str(HERE), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None",
            f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DEMULATOR_SANITIZE={'ON' if sanitize else 'OFF'}",
            f"-DEMULATOR_CUDA_DIR={folder / 'cuda' if sanitize else CUDA}",
            f"-DEMULATOR_VARIANTS={'ON' if variants else 'OFF'}", f"-DEMULATOR_WERROR={'ON' if strict else 'OFF'}",
            *(["--fresh"] if _moved(folder) else []),
        ])  # fmt: skip
        yield folder


def only_kernels(text: str, kept: Callable[[list[str]], list[str]]) -> str:
    """A family's source with some of its rows, "&kKernel<Config64x64x32>" and so on, as ``kept`` picks them."""
    return _FAMILY.sub(
        lambda found: f"{found[1]} {', '.join(kept([row.strip() for row in found[2].split(',')]))})", text
    )


def _first_of_a_length(rows: list[str]) -> list[str]:
    # The last number is that of the k-tile, whatever a name has behind it.
    firsts = list({re.findall(r"\d+", row)[-1]: row for row in reversed(rows)}.values())
    return [firsts[int(tree_hash(CUDA)[:8], 16) % len(firsts)]]


def _sources() -> dict[Path, str]:
    """By their path below cuda/."""
    kinds = (".cu", ".cuh", ".h", ".cc")
    return {path.relative_to(CUDA): path.read_text() for path in CUDA.glob("**/*") if path.suffix in kinds}


def _write_variants(folder: Path, variants: Mapping[str, Mapping[Path, str]]) -> None:
    if not variants:
        return
    sources = _sources()
    for stale in {path.name for path in folder.glob("*")} - variants.keys():
        shutil.rmtree(folder / stale)
    for name, texts in variants.items():
        others = {path: text for path, text in sources.items() if path.suffix != ".cu"}
        _write_copy(folder / name, {**others, **texts})


def _write_copy(folder: Path, texts: Mapping[Path, str]) -> None:
    """Files of a folder. Nothing is touched that is as it should be: it need not be compiled again."""
    for stale in {path.relative_to(folder) for path in folder.glob("**/*.*")} - texts.keys():
        (folder / stale).unlink()
    for path, text in texts.items():
        target = folder / path
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


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
