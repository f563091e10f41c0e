"""The emulator that the tests of this folder run: built once, unless another one is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.trees import tree_hash
from tests.emulated.mutation import Mutation
from tests.emulated.mutations import MUTATIONS
from tests.emulator.build import CUDA
from tests.emulator.library import Emulator, emulator

SHARES_OF_MUTANTS = 6
"""One in so many is compiled and tried unless all are asked for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emulator", metavar="LIBRARY", help="test this build of the emulator instead of building one")
    parser.addoption("--all-mutants", action="store_true", help=f"try every mutant, not one in {SHARES_OF_MUTANTS}")


def share_of_mutants(mutations: Sequence[Mutation], sources: str) -> set[str]:
    """Names of one in SHARES_OF_MUTANTS, of every family at least one: others after a change of ``sources``, a hash."""
    first, families = int(sources[:8], 16) % SHARES_OF_MUTANTS, {mutation.family for mutation in mutations}
    of_family = [[mutation.name for mutation in mutations if mutation.family == family] for family in families]
    return {name for names in of_family for name in names[first % len(names) :: SHARES_OF_MUTANTS]}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out most mutants, as each is compiled, unless tests are named: by words of ``-k`` or one by one."""
    named = config.option.keyword or any("::" in argument for argument in config.args)
    if named or config.getoption("--all-mutants", False):
        return
    wanted = share_of_mutants(MUTATIONS, tree_hash(CUDA))
    specs = {item: getattr(item, "callspec", None) for item in items if "test_broken_kernel_is_caught" in item.name}
    left_out = [item for item, spec in specs.items() if spec and spec.params["mutation"].name not in wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def emulated(pytestconfig: pytest.Config) -> Emulator:
    given = pytestconfig.getoption("--emulator", None)
    return Emulator(Path(given)) if given else emulator()
