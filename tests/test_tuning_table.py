"""jaxgemm/_tuning_table.py: tables as files, and the ones that ship."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from jaxgemm import _tune, _tuning, _tuning_table
from jaxgemm._choose import native_problem
from jaxgemm._native import _core
from jaxgemm._tuning_table import Entry, Key, Table
from tests.helpers import ROOT
from tests.tuning_data import FIRST, H200, MODEL, document, row


def table(entries: dict[Key, Entry], **changes: str) -> Table:
    header = {"device": H200, "jaxgemm": "0", "source_hash": _core.source_hash(), "jax": "1", "driver": "2"} | changes
    return Table(**header, entries=entries)


def key(m: int) -> Key:
    return Key("bfloat16", "bfloat16", "bfloat16", "default", "NN", 1, m, 64, 80)


FAST, SLOW = Entry(FIRST, 1.5, MODEL, 2.0), Entry(MODEL, 3.0, MODEL, 3.0, jax_us=2.5)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.json"
    written = table({key(2): SLOW, key(1): FAST})
    _tuning_table.write(path, written)
    assert _tuning_table.read(path) == written
    rows = [line for line in path.read_text().splitlines() if '"kernel"' in line]
    assert [json.loads(line.strip().rstrip(","))["m"] for line in rows] == [1, 2], "one row a line, in order"
    assert os.listdir(path.parent) == ["table.json"]
    assert path.stat().st_mode & 0o444, "a table that ships is for everyone"


def test_merging(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    _tuning_table.merge(path, table({key(1): FAST, key(2): FAST}))
    _tuning_table.merge(path, table({key(2): SLOW, key(3): SLOW}, jax="9"))
    assert _tuning_table.read(path) == table({key(1): FAST, key(2): SLOW, key(3): SLOW}, jax="9")
    for other in ({"device": "NVIDIA H100"}, {"source_hash": "0"}):
        _tuning_table.write(path, table({key(1): FAST}, **other))
        _tuning_table.merge(path, table({key(2): SLOW}))
        assert _tuning_table.read(path) == table({key(2): SLOW})
    path.write_bytes(b"\0broken")
    _tuning_table.merge(path, table({key(2): SLOW}))
    assert _tuning_table.read(path) == table({key(2): SLOW})


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    _tuning_table.write(path, table({key(1): FAST}))
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        _tuning_table.merge(path, table({key(2): SLOW}))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["table.json"]


def write_many(path: Path, first: int) -> None:
    for m in range(first, first + 40):
        _tuning_table.merge(path, table({key(m): FAST}))


def test_processes_that_write_at_once_do_not_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    _tuning_table.write(path, table({}))
    workers = [multiprocessing.get_context("spawn").Process(target=write_many, args=(path, n)) for n in (1, 1001)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert _tuning_table.read(path).faults == ()
    assert [worker.exitcode for worker in workers] == [0, 0]
    final = _tuning_table.read(path)
    assert final.faults == ()
    assert key(40) in final.entries or key(1040) in final.entries, "the last of one of them"
    assert os.listdir(tmp_path) == ["table.json"]


def test_every_cut_file_is_ignored() -> None:
    whole = json.dumps(document([row()])).encode()
    assert len(_tuning_table.parse(whole).entries) == 1
    for length in range(len(whole)):
        with pytest.raises(_tuning_table.TableError):
            _tuning_table.parse(whole[:length])


@pytest.mark.parametrize("path", sorted((ROOT / "jaxgemm" / "tuning").iterdir()), ids=lambda path: path.name)
def test_shipped_tables_are_right(path: Path) -> None:
    table = _tuning_table.read(path)
    assert table.faults == ()
    assert _tuning.shipped_path(table.device) == path
    for key, entry in table.entries.items():
        assert _tune.canonical(key, 90) == key
        native = native_problem(_tune.request_of(key), 90)
        assert _core.why_not(entry.kernel, native) == ""
        assert entry.kernel == entry.model_kernel or entry.model_us > _tuning.MARGIN * entry.us * 0.9999


def test_the_h200_has_a_table() -> None:
    assert _tuning.shipped_path(H200).is_file()
