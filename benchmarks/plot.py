"""Bars in panels: of the ladder, TFLOP/s by kernel against jnp.dot and the limits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True)
class Panel:
    """All in one unit: bars by kernel, bars by peer, horizontal lines by name."""

    title: str
    kernels: dict[str, float]
    peers: dict[str, float]
    limits: dict[str, float]


def digest(device: str, panels: Sequence[Panel]) -> str:
    """SHA-256 of the plotted data, which the file carries: bytes of an SVG differ between matplotlib versions."""
    data = json.dumps([device, [dataclasses.asdict(panel) for panel in panels]])
    return hashlib.sha256(data.encode()).hexdigest()


def embedded_digest(path: Path) -> str | None:
    """The digest of the data that an existing plot was drawn from."""
    found = re.search(r"data sha256 ([0-9a-f]{64})", path.read_text()) if path.exists() else None
    return found[1] if found else None


COLUMNS = 3
TFLOPS = "TFLOP/s"


def draw(path: Path, device: str, panels: Sequence[Panel], size: str, units: Sequence[str] = ()) -> None:
    """Writes the SVG: COLUMNS panels side by side, in ``units`` or all in TFLOP/s."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcParams.update({"svg.hashsalt": "jaxgemm", "svg.fonttype": "none", "font.size": 9})
        columns = min(COLUMNS, len(panels))
        rows = -(-len(panels) // columns)
        width = 1.5 + 0.6 * max(len(panel.kernels) + len(panel.peers) for panel in panels)
        figure = Figure(figsize=(columns * width, 4.2 * rows), layout="constrained")
        cells = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel, unit in zip(cells, panels, units or [TFLOPS] * len(panels), strict=False):
            _draw_panel(axes, panel, unit)
        for axes in cells[len(panels) :]:
            axes.set_axis_off()
        figure.suptitle(f"{size} on {device}")
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None, "Description": f"data sha256 {digest(device, panels)}"}
        figure.savefig(path, format="svg", metadata=metadata)


def _draw_panel(axes: Axes, panel: Panel, unit: str) -> None:
    values = [*panel.kernels.values(), *panel.peers.values()]
    colours = ["#3b6fb6"] * len(panel.kernels) + ["#9a9a9a"] * len(panel.peers)
    bars = axes.bar(range(len(values)), values, color=colours, width=0.7)
    axes.bar_label(bars, [f"{v:.3g}" for v in values], padding=1, fontsize=8)
    axes.set_xticks(range(len(values)), [*panel.kernels, *panel.peers], rotation=35, ha="right")
    for (name, value), dash in zip(panel.limits.items(), ("-", "--", ":"), strict=False):
        axes.axhline(value, color="#b03a2e", linewidth=1, linestyle=dash, label=f"{name} ({value:.4g})")
    if panel.limits:
        axes.legend(loc="upper left", fontsize=7, frameon=False)
    axes.set_ylim(0, 1.35 * max([*values, *panel.limits.values()]))
    axes.set_title(panel.title)
    axes.set_ylabel(unit)
    axes.set_axisbelow(True)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
