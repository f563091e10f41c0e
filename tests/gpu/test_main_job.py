"""The main job on the GPU: every kernel right, timed by the device, and the layer within its error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.support import KERNEL_IDS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def test_main_job() -> None:
    command = [sys.executable, "-m", "jaxgemm", "--json", "--size", "1024", "--rounds", "3", "--tokens", "1", "33"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert {row["kernel"] for row in result["kernel_rows"]} == set(KERNEL_IDS)
    for row in result["kernel_rows"]:
        assert 0 <= row["max_err_over_bound"] <= 1
        assert (row["max_err_over_bound"] == 0) == (row["dtype"] == "int8")  # exact, or rounded
        assert row["time_source"] == "cupti"
        assert row["us"] > 0
    assert [row["tokens"] for row in result["layer_rows"]] == [1, 33]
    for row in result["layer_rows"]:
        assert 0 < row["error"] < 0.02
