"""Makes the README's table, the tables per device and the plot from the result files.

``python -m benchmarks.render`` writes them; ``--check`` fails if what is committed is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import plot
from benchmarks.limits import LIMITS, arithmetic
from benchmarks.results import Document, Row, full_name, geomean, problem_of, validate
from benchmarks.shapes import LADDER_MORE_SIZES, LADDER_SIZE, dense_groups, ladder
from benchmarks.trees import REPOSITORY

BEGIN, END = "<!-- begin ladder -->", "<!-- end ladder -->"
NOT_MEASURED = "n/a"
PEER_NAMES = {"jnp": "jnp.dot", "jnp_cublas": "jnp.dot, cuBLAS only"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns after the first are right-aligned unless their name starts with "<"."""
    names = [name.lstrip("<") for name in header]
    rule = [":--" if i == 0 or name.startswith("<") else "--:" for i, name in enumerate(header)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [names, rule, *rows])


def _time(us: float) -> str:
    return f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def _rate(tflops: float) -> str:
    return f"{tflops:.1f}" if tflops < 100 else f"{tflops:.0f}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %" if ratio < 0.1 else f"{100 * ratio:.0f} %"


def _of_peer(row: Row, peer: str) -> float | None:
    """Speed in units of the peer's, None if the peer was not measured."""
    us = row["peers_us"].get(peer)
    return None if us is None else us / row["us"]


def _of_limit(row: Row, device: str) -> str:
    limits = LIMITS.get(device)
    if limits is None or arithmetic(problem_of(row)) not in limits.datasheet_tflops:
        return NOT_MEASURED
    return _percent(limits.floor_us(problem_of(row)) / row["us"])


def _optional(value: float | None, form: Callable[[float], str]) -> str:
    return NOT_MEASURED if value is None else form(value)


def ladder_rows(document: Document, size: int) -> dict[str, list[Row]]:
    """Rows of the ladder at one size by dtype, in ladder order."""
    groups: dict[str, list[Row]] = {}
    for problem in ladder():
        if problem.m == size:
            found = [r for r in document["rows"] if r["suite"] == "ladder" and problem_of(r) == problem]
            if found:
                groups[problem.lhs_dtype] = found
    return groups


def best_of_families(rows: Sequence[Row]) -> list[Row]:
    """The fastest configuration of each family, in the order of the families."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["kernel"] not in best or row["us"] < best[row["kernel"]]["us"]:
            best[row["kernel"]] = row
    return list(best.values())


def ladder_table(document: Document) -> str:
    """The ladder at LADDER_SIZE cubed: best configuration of each family, with what it gains over the rung before."""
    lines: list[list[str]] = []
    for dtype, rows in ladder_rows(document, LADDER_SIZE).items():
        # At default precision jnp.dot rounds float32 to TF32; it is compared at the one that the kernels keep.
        label = dtype if rows[0]["precision"] == "default" else f"{dtype}, {rows[0]['precision']}"
        before: Row | None = None
        for row in best_of_families(rows):
            gain = "" if before is None else f"{before['us'] / row['us']:.2f}"
            of_jnp = _optional(_of_peer(row, "jnp"), _percent)
            limit = _of_limit(row, document["device"])
            lines.append([f"`{full_name(row)}`", label, _time(row["us"]), _rate(row["tflops"]), gain, of_jnp, limit])
            before = row
        lines += [
            [PEER_NAMES[peer], label, _time(us), _rate(rows[-1]["tflops"] * rows[-1]["us"] / us), "", "", ""]
            for peer, us in rows[-1]["peers_us"].items()
        ]
    header = ["kernel", "<dtype, precision", "µs", "TFLOP/s", "x rung before", "of jnp.dot", "of the limit"]
    return table(header, lines)


def caption(document: Document) -> str:
    """Where the figures come from, in one sentence."""
    return (
        f"{document['device']}, driver {document['driver']}, CUDA {document['cuda']}, jax {document['jax']}, "
        f"{document['date'][:10]}: device time (median), normally distributed inputs, not in the L2 cache."
    )


def readme_section(documents: Sequence[Document]) -> str:
    """What stands between the README's markers."""
    parts = [
        f"{LADDER_SIZE}³, best configuration of each kernel. {caption(document)}\n\n{ladder_table(document)}"
        for document in documents
        if ladder_rows(document, LADDER_SIZE)
    ]
    return "\n\n".join(parts) if parts else "Not measured yet."


def inject(text: str, section: str) -> str:
    """``text`` with what stands between the markers replaced; ValueError unless each marker is there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md needs exactly one {BEGIN} and one {END}")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{section}\n{END}{tail}"


def _detail_row(row: Row, device: str) -> list[str]:
    problem = replace(problem_of(row), precision="default")
    return [
        problem.label,
        f"`{full_name(row)}`",
        f"{_time(row['us'])} ({_time(row['us_p10'])} to {_time(row['us_p90'])})",
        _rate(row["tflops"]),
        f"{row['gbps']:,.0f}",
        *(_optional(row["peers_us"].get(peer), _time) for peer in PEER_NAMES),
        _optional(_of_peer(row, "jnp"), _percent),
        _of_limit(row, device),
        f"{row['max_err_over_bound']:.2g}",
    ]


DETAIL_HEADER = [
    "problem",
    "<kernel",
    "µs (p10 to p90)",
    "TFLOP/s",
    "GB/s",
    *(f"{name}, µs" for name in PEER_NAMES.values()),
    "of jnp.dot",
    "of the limit",
    "error / bound",
]


def _geomeans(rows: Sequence[Row]) -> list[str]:
    """Cells with the mean speed in units of each peer's."""
    cells = []
    for peer in PEER_NAMES:
        ratios = [ratio for row in rows if (ratio := _of_peer(row, peer)) is not None]
        cells.append(f"{geomean(ratios):.3f}" if ratios else NOT_MEASURED)
    return cells


def device_page(document: Document) -> str:
    """All rows of one device, with geometric means per group of the dense suite."""
    device = document["device"]
    parts = [
        f"# {device}",
        f"Generated from the JSON file beside this one by `python -m benchmarks.render`. {caption(document)} "
        "Problems are written M x N x K. The limit is the larger of arithmetic at the sustained rate of the unit "
        "that does it and the bytes of both operands and the output at copy bandwidth "
        "(`benchmarks/limits.py`); GB/s counts the same bytes.",
        "Sources: " + ", ".join(f"`{name}/` is tree `{sha}`" for name, sha in document["trees"].items()) + ".",
    ]
    dense = {problem_of(row): row for row in document["rows"] if row["suite"] == "dense"}
    groups = {
        name: [dense[problem] for problem in problems if problem in dense] for name, problems in dense_groups().items()
    }
    groups = {name: rows for name, rows in groups.items() if rows}
    if groups:
        header = ["group", "problems", *(f"speed / {name}" for name in PEER_NAMES.values())]
        means = [[name, str(len(rows)), *_geomeans(rows)] for name, rows in groups.items()]
        parts += ["## Dense", "The kernel that jaxgemm chooses. Geometric means:", table(header, means)]
        for name, rows in groups.items():
            parts += [f"### {name}", table(DETAIL_HEADER, [_detail_row(row, device) for row in rows])]
    for size in (LADDER_SIZE, *LADDER_MORE_SIZES):
        for dtype, rows in ladder_rows(document, size).items():
            highest = ", precision highest" if rows[0]["precision"] == "highest" else ""
            parts += [
                f"## Ladder, {dtype} {size}³{highest}",
                table(DETAIL_HEADER, [_detail_row(row, device) for row in rows]),
            ]
    return "\n\n".join(parts) + "\n"


def plot_bars(document: Document) -> list[plot.Panel]:
    """One panel per dtype: the best configuration of each family, the peers and the limits."""
    limits = LIMITS.get(document["device"])
    panels = []
    for dtype, rows in ladder_rows(document, LADDER_SIZE).items():
        last = rows[-1]
        jnp_us = last["peers_us"].get("jnp")
        peer_rates = {} if jnp_us is None else {PEER_NAMES["jnp"]: last["tflops"] * last["us"] / jnp_us}
        lines = {}
        if limits is not None:
            unit = arithmetic(problem_of(last))
            lines["datasheet"] = limits.datasheet_tflops[unit]
            if unit in limits.measured_tflops:
                lines["tensor cores alone, measured"] = limits.measured_tflops[unit]
        bars = {row["kernel"]: row["tflops"] for row in best_of_families(rows)}
        highest = " (precision highest)" if last["precision"] == "highest" else ""
        panels.append(plot.Panel(f"{dtype}{highest}", bars, peer_rates, lines))
    return panels


def load(directory: Path) -> dict[Path, Document]:
    """Every result file of a directory, validated."""
    documents = {path: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    for path, document in documents.items():
        try:
            validate(document)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return documents


def outdated(root: Path, write: bool) -> list[Path]:
    """The generated files that differ from what the results give; they are rewritten if ``write``."""
    documents = load(root / "benchmarks" / "results")
    readme = root / "README.md"
    texts = {path.with_suffix(".md"): device_page(document) for path, document in documents.items()}
    texts[readme] = inject(readme.read_text(), readme_section(list(documents.values())))
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
