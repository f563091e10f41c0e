"""What ``ncu`` runs for ``benchmarks.counters``: every call of a plan once to warm up, then every call once more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax

from benchmarks import peers
from benchmarks.shapes import Problem


def main(plan: Path) -> None:
    """Runs the calls in the order of the plan, both times; kernels that XLA launches for itself lie between them."""
    operands = {}
    calls = []
    for entry in json.loads(plan.read_text()):
        problem = Problem(**entry["problem"])
        if problem not in operands:
            operands[problem] = problem.operands(0)
        calls.append((peers.lower(problem, entry["kernel"]).compile(), operands[problem]))
    for _ in range(2):
        for function, args in calls:
            jax.block_until_ready(function(*args))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
