"""The README's table of what jaxgemm works with names the tests of this folder, all of them and no others; and what
those tests say of programs.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxgemm
from tests.helpers import ROOT, struct
from tests.works_with.support import GEMM, MIXED, XLA, assert_ours, products, program

FOLDER = Path(__file__).resolve().parent
BEGIN, END = "<!-- begin works with -->", "<!-- end works with -->"


def table(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    assert (text.count(BEGIN), text.count(END)) == (1, 1), f"README.md has no table between {BEGIN} and {END}"
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    head, rule, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert head == ["with", "how", "test"]
    assert all(re.fullmatch(":?-+:?", cell) for cell in rule)
    return rows


def works_with(file: Path) -> str:
    """What the docstring of a test file says it is about."""
    found = re.findall(r"^Works with: (.+)$", ast.get_docstring(ast.parse(file.read_text())) or "", re.M)
    assert len(found) == 1, f"the docstring of {file.name} has {len(found)} lines 'Works with: NAME (VERSIONS)'"
    return found[0]


def test_the_readme_names_every_test() -> None:
    files = sorted(file for file in FOLDER.glob("test_*.py") if file != Path(__file__).resolve())
    assert files
    wanted = {works_with(file): f"[{file.stem}](tests/works_with/{file.name})" for file in files}
    assert len(wanted) == len(files), "two files are about the same"
    rows = table((ROOT / "README.md").read_text())
    assert {name: test for name, _, test in rows} == wanted
    assert len(rows) == len(wanted), "a row is there twice"
    assert all(how for _, how, _ in rows)


def test_products_of_programs() -> None:
    x, w = struct((128, 256), jnp.bfloat16), struct((256, 128), jnp.bfloat16)
    quantised = jaxgemm.quantize(jnp.ones(w.shape, w.dtype))
    assert set(products(program(jnp.matmul, x, w))) == {XLA}
    assert set(products(program(jaxgemm.matmul, x, w))) == {GEMM}
    assert set(products(program(jaxgemm.matmul, x, quantised))) == {MIXED}
    with pytest.raises(AssertionError, match="XLA's own dot"):
        assert_ours(lambda x, w: jaxgemm.matmul(x, w) @ x, x, w)
    with pytest.raises(AssertionError, match="expected calls of jaxgemm_mixed alone"):
        assert_ours(jaxgemm.matmul, x, w, target=MIXED)
    with pytest.raises(AssertionError, match=r"has \{\}"):
        assert_ours(jnp.add, x, x)
