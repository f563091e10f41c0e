"""Runs one kernel on one shape in the emulator and says what is wrong with it.

python -m tests.emulator wmma_tiled:64x64x64 65 70 130 --layout TN --seeds 8
python -m tests.emulator wmma_tiled:64x64x64 128 128 64 --conflicts
python -m tests.emulator --list
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.edge_shapes import BATCHES, LAYOUTS, Case, Shape
from tests.emulator.conflicts import BUDGET_FILE, write_budget
from tests.emulator.library import ENGINES, Emulator, KernelInfo, Run, Schedule, emulator
from tests.emulator.problem import ARRAYS, Placement, Result, Trial, exact, faults
from tests.emulator.words import WORDS_FILE, write_digests
from tests.values import DTypes, integers, judged_at, normals, product_error_ratio

PRECISIONS = ("default", "highest")
_MOST_FAILURES = 3


def _ones(_: np.random.Generator, shape: Any, dtype: str) -> np.ndarray:
    return np.ones(shape, dtype)


DATA: dict[str, Callable[..., np.ndarray]] = {"integers": integers, "ones": _ones, "index": _ones, "normal": normals}


def _select_rows(trial: Trial, lhs: np.ndarray, rhs: np.ndarray) -> None:
    """Makes row i of the product row i % K of rhs, whose elements are (7 row + column) % 251: what came from where?"""
    lhs[...], rows, cols = 0, lhs, rhs
    if trial.case.layout[0] == "T":
        rows = np.swapaxes(rows, -1, -2)
    if trial.case.layout[1] == "T":
        cols = np.swapaxes(cols, -1, -2)
    depth = np.arange(trial.case.shape.k)
    cols[...] = ((7 * depth[:, None] + np.arange(trial.case.shape.n)) % 251).astype(rhs.dtype)
    if depth.size:
        picked = np.arange(trial.case.shape.m)
        rows[..., picked, picked % depth.size] = 1


def _judge(result: Result, trial: Trial, lhs: np.ndarray, rhs: np.ndarray, dtypes: DTypes, data: str) -> str:
    """What is wrong; "" if nothing is."""
    if data != "normal":
        return faults(result, exact(trial.case, lhs, rhs, dtypes[2]))
    found = str(result.run) or ("the gaps between rows were written" if result.stray else "")
    if not found:
        bound = judged_at(result.kernel, dtypes, trial.precision)
        ratio = product_error_ratio(trial.case, result.out, (lhs, rhs), dtypes, bound)
        found = "" if ratio <= 1 else f"the largest error is {ratio:.3g} times its bound"
    return found


def _split(text: str) -> tuple[int, int]:
    whole, splits = map(int, text.split(","))
    return whole, splits


def _numbers(indices: list[int]) -> str:
    return f"seed {indices[0]}" if len(indices) == 1 else f"seeds {indices[0]}-{indices[-1]}"


def run_kernel(emulated: Emulator, info: KernelInfo, trial: Trial, options: argparse.Namespace) -> bool:
    """Runs all seeds and prints what is wrong; whether nothing is."""
    dtypes = info.dtypes[0]
    if options.dtypes:
        known = {",".join(row): row for row in info.dtypes}
        if options.dtypes not in known:
            sys.exit(f"{info.name} does not take {options.dtypes!r}; it takes {' '.join(known)}")
        dtypes = known[options.dtypes]
    shape = trial.case.shape
    lhs, rhs = trial.operands(dtypes, DATA[options.data])
    if options.data == "index":
        _select_rows(trial, lhs, rhs)
    right, failed, ran = [], 0, None
    start = time.perf_counter()
    print(f"{info.name} {','.join(dtypes)} {shape.m}x{shape.n}x{shape.k} {trial.case.layout} batch {shape.batch}")
    for seed in range(options.seed, options.seed + options.seeds):
        trial = trial.with_seed(seed)
        result = trial.run(emulated, info.name, dtypes, lhs, rhs)
        ran = ran or result.run
        found = _judge(result, trial, lhs, rhs, dtypes, options.data)
        if not found:
            right.append(seed)
            continue
        failed += 1
        if failed <= _MOST_FAILURES:
            print(f"seed {seed}:\n  " + found.replace("\n", "\n  "))
    if failed > _MOST_FAILURES:
        print(f"and {failed - _MOST_FAILURES} more seeds that fail")
    if right:
        print(f"{_numbers(right)}: {'right' if not failed else f'{len(right)} are right'}, nothing found")
    print(f"{options.seeds} runs took {time.perf_counter() - start:.2f} s")
    if options.conflicts and ran:
        print_conflicts(emulated, ran)
    return not failed


def print_conflicts(emulated: Emulator, ran: Run) -> None:
    """Bank conflicts by line of code, the costliest first."""
    places = emulated.places({int(row.where) for row in ran.wavefronts})
    print(f"{'accesses':>10} {'wavefronts':>10} {'ideal':>10} {'ratio':>6}  shared memory")
    for row in sorted(ran.wavefronts, key=lambda row: row.ideal - row.wavefronts):
        ratio = row.wavefronts / row.ideal
        what = f"{row.what} at {places[int(row.where)]}"
        print(f"{row.accesses:>10} {row.wavefronts:>10} {row.ideal:>10} {ratio:>6.2f}  {what}")


def print_speed(emulated: Emulator) -> None:
    """A context switch against ucontext's, and instructions per second."""
    speed = emulated.speed()
    ratio = speed["ucontext_switch_ns"] / speed["switch_ns"]
    print(
        f"context switch: {speed['switch_ns']:.1f} ns, ucontext's: {speed['ucontext_switch_ns']:.1f} ns ({ratio:.0f}x)"
    )
    print(f"mma.m16n8k16: {speed['mma_m16n8k16_per_second']:.3g} per second and core")


def print_list(emulated: Emulator) -> None:
    for info in emulated.kernels.values():
        dtypes = " ".join(",".join(dtypes) for dtypes in info.dtypes)
        print(f"{info.name:<44} {info.threads:>4} threads, {info.stages} stages, {' '.join(info.layouts)}, {dtypes}")


def kernel_named(emulated: Emulator, name: str) -> KernelInfo:
    """By full name, or by family if it has one kernel."""
    of_family = [info for info in emulated.kernels.values() if info.family == name]
    if name in emulated.kernels or len(of_family) == 1:
        return emulated.kernels.get(name) or of_family[0]
    near = [info.name for info in of_family] or difflib.get_close_matches(name, emulated.kernels, 5, 0.4)
    sys.exit(f"no kernel is called {name!r}; near: {', '.join(near) or 'none'}; all: python -m tests.emulator --list")


def _names(text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if unknown := [name for name in names if name not in allowed]:
        sys.exit(f"{unknown[0]!r} is none of {', '.join(allowed)}")
    return names


def _at_least(smallest: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text} is less than {smallest}")
        return int(text)

    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.emulator", description=__doc__.partition("\n")[0])
    parser.add_argument("kernel", nargs="?", help="full name, or a family of one kernel")
    parser.add_argument("sizes", nargs="*", type=_at_least(0), metavar="M N K")
    parser.add_argument("--layout", choices=LAYOUTS, default="NN")
    parser.add_argument("--dtypes", help="lhs,rhs,out; by default the first that the kernel takes")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=PRECISIONS[0], help="whether float32 may be rounded to TF32"
    )
    parser.add_argument("--batch", choices=BATCHES, default="none")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="of the first schedule")
    parser.add_argument("--seeds", type=_at_least(1), default=1, help="how many schedules to try")
    parser.add_argument("--data", choices=DATA, default="integers", help="what is multiplied; index: rows of rhs")
    parser.add_argument("--data-seed", type=_at_least(0), default=0)
    parser.add_argument(
        "--split", type=_split, help="whole tiles, and CTAs that share K of every other one: 2,3; else the chooser's"
    )
    parser.add_argument("--slow", default="", help=f"units that complete as late as they can, of {','.join(ENGINES)}")
    parser.add_argument(
        "--multiple", type=_at_least(1), default=1, help="round leading dimensions up to a multiple of this"
    )
    parser.add_argument("--gap", type=_at_least(0), default=0, help="elements more between rows")
    parser.add_argument(
        "--misaligned", default="", help=f"start one element past an aligned address: {','.join(ARRAYS)}"
    )
    parser.add_argument("--workers", type=_at_least(1), default=1, help="OS threads that run CTAs")
    parser.add_argument("--multiprocessors", type=_at_least(1), default=Schedule.multiprocessors)
    parser.add_argument("--conflicts", action="store_true", help="count bank conflicts by line of code")
    parser.add_argument("--library", type=Path, help="a build of the emulator other than this tree's")
    parser.add_argument("--list", action="store_true", help="list the kernels")
    parser.add_argument("--speed", action="store_true", help="measure context switches and instructions")
    parser.add_argument("--write-conflict-budget", action="store_true", help=f"write {BUDGET_FILE.name}")
    parser.add_argument("--write-probe-words", action="store_true", help=f"write {WORDS_FILE.name}")
    options = parser.parse_args(arguments)
    other = options.list or options.speed or options.write_conflict_budget or options.write_probe_words
    if not other and len(options.sizes) != 3:
        parser.error("a kernel, M, N and K are needed, or --list, --speed or one of --write-...")
    return options


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 if anything is wrong."""
    options = parse(arguments)
    emulated = Emulator(options.library) if options.library else emulator()
    if options.list:
        print_list(emulated)
    elif options.speed:
        print_speed(emulated)
    elif options.write_conflict_budget:
        write_budget(emulated)
    elif options.write_probe_words:
        write_digests(emulated)
    else:
        latency = dict.fromkeys(_names(options.slow, ENGINES), "slow")
        trial = Trial(
            Case(Shape(*options.sizes, options.batch), options.layout),
            Placement(options.multiple, options.gap, _names(options.misaligned, ARRAYS)),
            Schedule(options.seed, options.workers, options.conflicts, latency, options.multiprocessors),
            options.data_seed,
            options.precision,
            options.split,
        )
        return 0 if run_kernel(emulated, kernel_named(emulated, options.kernel), trial, options) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
