"""Git's tree hashes computed from files, so that a result can name its sources where git or .git is missing."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EVIDENCE_TREES = ("cuda", "jaxgemm")
"""The trees that results and reports are bound to."""

_SKIPPED_NAMES = frozenset({"__pycache__", ".DS_Store", "build"})
_SKIPPED_SUFFIXES = frozenset({".pyc", ".pyo", ".so", ".o"})


def _git_object(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).digest()


def _tree(directory: Path) -> bytes | None:
    """SHA-1 of the tree object, or None for a directory that git would not store because nothing is in it."""
    entries: list[tuple[bytes, bytes]] = []  # (key that git sorts by, entry)
    for path in directory.iterdir():
        if path.name in _SKIPPED_NAMES or path.suffix in _SKIPPED_SUFFIXES:
            continue
        name = path.name.encode()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            entry, sha = b"120000", _git_object("blob", str(path.readlink()).encode())
        elif stat.S_ISDIR(mode):
            subtree = _tree(path)
            if subtree is None:
                continue
            entries.append((name + b"/", b"40000 " + name + b"\0" + subtree))
            continue
        else:
            entry = b"100755" if mode & stat.S_IXUSR else b"100644"
            sha = _git_object("blob", path.read_bytes())
        entries.append((name, entry + b" " + name + b"\0" + sha))
    return _git_object("tree", b"".join(entry for _, entry in sorted(entries))) if entries else None


def tree_hash(directory: Path) -> str:
    """What ``git rev-parse HEAD:<directory>`` says when the directory is committed as it is.

    Build products and caches (shared objects, ``__pycache__``) are left out, as git ignores them.
    """
    sha = _tree(directory)
    if sha is None:
        raise FileNotFoundError(f"{directory} holds no files")
    return sha.hex()


def evidence_trees(repository: Path = REPOSITORY) -> dict[str, str]:
    """Hashes of the sources that decide what is measured: {"cuda": ..., "jaxgemm": ...}."""
    return {name: tree_hash(repository / name) for name in EVIDENCE_TREES}
