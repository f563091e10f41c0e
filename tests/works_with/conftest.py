"""These tests compute where the user's program would: on the GPU, with its kernels, if there is one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_gpu() -> None:
    """In place of the fixture of tests/conftest.py: leaves the default device and the choice of kernels alone."""
