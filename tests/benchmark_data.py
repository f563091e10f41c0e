"""What the benchmarks' tests share."""

from __future__ import annotations

from benchmarks import results

HEADER: results.Header = {
    "device": "NVIDIA H200",
    "driver": "580.0",
    "cuda": "13.0",
    "jax": "0.11.2",
    "date": "2026-11-21T00:00:00Z",
    "trees": {"cuda": "a" * 40, "jaxgemm": "b" * 40},
}
