"""Probes of single instruction groups run cleanly and give the same words from every seed.

That the words are a GPU's is what tests/gpu/test_emulator.py shows.
"""

from __future__ import annotations

import numpy as np

from tests.emulated.support import in_parallel
from tests.emulator.library import Emulator, Schedule

_SEEDS = 9


def test_probes(emulated: Emulator, rng: np.random.Generator) -> None:
    assert emulated.probes
    words = {name: rng.integers(0, 2**32, sizes[0], np.uint32) for name, sizes in emulated.probes.items()}
    runs = in_parallel(
        lambda key: emulated.run_probe(key[0], words[key[0]], Schedule(key[1])),
        keys := [(name, seed) for name in words for seed in range(_SEEDS)],
    )
    first = {name: out for (name, seed), (out, _) in zip(keys, runs, strict=True) if seed == 0}
    for (name, seed), (out, ran) in zip(keys, runs, strict=True):
        assert ran.clean, f"{name}, seed {seed}: {ran}"
        assert out.tobytes() == first[name].tobytes(), f"{name}: seed {seed} gives other words than seed 0"
