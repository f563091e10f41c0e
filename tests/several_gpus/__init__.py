"""Tests on a machine with two or more CUDA GPUs: sharded products, training steps, threads, and equality of the GPUs.

``python -m pytest tests/several_gpus --several-gpus-report`` runs them and writes ``tests/several_gpus_report.json`` if
all pass. What they check is also run on CPU devices, by ``tests/test_several_gpus.py``.
"""

from __future__ import annotations

from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent / "several_gpus_report.json"
FOLDERS = ("tests/several_gpus/",)
