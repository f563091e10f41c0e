"""``python -m benchmarks.installed``: models of Flax before and after ``jaxgemm.install()``.

The products of every model are measured first (``jaxgemm.tune``), as a user would. Then one program, the loss of a
batch or a whole training step, is compiled with JAX's own rule and with ours installed, and both take turns:

- device time: the durations of all kernels of a call, summed, with command buffers off so that CUPTI sees each;
- wall-clock time of a call until its result is there, as XLA compiles it by default.

Writes benchmarks/results/installed/<device>.json, from which ``python -m benchmarks.render`` makes docs/install.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import jax

import jaxgemm
from benchmarks.host_file import MODES
from benchmarks.results import RESULTS, Header, current_header
from benchmarks.rungs import NOTHING_YET, inject
from benchmarks.tables import caption, table
from jaxgemm._files import device_slug, dumps, replace_text
from jaxgemm._timing import Timing, compare

if TYPE_CHECKING:
    from benchmarks.flax_models import Case

DIRECTORY = "installed"
VARIANTS = ("jax", "installed")
PASSES = ("forward", "training step")
ROUNDS, CALLS = 15, 4
CALL = 'custom_call_target="jaxgemm_gemm"'


class InstalledRow(TypedDict):
    """One program: times in microseconds by variant, and the relative difference of the two losses."""

    model: str
    program: str
    kernels_installed: int  # calls of ours in the program
    device_us: dict[str, float]
    wall_us: dict[str, float]
    loss_difference: float


class InstalledDocument(Header):
    """A whole file."""

    rows: list[InstalledRow]


def validate_installed(document: InstalledDocument) -> None:
    """Raises ValueError if a file does not follow the schema."""
    if sorted(document) != sorted([*Header.__annotations__, "rows"]):
        raise ValueError(f"header fields are {sorted(document)}")
    seen = set()
    for number, row in enumerate(document["rows"]):
        if list(row) != list(InstalledRow.__annotations__):
            raise ValueError(f"row {number} has the fields {list(row)}")
        for times in (row["device_us"], row["wall_us"]):
            if set(times) != set(VARIANTS) or not all(0 < us < math.inf for us in times.values()):
                raise ValueError(f"row {number} has times that cannot be: {times}")
        if not 0 <= row["loss_difference"] < 0.01:  # NaN is not
            raise ValueError(f"row {number} has losses that differ by {row['loss_difference']}")
        if row["program"] not in PASSES or (key := (row["model"], row["program"])) in seen:
            raise ValueError(f"row {number} is unknown or there twice: {row['model']}, {row['program']}")
        seen.add(key)


def programs(case: Case, seed: int = 0) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The loss of a batch, and a training step, each with its operands."""
    from benchmarks.flax_models import OPTIMISER

    data, weights = jax.random.split(jax.random.key(seed))
    x, target = case.inputs(data)
    params = jax.jit(case.model.init)(weights, x)
    state = OPTIMISER.init(params)
    return {"forward": (case.forward, (params, x, target)), "training step": (case.step, (params, state, x, target))}


def compiled(function: Callable[..., Any], operands: Sequence[Any], variant: str, mode: str) -> Any:
    """The program by JAX's own rule or by the installed one."""
    flags: Any = MODES[mode]
    with jaxgemm.options(install=variant == "installed"):
        return jax.jit(function).lower(*operands).compile(compiler_options=flags or None)


def wall(
    fns: Mapping[str, Callable[..., Any]], operands: Sequence[Any], rounds: int, calls: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Median microseconds of a call, each waited for; the functions take turns."""
    samples: dict[str, list[float]] = {name: [] for name in fns}
    for number in range(rounds):
        names = list(fns) if number % 2 else list(fns)[::-1]
        for name in names:
            jax.block_until_ready(fns[name](*operands))
            for _ in range(calls):
                begin = clock()
                jax.block_until_ready(fns[name](*operands))
                samples[name].append(1e6 * (clock() - begin))
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(
    case: Case, program: str, *, rounds: int = ROUNDS, calls: int = CALLS,
    timer: Callable[..., dict[str, Timing]] = compare,
) -> InstalledRow:  # fmt: skip
    """One row. Raises RuntimeError where the installed program is the same, or a loss is no number."""
    function, operands = programs(case)[program]
    make = functools.partial(compiled, function, operands)
    seen_by_cupti = {variant: make(variant, "off") for variant in VARIANTS}
    device = timer(seen_by_cupti, [operands] * 2, rounds=rounds, budget_s=30.0)
    by_default = {variant: make(variant, "default") for variant in VARIANTS}
    losses = {name: float(jax.tree.leaves(fn(*operands))[0]) for name, fn in by_default.items()}
    if not all(math.isfinite(loss) and loss > 0 for loss in losses.values()):
        raise RuntimeError(f"{case.name}, {program}: losses that cannot be: {losses}")
    if any(timing.source != "cupti" for timing in device.values()):
        raise RuntimeError("no device times: CUPTI is not available")
    return {
        "model": case.name,
        "program": program,
        "kernels_installed": (by_default["installed"].as_text() or "").count(CALL),
        "device_us": {name: float(f"{timing.us:.5g}") for name, timing in device.items()},
        "wall_us": {name: float(f"{us:.5g}") for name, us in wall(by_default, operands, rounds, calls).items()},
        "loss_difference": float(f"{abs(losses['installed'] - losses['jax']) / losses['jax']:.3g}"),
    }


def load_installed(directory: Path) -> list[InstalledDocument]:
    """Every file of the schema below a directory of results, validated."""
    documents = [json.loads(path.read_text()) for path in sorted((directory / DIRECTORY).glob("*.json"))]
    for document in documents:
        validate_installed(document)
    return documents


def installed_page(text: str, documents: Sequence[InstalledDocument]) -> str:
    """docs/install.md with its generated part."""
    header = ["<model", "<program", "our kernels", "device, JAX, µs", "installed, µs", "speed", "wall, JAX, µs",
              "installed, µs", "speed"]  # fmt: skip
    parts = []
    for document in documents:
        lines = [
            [row["model"], row["program"], str(row["kernels_installed"])]
            + [
                cell
                for times in (row["device_us"], row["wall_us"])
                for cell in (
                    *(f"{times[name]:,.0f}" for name in VARIANTS),
                    f"{times['jax'] / times['installed']:.3f}",
                )
            ]
            for row in document["rows"]
        ]
        parts.append(f"{caption(document)}.\n\n{table(header, lines)}")
    return inject(text, "installed", "\n\n".join(parts) or NOTHING_YET, "docs/install.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.installed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/installed/<device>.json")
    args = parser.parse_args(argv)
    if jax.default_backend() != "gpu":
        print(f"cannot measure models: it needs a GPU, JAX's backend is {jax.default_backend()}", file=sys.stderr)
        return 1
    from benchmarks.flax_models import cases
    from jaxgemm import _tuning

    header = current_header()
    rows: list[InstalledRow] = []
    with tempfile.TemporaryDirectory() as cache:  # what the user has measured is neither used nor changed
        os.environ["XDG_CACHE_HOME"] = cache
        os.environ.pop(_tuning.SETTING, None)
        _tuning.forget()
        for case in cases():
            function, operands = programs(case)["training step"]
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), operands)
            del operands
            print(f"{case.name}\n{jaxgemm.tune(function, *shapes)}", flush=True)
            for program in PASSES:
                rows.append(measure(case, program))
                print(rows[-1], flush=True)
                jax.clear_caches()
    document: InstalledDocument = {**header, "rows": rows}
    validate_installed(document)
    replace_text(args.out or RESULTS / DIRECTORY / f"{device_slug(header['device'])}.json", dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
