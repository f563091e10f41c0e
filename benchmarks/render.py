"""Makes the tables of README.md, in docs/ (ladder, host_cost, install, ...) and per device, and the plot.

``python -m benchmarks.render`` writes them from the result files; ``--check`` fails if what is committed is not what
would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import plot
from benchmarks.counter_file import SUFFIX, counter_path, load_counters
from benchmarks.host_file import host_page, load_host
from benchmarks.installed import installed_page, load_installed
from benchmarks.limits import LIMITS
from benchmarks.mixed_tables import int4_page, load_mixed, mixed_device_page
from benchmarks.results import Document, Row, geomean, problem_of, validate
from benchmarks.rungs import NOTHING_YET, inject, ladder_page
from benchmarks.shapes import LADDER_MORE_SIZES, LADDER_ROWS, LADDER_SIZE, Problem, Suite, dense_groups, random_groups
from benchmarks.sharded_file import PAGE, load_sharded, sharded_page
from benchmarks.tables import (
    DETAIL_HEADER,
    PEER_NAMES,
    best_of_families,
    detail_row,
    geomeans,
    ladder_label,
    ladder_rows,
    ladder_table,
    method,
    of_peer,
    table,
)
from benchmarks.trees import REPOSITORY


def readme_section(documents: Sequence[Document]) -> str:
    """What stands between the README's markers."""
    parts = [
        f"{LADDER_SIZE}³, best configuration of each kernel. {method(document)}\n\n{ladder_table(document)}"
        for document in documents
        if ladder_rows(document, LADDER_SIZE)
    ]
    return "\n\n".join(parts) if parts else NOTHING_YET


GROUPED: dict[Suite, Callable[[], dict[str, list[Problem]]]] = {"dense": dense_groups, "random": random_groups}
"""The suites whose results are averaged over groups."""


def grouped_rows(document: Document, suite: Suite) -> dict[str, list[Row]]:
    """Rows of a suite by the groups that were measured."""
    measured = {problem_of(row): row for row in document["rows"] if row["suite"] == suite}
    groups = {
        name: [measured[problem] for problem in problems if problem in measured]
        for name, problems in GROUPED[suite]().items()
    }
    return {name: rows for name, rows in groups.items() if rows}


def dense_section(documents: Sequence[Document]) -> str:
    """What stands in the README about the dense suite and the random one."""
    parts = []
    for document in documents:
        lines = [
            [
                name if suite == "dense" else f"{suite}: {name}",
                *(str(len(ratios)), f"{geomean(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}"),
            ]
            for suite in GROUPED
            for name, rows in grouped_rows(document, suite).items()
            if (ratios := [ratio for row in rows if (ratio := of_peer(row, "jnp")) is not None])
        ]
        if lines:
            header = ["group", "problems", "speed / jnp.dot, mean", "lowest", "highest"]
            parts.append(f"{method(document)} Means are geometric.\n\n{table(header, lines)}")
    return "\n\n".join(parts) if parts else NOTHING_YET


def device_page(document: Document) -> str:
    """All rows of one device, with geometric means per group of the dense suite."""
    device = document["device"]
    parts = [
        f"# {device}",
        f"Generated from the JSON file beside this one by `python -m benchmarks.render`. {method(document)} "
        "Problems are written M x N x K. The limit is the larger of arithmetic at the sustained rate of the unit "
        "that does it (float32 at HIGHEST: three TF32 products) and the bytes of both operands and the output at copy "
        "bandwidth (`benchmarks/limits.py`); GB/s counts the same bytes. XLA's dot of int8 in layout NN transposes rhs "
        "first.",
        "Sources: " + ", ".join(f"`{name}/` is tree `{sha}`" for name, sha in document["trees"].items()) + ".",
    ]
    for suite in GROUPED:
        if groups := grouped_rows(document, suite):
            header = ["group", "problems", *(f"speed / {name}" for name in PEER_NAMES.values())]
            means = [[name, str(len(rows)), *geomeans(rows)] for name, rows in groups.items()]
            parts += [
                f"## {suite.capitalize()}",
                "The kernel that jaxgemm chooses. Geometric means:",
                table(header, means),
            ]
            for name, rows in groups.items():
                parts += [f"### {name}", table(DETAIL_HEADER, [detail_row(row, device) for row in rows])]
    for size in (LADDER_SIZE, *LADDER_MORE_SIZES, LADDER_ROWS[0].m):
        for problem, rows in ladder_rows(document, size).items():
            parts += [
                f"## Ladder, {problem.dtype_label}, {ladder_label(size)}",
                table(DETAIL_HEADER, [detail_row(row, device) for row in rows]),
            ]
    return "\n\n".join(parts) + "\n"


def plot_bars(document: Document) -> list[plot.Panel]:
    """One panel per dtype and precision: the best configuration of each family, the peers and the limits."""
    limits = LIMITS.get(document["device"])
    panels = []
    for problem, rows in ladder_rows(document, LADDER_SIZE).items():
        jnp_us = rows[-1]["peers_us"].get("jnp")
        peer_rates = {} if jnp_us is None else {PEER_NAMES["jnp"]: problem.flops / jnp_us / 1e6}
        bars = {row["kernel"]: row["tflops"] for row in best_of_families(rows)}
        panels.append(plot.Panel(problem.dtype_label, bars, peer_rates, limits.lines(problem) if limits else {}))
    return panels


def load(directory: Path) -> dict[Path, Document]:
    """Every result file of a directory, validated."""
    paths = [path for path in sorted(directory.glob("*.json")) if not path.stem.endswith(SUFFIX)]
    documents = {path: json.loads(path.read_text()) for path in paths}
    for path, document in documents.items():
        try:
            validate(document)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return documents


def outdated(root: Path, write: bool) -> list[Path]:
    """The generated files that differ from what the results give; they are rewritten if ``write``."""
    directory = root / "benchmarks" / "results"
    documents = load(directory)
    readme, ladder, host = root / "README.md", root / "docs" / "ladder.md", root / "docs" / "host_cost.md"
    texts = {path.with_suffix(".md"): device_page(document) for path, document in documents.items()}
    text = inject(readme.read_text(), "ladder", readme_section(list(documents.values())), readme.name)
    texts[readme] = inject(text, "dense", dense_section(list(documents.values())), readme.name)
    counters = [load_counters(path) for path in map(counter_path, documents) if path.exists()]
    texts[ladder] = ladder_page(ladder.read_text(), list(documents.values()), counters)
    texts[host] = host_page(host.read_text(), load_host(directory))
    mixed, int4 = load_mixed(directory), root / "docs" / "int4_benchmarks.md"
    texts |= {path.with_suffix(".md"): mixed_device_page(document) for path, document in mixed.items()}
    texts[int4] = int4_page(int4.read_text(), list(mixed.values()))
    if installed := load_installed(directory):
        page = root / "docs" / "install.md"
        texts[page] = installed_page(page.read_text(), installed)
    if sharded := load_sharded(directory):
        texts[root / PAGE] = sharded_page((root / PAGE).read_text(), sharded)
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if write:
        for path in changed:
            path.write_text(texts[path])
    svg = root / "docs" / "ladder.svg"
    most = max(documents.values(), key=lambda document: len(plot_bars(document)), default=None)
    panels = plot_bars(most) if most else []
    if most and panels and plot.embedded_digest(svg) != plot.digest(most["device"], panels):
        changed.append(svg)
        if write:
            plot.draw(svg, most["device"], panels, f"{LADDER_SIZE}³")
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; with --check the exit status is 1 if something is out of date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a generated file is out of date")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        changed = outdated(args.root, write=not args.check)
    except (OSError, ValueError) as error:
        print(f"cannot render: {error}", file=sys.stderr)
        return 1
    for path in changed:
        print(f"{'out of date' if args.check else 'wrote'}: {path.relative_to(args.root)}")
    if changed and args.check:
        print("run: python -m benchmarks.render")
    return 1 if changed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
