"""Probes of single instruction groups run cleanly and give the words that a GPU gives, from every seed."""

from __future__ import annotations

from tests.emulated.support import SEEDS, in_parallel
from tests.emulator.library import Emulator, Schedule
from tests.emulator.words import digest, probe_input, read_digests


def test_probes(emulated: Emulator) -> None:
    """The digests are those of an H200's words: tests/gpu/test_emulator.py holds the GPU to the same file."""
    digests = read_digests()
    assert emulated.probes.keys() == digests.keys(), "python -m tests.emulator --write-probe-words"
    runs = in_parallel(
        lambda key: emulated.run_probe(key[0], probe_input(emulated, key[0]), Schedule(key[1])),
        keys := [(name, seed) for name in digests for seed in SEEDS],
    )
    for (name, seed), (out, ran) in zip(keys, runs, strict=True):
        assert ran.clean, f"{name}, seed {seed}: {ran}"
        assert digest(out) == digests[name], f"{name}: seed {seed} gives other words than a GPU"
