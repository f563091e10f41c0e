"""JSON files of what was measured on a device: tuning tables, and the benchmarks' results."""

import json
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def device_slug(device: str) -> str:
    """File name of a device: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def driver_version() -> str:
    """Version of the NVIDIA driver, "unknown" where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def dumps(document: Mapping[str, Any]) -> str:
    """JSON with one row per line, so that a diff shows which rows moved."""
    header = {name: value for name, value in document.items() if name != "rows"}
    head = json.dumps(header, indent=2).removesuffix("\n}")
    rows = ",\n".join("    " + json.dumps(row) for row in document["rows"])
    return f'{head},\n  "rows": [\n{rows}\n  ]\n}}\n' if rows else json.dumps(document, indent=2) + "\n"


def replace_text(path: Path, text: str) -> None:
    """Writes a whole file in one step: who reads it, or writes it at the same time, never meets half of it.

    Raises:
      OSError: the file, or its folder, cannot be written; what was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
