"""The emulator that the tests of this folder run: built once, unless another one is given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.trees import tree_hash
from tests.emulated.mutation import Mutation
from tests.emulated.mutations import MUTATIONS
from tests.emulator.build import CUDA
from tests.emulator.library import Emulator, emulator

SHARES_OF_MUTANTS = 9
"""One in so many is compiled and tried unless all are asked for."""
SHARES_OF_CASES, MANY_CASES = 3, 60
"""Of a test that has many cases, of kernels, dtypes and layouts, one in so many is run unless all are asked for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emulator", metavar="LIBRARY", help="test this build of the emulator instead of building one")
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help=f"try every mutant, not one in {SHARES_OF_MUTANTS}, and every case, not one in {SHARES_OF_CASES}",
    )


def share_of_mutants(mutations: Sequence[Mutation], sources: str) -> set[str]:
    """Names of one in SHARES_OF_MUTANTS, of every family at least one: others after a change of ``sources``, a hash."""
    first, families = int(sources[:8], 16) % SHARES_OF_MUTANTS, {mutation.family for mutation in mutations}
    of_family = [[mutation.name for mutation in mutations if mutation.family == family] for family in families]
    return {name for names in of_family for name in names[first % len(names) :: SHARES_OF_MUTANTS]}


def share_of_cases(cases: Sequence[str], sources: str) -> set[str]:
    """One in SHARES_OF_CASES of many, or all of them: others after a change of ``sources``, a hash."""
    return set(cases[int(sources[:8], 16) % SHARES_OF_CASES :: SHARES_OF_CASES] if len(cases) >= MANY_CASES else cases)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out most mutants and cases of this folder's tests, as what is the same was tried when it was changed,
    unless tests are named: by words of ``-k`` or one by one.
    """
    named = config.option.keyword or any("::" in argument for argument in config.args)
    if named or config.getoption("--exhaustive", False):
        return
    sources = tree_hash(CUDA)
    wanted: set[str] = set()
    mutants = share_of_mutants(MUTATIONS, sources)
    own = [item for item in items if {"emulated", "mutants"} & set(getattr(item, "fixturenames", ()))]
    for _, group in itertools.groupby(own, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        specs = {item.nodeid: getattr(item, "callspec", None) for item in cases}
        mutations = {
            node: spec.params["mutation"] for node, spec in specs.items() if spec and "mutation" in spec.params
        }
        if mutations:
            wanted |= {node for node, mutation in mutations.items() if mutation.name in mutants}
        else:
            wanted |= share_of_cases([item.nodeid for item in cases], sources)
    left_out = {item for item in own if item.nodeid not in wanted}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def emulated(pytestconfig: pytest.Config) -> Emulator:
    given = pytestconfig.getoption("--emulator", None)
    return Emulator(Path(given)) if given else emulator()
