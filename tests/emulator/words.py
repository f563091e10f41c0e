"""What the probes write for one fixed input, as digests: the same on a GPU and in the emulator."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np

from tests.emulator.library import Emulator

WORDS_FILE = Path(__file__).resolve().parent / "probes" / "words.json"


def probe_input(emulated: Emulator, name: str) -> np.ndarray:
    """Random words, the same in every run, different for every probe."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.integers(0, 2**32, emulated.probes[name][0], np.uint32)


def digest(words: np.ndarray) -> str:
    return hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()


def read_digests() -> dict[str, str]:
    """By name of the probe."""
    return json.loads(WORDS_FILE.read_text())


def write_digests(emulated: Emulator) -> None:
    """Writes what the emulator gives: whether a GPU gives the same is for tests/gpu/test_emulator.py to say."""
    digests = {name: digest(emulated.run_probe(name, probe_input(emulated, name))[0]) for name in emulated.probes}
    WORDS_FILE.write_text(json.dumps(digests, indent=1) + "\n")
