"""The instructions that the compiled kernels hold, against what follows from their tiles."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace

import pytest
import sass
from sass import Function, Instruction, matches

from jaxgemm._native import _core
from tests import codegen_expectations
from tests.codegen_check import check, check_module, find_instance
from tests.codegen_instances import AtLeast, Expectation
from tests.helpers import FAMILIES, ROOT


def replaced(function, index, opcode):
    """The function with another opcode in one place."""
    instructions = list(function.instructions)
    instructions[index] = instructions[index]._replace(opcode=opcode)
    return dataclasses.replace(function, instructions=instructions)


def check_that_one_instruction_less_is_found(function, instance):
    expectation = codegen_expectations.EXPECTATIONS[instance.info.family](instance)
    exact = [pattern for pattern, number in expectation.k_tile.items() if isinstance(number, int) and number > 0]
    assert len(exact) >= 2
    loop = function.innermost_loops(expectation.main_loop)[0]
    for pattern in exact:
        run = (i for i in sorted(loop.members) if function.instructions[i].runs)
        index = next(i for i in run if matches(function.instructions[i].opcode, pattern))
        assert check(replaced(function, index, "IADD3"), expectation), (instance.info.name, pattern)


def check_that_local_memory_is_found(found):
    expectations = [
        (function, codegen_expectations.EXPECTATIONS[instance.info.family](instance)) for function, instance in found
    ]
    # One that doesn't read the shared memory of other CTAs, which generic loads do.
    function, expectation = next(pair for pair in reversed(expectations) if "LD" not in pair[1].kernel)
    for opcode in ("LDL", "STL.64", "LDL.LU", "LD.E", "ST.E"):
        wrong = check(replaced(function, 1, opcode), expectation)
        assert wrong == [f"{function.kernel} on {function.arch} has 1 {opcode.split('.')[0]}, not 0"]


@pytest.mark.slow
def test_kernels_hold_the_instructions_that_their_tiles_ask_for():
    """And in a real kernel of every family the check finds what is wrong. One test, as every process that runs one
    disassembles the module, which takes minutes.
    """
    if (missing := sass.missing_tool()) is not None:
        pytest.skip(f"{missing} is not installed")
    functions = sass.disassemble(sass.built_module())
    assert check_module([*_core.kernels(), *_core.mixed_kernels()], functions) == []
    instances = [(function, find_instance(function, _core.kernels())) for function in functions]
    for family in FAMILIES:
        found = [(code, instance) for code, instance in instances if instance and instance.info.family == family]
        check_that_one_instruction_less_is_found(*found[0])
        check_that_local_memory_is_found(found)


def read_excerpt(name):
    (function,) = sass.parse((ROOT / "tests" / "sass" / name).read_text().splitlines())
    return function


def test_parse_of_a_kernel_for_ampere():
    function = read_excerpt("cp_async.sass")
    assert (function.kernel, function.arch) == ("cp_async_probe", "sm_80")
    assert function.instructions[0] == Instruction(0, "", "IMAD.MOV.U32", "R1, RZ, RZ, c[0x0][0x28]")
    assert function.instructions[10] == Instruction(0xA0, "@!P0", "BRA", "0x210")
    (loop,) = function.loops
    assert loop.address == 0xF0
    synchronised = {"LDGDEPBAR": 1, "DEPBAR.LE": 1, "BAR.SYNC.DEFER_BLOCKING": 2}
    memory = {"LDGSTS.E.BYPASS.128": 1, "LDSM.16.M88.4": 1}
    expected = {**synchronised, **memory, "HMMA.16816.F32": 1, "BRA": 1}
    assert {opcode: loop.opcodes[opcode] for opcode in expected} == expected
    assert "LDS" not in function.opcodes, "@!PT LDS never runs"
    assert function.opcodes["STG.E"] == 4


def test_parse_of_a_kernel_for_hopper():
    function = read_excerpt("wgmma.sass")
    assert function.arch == "sm_90a"
    patterns = {
        "HGMMA.64x8x16.F32.BF16": 1,
        "*MMA": 1,
        "UTMALDG.2D": 1,
        "UTMASTG.2D": 1,
        "SYNCS.EXCH.64": 1,
        "SYNCS.ARRIVE.TRANS64": 1,
        "SYNCS.PHASECHK.TRANS64.TRYWAIT": 2,
        "WARPGROUP.ARRIVE": 1,
        "WARPGROUP.DEPBAR.LE": 1,
        "USETMAXREG.TRY_ALLOC": 1,
        "FENCE.VIEW.ASYNC": 1,
    }
    assert {pattern: sass.count(function.opcodes, pattern) for pattern in patterns} == patterns
    # The retry of a wait lies behind the kernel's end and jumps back into the loop, of which it is a part.
    (main_loop,) = function.innermost_loops(["HGMMA"])
    assert main_loop.opcodes["SYNCS.PHASECHK.TRANS64.TRYWAIT"] == 2
    assert main_loop.opcodes["UTMALDG.2D"] == 0
    (retry,) = function.innermost_loops(["SYNCS.PHASECHK"])
    assert retry.opcodes == Counter({"SYNCS.PHASECHK.TRANS64.TRYWAIT": 1, "BRA": 1})


def test_branches_and_what_looks_like_them():
    lines = ["\tcode for sm_80", "\t\tFunction : k"]
    listing = [
        "BSSY B0, 0x70",
        "@P0 BRA 0xa0",  # 0x10: the loop starts here
        "WARPSYNC 0xffffffff",
        "CALL.REL.NOINC 0xc0",
        "BRA !P1, 0x60",
        "BRA.DIV ~URZ, 0x10",  # 0x50: and ends here
        "BSYNC B0",
        "FADD R0, R0, R1",
        "@P3 CALL.REL.NOINC 0xf0",
        "EXIT",
        "HMMA.16816.F32 R0, R0, R0, R0",  # 0xa0: out of line
        "BRA 0x20",
        "FFMA R0, R0, R0, R0",  # 0xc0: a subroutine
        "RET.REL.NODEC R4 0x0",
        "BRA 0xe0",
        "STG.E [R2.64], R0",  # 0xf0: jumped to by a "call"
        "@P4 CALL.REL.NOINC 0x120",
        "BRA 0x70",  # 0x110: a second loop ends, which starts at 0x70
        "EXIT",
    ]
    lines += [f"        /*{i * 16:04x}*/   {text} ;" for i, text in enumerate(listing)]
    (function,) = sass.parse(lines)
    first, second = ({function.instructions[i].address for i in loop.members} for loop in function.loops)
    assert first == {*range(0x10, 0x60, 0x10), 0xA0, 0xB0}
    assert second == {0x70, 0x80, 0xF0, 0x100, 0x110}


def test_a_cycle_with_two_entries_is_no_loop():
    lines = ["\tcode for sm_80", "\t\tFunction : k"]
    listing = ["@P0 BRA 0x20", "FADD R0, R0, R0", "FMUL R0, R0, R0", "@P1 BRA 0x10", "EXIT"]
    (function,) = sass.parse([*lines, *(f"        /*{i * 16:04x}*/   {text} ;" for i, text in enumerate(listing))])
    assert function.loops == []


def test_loops_past_a_jump_table_are_refused():
    (function,) = sass.parse(["\tcode for sm_80", "\t\tFunction : k", "        /*0000*/  BRX R2 -0x10 ;"])
    with pytest.raises(ValueError, match=r"k on sm_80: loops can't be found past a jump table \(BRX\)"):
        assert function.loops


def test_table_has_a_column_for_each_loop():
    header, columns, *rows = sass.table(read_excerpt("cp_async.sass")).splitlines()
    assert header.startswith("cp_async_probe, sm_80: ")
    assert columns.split() == ["all", "0xf0"]
    assert [row.split() for row in rows if "HMMA" in row or "STG" in row] == [
        ["HMMA.16816.F32", "1", "1"],
        ["STG.E", "4"],
    ]


@pytest.mark.parametrize(
    ("opcode", "pattern", "expected"),
    [
        ("LDG.E.128.CONSTANT", "LDG.128", True),
        ("LDG.E.LTC128B.128", "LDG.128", True),
        ("LDG.E.64", "LDG.128", False),
        ("LDGSTS.E.BYPASS.128", "LDG", False),
        ("LDSM.16.MT88.4", "LDS", False),
        ("HMMA.16816.F32.BF16", "*MMA", True),
        ("QGMMA.64x64x32.F32.E4M3.E4M3", "*MMA", True),
        ("FFMA", "*MMA", False),
    ],
)
def test_matches(opcode, pattern, expected):
    assert matches(opcode, pattern) is expected


def kernel(*loops, prologue=(), arch="sm_80"):
    """A made-up kernel: the prologue, then loops with these opcodes; a nested tuple is an inner loop."""
    lines = [f"\tcode for {arch}", "\t\tFunction : k"]

    def line(predicate, opcode, operands=""):
        lines.append(f"        /*{len(lines) * 16:04x}*/  {predicate}  {opcode} {operands} ;  /* 0x000fe400078e00ff */")

    def emit(loop):
        head = len(lines) * 16
        for opcode in loop:
            emit(opcode) if isinstance(opcode, tuple) else line("", opcode, "R0, R1")
        line("@P0", "BRA", f"0x{head:x}")

    for opcode in prologue:
        line("", opcode, "R0, R1")
    for loop in loops:
        emit(loop)
    line("", "EXIT")
    return sass.parse(lines)[0]


MAIN_LOOP = ("LDSM.16.M88.4",) * 3 + ("HMMA.16816.F32",) * 4 + ("BAR.SYNC",)
EXPECTATION = Expectation(("HMMA",), {"BAR": 1, "HMMA": 4, "LDSM": AtLeast(2)}, {"FFMA": 0}, ("HMMA",))


@pytest.mark.parametrize("turns", [1, 2])
def test_check_accepts_what_is_expected_however_often_it_was_unrolled(turns):
    assert check(kernel(MAIN_LOOP * turns), EXPECTATION, smem_bytes=1) == []
    assert check(kernel((*MAIN_LOOP * turns, ("STS",)), ("STG",)), EXPECTATION) == []
    assert check(kernel((MAIN_LOOP * turns, "STG")), EXPECTATION) == []


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (kernel(MAIN_LOOP, ("LDL",)), "k on sm_80 has 1 LDL, not 0"),
        (kernel(MAIN_LOOP, prologue=["STL.128"]), "k on sm_80 has 1 STL, not 0"),
        (kernel(MAIN_LOOP, ("FFMA",)), "k on sm_80 has 1 FFMA, not 0"),
        (kernel((*MAIN_LOOP, "HMMA.16816.F32")), "k on sm_80, main loop at 0x20, has 5 HMMA, not 4"),
        (kernel(MAIN_LOOP[2:]), "k on sm_80, main loop at 0x20, has 1 LDSM, not at least 2"),
        (kernel(MAIN_LOOP[:-1]), "k on sm_80, main loop at 0x20, has 0 BAR, not a multiple of 1"),
        (kernel((*MAIN_LOOP, "BAR.SYNC")), "k on sm_80, main loop at 0x20, has 4 HMMA, not 8"),
        (kernel(MAIN_LOOP * 2, MAIN_LOOP[:-2] + MAIN_LOOP[-1:]), "k on sm_80, main loop at 0x130, has 3 HMMA, not 4"),
        (kernel(("FADD",)), "k on sm_80 has no loop with HMMA"),
        (
            kernel(MAIN_LOOP, prologue=["HMMA.16816.F32"]),
            "k on sm_80 has 1 HMMA outside its main loop, e.g. HMMA.16816.F32",
        ),
    ],
)
def test_check_finds(function, sentence):
    assert sentence in check(function, EXPECTATION)


def test_check_finds_shared_memory_without_a_barrier():
    expectation = Expectation(("HMMA",), {"HMMA": 4})
    assert check(kernel(MAIN_LOOP[:-1]), expectation) == []
    assert check(kernel(MAIN_LOOP[:-1]), expectation, smem_bytes=1) == ["k on sm_80 has 0 BAR, not at least 1"]


def info(family, **kwargs):
    fields = {"config": "8x8x1", "min_sm": 80, "max_sm": 0, "dtypes": [("float32",) * 3], "layouts": ["NN"]}
    sizes = {"cta_tile": (8, 8, 1), "warp_tile": (8, 4, 1), "threads": 64, "smem_bytes": 0, "tf32": False, "bits": 0}
    return SimpleNamespace(family=family, name=f"{family}:8x8x1", **{**fields, **sizes, **kwargs})


def naive_kernel(name="naive.cu: naive_kernel<Config8x8, false, false>", arch="sm_80"):
    return dataclasses.replace(kernel(("FFMA", "LDG.E", "LDG.E"), arch=arch), kernel=name)


def test_a_module_as_expected():
    assert check_module([info("naive")], [naive_kernel()]) == []


def test_an_empty_module_is_found():
    assert check_module([], []) == ["the module has no machine code", "the registry has no kernels"]
    assert check_module([info("naive")], []) == ["the module has no machine code"]


def test_a_family_without_expectations_is_found():
    function = naive_kernel("later.cu: later_kernel<Config8x8, false, false>")
    assert check_module([info("later")], [function]) == [
        "the family later has no row in EXPECTATIONS of tests/codegen_expectations.py: add one that says which "
        "instructions its main loop holds for one k-tile (docs/codegen.md)"
    ]


def test_kernels_that_nobody_knows_and_kernels_without_code_are_found():
    strange = naive_kernel("naive.cu: naive_helper<Config8x8>")
    first, second = check_module([info("naive")], [strange])
    assert first.startswith("naive.cu: naive_helper<Config8x8> is no kernel of the registry")
    assert second == "naive:8x8x1 has 0 instantiations on sm_80, not 1: one for each dtype and layout"


def test_kernels_are_expected_only_where_they_run():
    hopper = info("naive", min_sm=90, max_sm=90)
    stub = Function(naive_kernel().kernel, "sm_80", [Instruction(0, "", "EXIT", "")])
    assert check_module([hopper], [stub, naive_kernel(arch="sm_90a")]) == []
    assert check_module([hopper], [stub, naive_kernel(arch="sm_90a"), naive_kernel(arch="sm_100a")]) == []
    assert check_module([hopper], [naive_kernel(arch="sm_80"), dataclasses.replace(stub, arch="sm_90a")]) == [
        f"{stub.kernel} on sm_90a has no loop with FFMA and LDG"
    ]


def test_configs_with_one_name_are_not_mixed_up():
    both = [info("naive"), info("naive", config="8x8x2")]
    assert find_instance(naive_kernel(), both) is None
    function = naive_kernel("naive.cu: naive_kernel<Config8x8x2, false, true>")
    instance = find_instance(function, both)
    assert instance is not None
    assert instance.info is both[1]
    assert instance.transposed == (False, True)
