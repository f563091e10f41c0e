"""cuda/peers in the emulator: what the probes of it write, and that planted defects show."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulated.mutations_peers import PEER_DEFECTS, all_variants, name_of
from tests.emulated.support import SEEDS
from tests.emulator.build import build_variants
from tests.emulator.library import Emulator, Schedule
from tests.emulator.words import digest, probe_input, read_digests

PACKETS, SUMS = 50, 5
PROBES = {
    "peer_sum.bf16.2": (2, 2, True),
    "peer_sum.f16.3": (2, 3, False),
    "peer_sum.f32.2": (4, 2, False),
    "peer_sum.s32.5": (4, 5, True),
}
"""Bytes of an element, GPUs, and whether all packets are whole: tests/emulator/probes/peers.cu."""


def numbers(words: np.ndarray, name: str) -> np.ndarray:
    """Bits as numbers."""
    if "bf16" in name:
        return (words << 16).view(np.float32).astype(np.float64)
    if "f16" in name:
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32 if "f32" in name else np.int32).astype(np.float64)


@pytest.mark.parametrize("name", PROBES)
def test_sums(emulated: Emulator, name: str) -> None:
    """Of small integers, which are exact: on every GPU the same ones, one sum after the other."""
    size, ranks, whole = PROBES[name]
    elements = PACKETS * 8 // size
    words = probe_input(emulated, name)
    parts = (words % 16).astype(np.int64).reshape(ranks, elements)
    out, ran = emulated.run_probe(name, words)
    assert ran.clean, str(ran)
    before = ranks * 2 * ranks * PACKETS * 4 + ranks * PACKETS * 2 + ranks  # slots, parts, sums_of_cta: in words
    found = numbers(out[before:][: SUMS * ranks * elements], name).reshape(SUMS, ranks, elements)
    last = elements if whole else elements - 1
    for i in range(SUMS):
        expected = (parts - 8 * (i % 2) + i).sum(0)
        np.testing.assert_array_equal(found[i, :, :last], np.broadcast_to(expected, (ranks, elements))[:, :last])
        np.testing.assert_array_equal(found[i, :, last:], (parts - 8 * (i % 2) + i)[:, last:])


@pytest.mark.parametrize("what", PEER_DEFECTS)
def test_defects_show(what: str) -> None:
    """By a finding, or by other words, of some probe and seed."""
    name = name_of(what)
    broken = Emulator(build_variants(all_variants(), [name])[name])
    digests = read_digests()

    def shows(probe: str, seed: int) -> bool:
        out, ran = broken.run_probe(probe, probe_input(broken, probe), Schedule(seed))
        return not ran.clean or digest(out) != digests[probe]

    assert any(shows(probe, seed) for seed in (*SEEDS, *range(100, 110)) for probe in PROBES)
