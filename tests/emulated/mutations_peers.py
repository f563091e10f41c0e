"""What test_peer_sums.py breaks of cuda/peers, and all that is built of broken sources."""

from __future__ import annotations

import re
from pathlib import Path

from tests.emulated.mutations import MUTATIONS
from tests.emulator.build import CUDA, ROOT

_KERNEL, _PROBE = Path("peers/peer_sum.cuh"), Path("probes/peers.cu")

_BOTH = "pair.words[0].flag == first && pair.words[1].flag == second"
_SHIFT = "words[i / kOfWord] >> (i % kOfWord * 16)"

PEER_DEFECTS = {
    "sums do not take turns": ("number % 2", "number % 1"),
    "only the first word is waited for": (_BOTH, "pair.words[0].flag == first"),
    "only the second word is waited for": (_BOTH, "pair.words[1].flag == second"),
    "nobody is waited for": ("for (int looks = 0; !__all_sync", "for (int looks = 0; false && !__all_sync"),
    "the own part counts twice": ("if (peer != peers.rank) {\n        for", "if (false) {\n        for"),
    "another order": ("sums[j] = peer == 0 ?", "sums[j] = peer == 1 ?"),
    "elements behind the last are written": ("(i < elements) g_first[i] = packet", "(true) g_first[i] = packet"),
    "halves of a word swapped": (_SHIFT, "words[i / kOfWord] >> ((kOfWord - 1 - i % kOfWord) * 16)"),
    "the number stays": ("if (thread == 0) peers.sums_of_cta[cta] = number;", ""),
}
"""By what is wrong: the text, which is there once, and what it becomes."""


def name_of(what: str) -> str:
    return re.sub(r"\W+", "_", f"peers {what}")


def _texts(old: str, new: str) -> dict[Path, str]:
    original = (CUDA / _KERNEL).read_text()
    assert original.count(old) == 1, f"{_KERNEL} has {old!r} {original.count(old)} times"
    return {_KERNEL: original.replace(old, new), _PROBE: (ROOT / "tests" / "emulator" / _PROBE).read_text()}


def all_variants() -> dict[str, dict[Path, str]]:
    """By name, the texts of every broken version: those that are not among what is asked for are deleted."""
    peers = {name_of(what): _texts(*texts) for what, texts in PEER_DEFECTS.items()}
    return {mutation.name: mutation.texts() for mutation in MUTATIONS} | peers
