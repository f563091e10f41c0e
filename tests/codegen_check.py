"""The machine code of a module against what codegen_expectations.py says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sass import Function, Loop, count, matches

from tests.codegen_expectations import EVERYWHERE, EXPECTATIONS, HELPERS, instances_of
from tests.codegen_instances import AtLeast, Count, Expectation, Instance


def differs(opcodes: Mapping[str, int], expected: Mapping[str, Count], times: int = 1) -> list[str]:
    wrong = []
    for pattern, wanted in expected.items():
        found = count(opcodes, pattern)
        if isinstance(wanted, AtLeast):
            if found < wanted.number * times:
                wrong.append(f"{found} {pattern}, not {AtLeast(wanted.number * times)}")
        elif found != wanted * times:
            wrong.append(f"{found} {pattern}, not {wanted * times}")
    return wrong


def check_main_loop(loop: Loop, expectation: Expectation) -> list[str]:
    pattern, each = next(iter(expectation.k_tile.items()))
    assert isinstance(each, int)
    found = count(loop.opcodes, pattern)
    if found == 0 or found % each:
        return [f"{found} {pattern}, not a multiple of {each}"]
    return differs(loop.opcodes, expectation.k_tile, found // each)


def check(function: Function, expectation: Expectation, smem_bytes: int = 0) -> list[str]:
    """One sentence for each count of one kernel that differs from what is expected."""
    where = f"{function.kernel} on {function.arch}"
    everywhere = EVERYWHERE | ({"BAR": AtLeast(1)} if smem_bytes else {})
    wrong = [f"{where} has {text}" for text in differs(function.opcodes, {**everywhere, **expectation.kernel})]
    if not (loops := function.innermost_loops(expectation.main_loop)):
        return [*wrong, f"{where} has no loop with {' and '.join(expectation.main_loop)}"]
    for loop in loops:
        wrong += [f"{where}, main loop at 0x{loop.address:x}, has {s}" for s in check_main_loop(loop, expectation)]
    inside = frozenset().union(*(loop.members for loop in loops))
    for pattern in expectation.only_in_main_loops:
        outside = [
            instruction
            for i, instruction in enumerate(function.instructions)
            if i not in inside and instruction.runs and matches(instruction.opcode, pattern)
        ]
        if outside:
            wrong.append(f"{where} has {len(outside)} {pattern} outside its main loop, e.g. {outside[0].opcode}")
    return wrong


def find_instance(function: Function, infos: Iterable[Any]) -> Instance | None:
    """Which kernel of the registry the function is: "family.cu: family_kernel<Config128x128, more arguments>"."""
    match = re.fullmatch(r"(\w+)\.cu: \1_kernel<Config(\w+)(?:, (.*))?>", function.kernel)
    if match is None:
        return None
    family, config, arguments = match.groups(default="")
    # A Config's name may leave out the last sizes of the tile.
    named = [info for info in infos if info.family == family and f"{info.config}x".startswith(f"{config}x")]
    return Instance(named[0], tuple(arguments.split(", "))) if len(named) == 1 else None


def runs_on(info: Any, arch: str) -> bool:
    sm = int(re.sub(r"\D", "", arch))
    return info.min_sm <= sm and (info.max_sm == 0 or sm <= info.max_sm)


def check_module(infos: Iterable[Any], functions: Iterable[Function]) -> list[str]:
    """One sentence for all that is wrong with the machine code of a module whose registry has these kernels."""
    infos, functions = list(infos), list(functions)
    wrong = [] if functions else ["the module has no machine code"]
    if not infos:
        wrong.append("the registry has no kernels")
    instances: dict[tuple[str, str], int] = {
        (info.name, arch): 0 for info in infos for arch in {f.arch for f in functions} if runs_on(info, arch)
    }
    for function in functions:
        instance = find_instance(function, infos)
        helper = HELPERS.get(function.kernel.split("<")[0])
        if instance is None and helper is None:
            wrong.append(
                f"{function.kernel} is no kernel of the registry: name it family_kernel<Config..., ...>, in family.cu, "
                "or add it to HELPERS in tests/codegen_expectations.py"
            )
        elif instance is None or not runs_on(instance.info, function.arch):
            differences = differs(function.opcodes, EVERYWHERE | (helper or {}))
            wrong += [f"{function.kernel} on {function.arch} has {text}" for text in differences]
        else:
            instances[instance.info.name, function.arch] += 1
            if (expected := EXPECTATIONS.get(instance.info.family)) is not None:
                wrong += check(function, expected(instance), instance.info.smem_bytes)
    wrong += [
        f"the family {family} has no row in EXPECTATIONS of tests/codegen_expectations.py: add one that says which "
        "instructions its main loop holds for one k-tile (docs/codegen.md)"
        for family in dict.fromkeys(info.family for info in infos)
        if family not in EXPECTATIONS
    ]
    wanted = {info.name: instances_of(info) for info in infos}
    wrong += [
        f"{name} has {number} instantiations on {arch}, not {wanted[name]}: one for each dtype and layout"
        for (name, arch), number in instances.items()
        if number != wanted[name]
    ]
    return wrong
