"""``python -m jaxgemm``: shows the devices, then checks and times every kernel and one real layer."""

import argparse
import dataclasses
import json
import warnings
from collections.abc import Iterator, Sequence

import jax
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jaxgemm import CpuFallbackWarning, _main_job


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    gpu = _main_job.on_gpu()
    parser = argparse.ArgumentParser(
        prog="python -m jaxgemm",
        description=__doc__,
        epilog="`python -m jaxgemm tune` measures which kernels are the fastest here; see its own --help.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--size", type=int, default=4096 if gpu else 512, help="M = N = K of the kernel table")
    parser.add_argument("--rounds", type=int, default=10 if gpu else 5, help="timed calls of each function")
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=[1, 16, 128, 512, 2048] if gpu else [1, 16],
        help="token counts of the feed-forward block",
    )
    arguments = parser.parse_args(argv)
    for name, value in [("--size", arguments.size), ("--rounds", arguments.rounds)] + [
        ("--tokens", count) for count in arguments.tokens
    ]:
        if value < 1:
            parser.error(f"{name} {value} is not a positive number")
    return arguments


def _kernel_table(rows: list[_main_job.KernelRow]) -> Table:
    table = Table(
        title=f"Kernels at M = N = K = {rows[0].m}, {rows[0].time_source} time; against jnp.dot at the same "
        "precision; error over its bound"
    )
    table.add_column("kernel", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for heading in ("us", "TFLOP/s", "x jnp", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.kernel,
            f"{row.dtype}, {row.precision}" if row.dtype == "float32" else row.dtype,
            f"{row.us:,.1f}",
            f"{row.tflops:.2f}",
            f"{row.ratio_to_jnp:.2f}",
            f"{row.max_err_over_bound:.2g}",
        )
    return table


def _layer_table(rows: list[_main_job.LayerRow]) -> Table:
    table = Table(
        title=f"Llama-3-8B feed-forward block, bfloat16, {_main_job.LLAMA_8B_HIDDEN} -> "
        f"{_main_job.LLAMA_8B_FEED_FORWARD} -> {_main_job.LLAMA_8B_HIDDEN}"
    )
    for heading in ("tokens", "jaxgemm (us)", "jnp (us)", "x jnp", "jaxgemm error", "jnp error"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row.tokens),
            f"{row.us:,.1f}",
            f"{row.jnp_us:,.1f}",
            f"{row.ratio_to_jnp:.2f}",
            f"{row.error:.1e}",
            f"{row.jnp_error:.1e}",
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the main job; returns the exit status, 1 if a result was wrong."""
    arguments = _arguments(argv)
    console = Console(stderr=arguments.json)
    environment = _main_job.environment()
    console.print(f"jaxgemm {environment['jaxgemm']}, jax {environment['jax']}: {', '.join(environment['devices'])}")
    if not _main_job.on_gpu():
        console.print(
            "No CUDA GPU here: jaxgemm runs on XLA's own dot, and its "
            f"{len(environment['kernels'])} CUDA kernels ({', '.join(environment['kernels'])}) rest. If this machine "
            "has an NVIDIA GPU, give JAX its CUDA support: python -m pip install 'jax[cuda13]'.",
            markup=False,
        )
    total = sum(len(group.names) for group in _main_job.kernel_groups(arguments.size)) + len(arguments.tokens)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    kernel_rows: list[_main_job.KernelRow] = []
    layer_rows: list[_main_job.LayerRow] = []
    with warnings.catch_warnings(), Progress(*columns, console=console, transient=True) as progress:
        warnings.simplefilter("ignore", CpuFallbackWarning)  # said above
        task = progress.add_task("checking and timing kernels", total=total)

        def collect(rows: Iterator, into: list) -> None:
            for row in rows:
                into.append(row)
                progress.advance(task)

        try:
            collect(_main_job.measure_kernels(arguments.size, arguments.rounds), kernel_rows)
            progress.update(task, description="checking and timing a Llama-3-8B block")
            collect(_main_job.measure_layer(tuple(arguments.tokens), arguments.rounds), layer_rows)
        except (RuntimeError, jax.errors.JaxRuntimeError) as error:
            console.print(f"[red]failed:[/red] {escape(str(error))}")
            return 1
    if arguments.json:
        result = environment | {
            "kernel_rows": [dataclasses.asdict(row) for row in kernel_rows],
            "layer_rows": [dataclasses.asdict(row) for row in layer_rows],
        }
        print(json.dumps(result, indent=1))
    else:
        console.print(_kernel_table(kernel_rows))
        console.print(_layer_table(layer_rows))
        console.print(
            "Every product of the first table lies, element by element, within its error bound of float64. "
            f"The block is judged by the largest error on up to {_main_job.LAYER_CHECKED_TOKENS} tokens, relative to "
            f"the largest output: at most {_main_job.LAYER_TIMES_JNP} times jnp's + {_main_job.LAYER_ALLOWANCE:g}."
        )
    return 0
