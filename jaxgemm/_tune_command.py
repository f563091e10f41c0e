"""``python -m jaxgemm tune``: measures which kernel is the fastest for given sizes, so that the chooser knows.

What it finds on this machine's GPU is kept in the user's cache folder, and counts from the next start of Python on.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jaxgemm import _target, _tune, _tuning, _tuning_table
from jaxgemm._native import _core

Sizes = tuple[int | None, int, int, int]


def parse_sizes(text: str) -> Sizes:
    """(batch or None, m, n, k) of "MxNxK" or "BATCHxMxNxK".

    Raises:
      argparse.ArgumentTypeError: the text is neither; the message says what is expected.
    """
    numbers = [int(part) for part in text.split("x")] if re.fullmatch(r"\d{1,12}(x\d{1,12}){2,3}", text) else []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not MxNxK or BATCHxMxNxK in positive numbers, e.g. 512x4096x4096"
        )
    batch = numbers[0] if len(numbers) == 4 else None
    m, n, k = numbers[-3:]
    return batch, m, n, k


def _read_shapes(path: Path) -> list[Sizes]:
    """The sizes in a file, one a line; what follows a "#" is a remark."""
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    return [parse_sizes(line) for line in lines if line]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m jaxgemm tune", description=__doc__)
    parser.add_argument(
        "sizes", metavar="MxNxK", nargs="*", type=parse_sizes,
        help="rows and columns of the result, length of the sums; BATCHxMxNxK for batches. Default: squares and the "
        "layers of Llama-3-8B",
    )  # fmt: skip
    parser.add_argument("--shapes", metavar="FILE", type=Path, help="read sizes from a file, one a line")
    parser.add_argument("--batch", type=int, default=1, help="batch of sizes that name none (default: 1)")
    parser.add_argument(
        "--layout", nargs="+", choices=_tuning_table.LAYOUTS, default=["NN"], metavar="LAYOUT",
        help="how lhs and rhs lie in memory: N as written, T transposed; some of NN, NT, TN, TT (default: NN)",
    )  # fmt: skip
    dtypes = _core.dtypes()
    parser.add_argument(
        "--dtype", nargs="+", choices=dtypes, default=["bfloat16"], metavar="DTYPE",
        help=f"of both operands; some of {', '.join(dtypes)} (default: bfloat16)",
    )  # fmt: skip
    parser.add_argument(
        "--out-dtype", choices=dtypes, metavar="DTYPE",
        help="default: int32 for int8, bfloat16 for float8, else --dtype",
    )  # fmt: skip
    parser.add_argument("--precision", choices=_core.precisions(), default="default", help="of float32 operands")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write here, not to the user's cache folder")
    parser.add_argument(
        "--limit-s", type=float, default=600, help="begin no further problem after so many seconds (default: 600)"
    )
    arguments = parser.parse_args(argv)
    if arguments.batch < 1:
        parser.error(f"--batch {arguments.batch} is not a positive number")
    if not arguments.limit_s > 0:
        parser.error(f"--limit-s {arguments.limit_s} is not a positive number")
    if arguments.shapes is not None:
        try:
            arguments.sizes += _read_shapes(arguments.shapes)
        except (OSError, UnicodeDecodeError, argparse.ArgumentTypeError) as error:
            parser.error(f"--shapes {arguments.shapes}: {error}")
        if not arguments.sizes:
            parser.error(f"--shapes {arguments.shapes}: no sizes")
    return arguments


def _keys(arguments: argparse.Namespace, sm: int) -> list[_tuning_table.Key]:
    """The problems to measure, each once.

    Raises:
      ValueError: sizes that no buffer has.
    """

    def key(dtype: str, layout: str, sizes: Sizes) -> _tuning_table.Key:
        batch, m, n, k = sizes
        out = arguments.out_dtype or (
            "int32" if dtype == "int8" else "bfloat16" if dtype.startswith("float8") else dtype
        )
        return _tuning_table.Key(dtype, dtype, out, arguments.precision, layout, batch or arguments.batch, m, n, k)

    found = [
        _tune.canonical(key(dtype, layout, sizes), sm)
        for dtype in arguments.dtype
        for layout in arguments.layout
        for sizes in arguments.sizes or _tune.DEFAULT_SIZES
    ]
    return list(dict.fromkeys(found))


def _gpu() -> tuple[int, str]:
    """(compute capability times ten, name) of the GPU to measure on.

    Raises:
      RuntimeError: there is none, or it is not the one that kernels are chosen for.
    """
    gpu = _target.attached_gpu()
    if gpu is None or jax.default_backend() != "gpu":
        raise RuntimeError(
            "no CUDA GPU here, so there is nothing to measure. If this machine has an NVIDIA GPU, give JAX its CUDA "
            "support: python -m pip install 'jax[cuda13]'."
        )
    device = str(jax.devices()[0].device_kind)
    if device != gpu[1]:
        raise RuntimeError(
            f"JAX's first device is {device}, and kernels are chosen for {gpu[1]}: show one of them with "
            "CUDA_VISIBLE_DEVICES."
        )
    return _target.target_sm(), device


def _output(path: Path | None, device: str) -> Path:
    """Where to write.

    Raises:
      RuntimeError: there is no such place, or what is there is not a table of this device.
    """
    if path is None:
        path = _tuning.user_path(device)
        if path is None:
            raise RuntimeError("there is no cache folder: set XDG_CACHE_HOME or HOME, or give --output FILE.")
        return path  # a broken cache may be replaced, a file that the user names may be one of something else
    try:
        wrong = _tuning_table.other_device(_tuning_table.read(path), device)
    except FileNotFoundError:
        wrong = ""
    except _tuning_table.TableError as error:
        wrong = str(error)
    if wrong:
        raise RuntimeError(f"--output {path} would be written over, and {wrong}.")
    return path


def _run(
    keys: Sequence[_tuning_table.Key], sm: int, device: str, path: Path, limit_s: float, console: Console
) -> tuple[list[_tune.Result], str]:
    """Measures the problems, and writes after each so that nothing is lost; returns why that was impossible, or ""."""
    results: list[_tune.Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(str(keys[0]), total=len(keys))

        def each(result: _tune.Result) -> None:
            results.append(result)
            following = keys[len(results)] if len(results) < len(keys) else ""
            progress.update(task, advance=1, description=str(following))

        try:
            _tune.measure(keys, sm, device, path, limit_s, each)
        except OSError as error:
            return results, error.strerror or str(error)
    return results, ""


def _results_table(results: Sequence[_tune.Result], device: str) -> Table:
    table = Table(title=f"Device time on {device}; a gain of less than {_tuning.MARGIN - 1:.0%} changes nothing")
    for heading in ("problem", "the model's choice", "us", "to run", "us", "gain", "JAX, us"):
        table.add_column(heading, justify="right" if heading.endswith(("us", "gain")) else "left")
    for result in results:
        entry = result.entry
        if entry is not None:
            gain = "" if entry.kernel == entry.model_kernel else f"{entry.model_us / entry.us - 1:.1%}"
            times = ["" if us is None else f"{us:,.1f}" for us in (entry.model_us, entry.us, entry.jax_us)]
            table.add_row(str(result.key), entry.model_kernel, times[0], entry.kernel, times[1], gain, times[2])
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 if a kernel or a problem failed, 2 if nothing could be begun."""
    arguments = _arguments(argv)
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        sm, device = _gpu()
        path = _output(arguments.output, device)
        keys = _keys(arguments, sm)
    except (RuntimeError, ValueError) as error:
        print(f"python -m jaxgemm tune: {error}", file=sys.stderr)
        return 2
    results, unwritten = _run(keys, sm, device, path, arguments.limit_s, console)
    _tuning.forget()
    measured = [result for result in results if result.entry is not None]
    if measured:
        console.print(_results_table(measured, device))
    for result in measured:
        if result.jax_failure:
            say(f"{result.key}: JAX's own product was not timed, {result.jax_failure}")
    failures = [f"{result.key}, {name}: {why}" for result in results for name, why in result.rejected.items()]
    failures += [f"{result.key}: {result.failure}" for result in results if result.failure]
    failures += [f"{path} cannot be written: {unwritten}"] if unwritten else []
    for failure in failures:
        say(f"FAILED {failure}")
    if len(results) < len(keys) and not unwritten:
        say(f"{len(keys) - len(results)} of {len(keys)} problems were not begun: --limit-s gives them time.")
    if measured and not unwritten:
        say(f"{len(measured)} problems measured; {path}")
    if arguments.output is None and _tuning.setting() != "on":
        say(f"{_tuning.SETTING}={_tuning.setting()}: this table does not count until that is unset.")
    return 1 if failures else 0
