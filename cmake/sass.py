"""The machine code of every compiled kernel: which instructions it holds, and which of them lie in its loops.

`python cmake/sass.py --kernel wmma_tiled` prints them for the installed module; tests/test_codegen.py compares them
with what follows from the kernel's tile.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from resource_usage import built_module, find_tool, short_name

# What the table shows without --all: tensor cores, multiply-adds, memory, and what synchronises. The rest is arithmetic
# on indices and the epilogue.
SHOWN = (
    *("*MMA", "FFMA", "MOVM"),
    *("LD", "LDG*", "LDL", "LDS*", "ST", "STG", "STL", "STS*", "RED*", "ATOM*", "UBLK*", "UTMA*"),
    *("BAR", "DEPBAR", "ELECT", "FENCE", "MEMBAR", "SYNCS", "USETMAXREG", "WARPGROUP*", "CALL"),
)


class Instruction(NamedTuple):
    """One line of SASS."""

    address: int
    predicate: str  # "" or e.g. "@!P0"
    opcode: str  # with its modifiers: "HMMA.16816.F32"
    operands: str

    @property
    def runs(self) -> bool:
        """False for the fillers of ptxas: "@!PT LDS RZ, [RZ]" before a copy to shared memory, for example."""
        return self.opcode != "NOP" and self.predicate not in ("@!PT", "@!UPT")

    @property
    def target(self) -> int | None:
        """The address among the operands of a branch."""
        match = re.search(r"\b0x([0-9a-f]+)$", self.operands)
        return int(match[1], 16) if match else None


def matches(opcode: str, pattern: str) -> bool:
    """Whether the opcode has the pattern's name, which may hold wildcards, and all its modifiers, in any order."""
    name, *modifiers = opcode.split(".")
    wanted_name, *wanted_modifiers = pattern.split(".")
    return fnmatchcase(name, wanted_name) and set(wanted_modifiers) <= set(modifiers)


def count(opcodes: Mapping[str, int], pattern: str) -> int:
    return sum(number for opcode, number in opcodes.items() if matches(opcode, pattern))


@dataclass(frozen=True)
class Loop:
    """A loop with all that is inside it, inner loops included."""

    address: int  # of its first instruction
    members: frozenset[int]  # indices into Function.instructions
    opcodes: Counter[str]


@dataclass(frozen=True)
class Function:
    """A kernel's machine code for one architecture."""

    kernel: str  # e.g. "naive.cu: naive_kernel<Config32x32, false, true>"
    arch: str
    instructions: list[Instruction]

    @cached_property
    def opcodes(self) -> Counter[str]:
        return self._opcodes(range(len(self.instructions)))

    @cached_property
    def loops(self) -> list[Loop]:
        """Every natural loop, in the order of their addresses. Loops that start at one instruction count as one."""
        successors = self._successors()
        predecessors: defaultdict[int, list[int]] = defaultdict(list)
        for i, following in enumerate(successors):
            for j in following:
                predecessors[j].append(i)
        members: defaultdict[int, set[int]] = defaultdict(set)
        for end, head in _edges_back(successors):
            body, pending = members[head] | {head}, [end]
            while pending:  # all that leads to the loop's end without passing its head
                if (i := pending.pop()) not in body:
                    body.add(i)
                    pending += predecessors[i]
            members[head] = body
        return [
            Loop(self.instructions[head].address, frozenset(body), self._opcodes(body))
            for head, body in sorted(members.items())
            if head == 0 or 0 not in body  # else its end can be reached past its head: no natural loop
        ]

    def innermost_loops(self, patterns: Iterable[str]) -> list[Loop]:
        """The loops that hold all of these opcodes, and inside which no smaller loop does."""
        patterns = list(patterns)
        found = [loop for loop in self.loops if all(count(loop.opcodes, pattern) for pattern in patterns)]
        return [loop for loop in found if not any(other.members < loop.members for other in found)]

    def _opcodes(self, indices: Iterable[int]) -> Counter[str]:
        return Counter(self.instructions[i].opcode for i in indices if self.instructions[i].runs)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {instruction.address: i for i, instruction in enumerate(self.instructions)}

    def _successors(self) -> list[list[int]]:
        """Which instructions may follow each."""
        joins: defaultdict[str, set[int]] = defaultdict(set)  # by barrier register: where BSYNC goes on
        for instruction in self.instructions:
            if instruction.opcode.startswith("BSSY") and instruction.target is not None:
                joins[instruction.operands.split(",")[0]].add(self._index[instruction.target])
        result = []
        for i, (_, predicate, opcode, operands) in enumerate(self.instructions):
            following = [i + 1] if i + 1 < len(self.instructions) else []
            name, target = opcode.split(".")[0], self.instructions[i].target
            if name in ("BRX", "JMX", "BRXU"):
                raise ValueError(f"{self.kernel} on {self.arch}: loops can't be found past a jump table ({opcode})")
            if name in ("EXIT", "RET"):
                result.append(following if predicate else [])
            elif name == "BSYNC" and i + 1 not in joins[operands]:  # out of line
                result.append(sorted(joins[operands]) or following)
            elif name == "CALL" and target is not None:
                # A subroutine, which ends in a RET that leads nowhere here; or a jump, which ptxas spells like that.
                result.append([*following, self._index[target]])
            elif (name in ("BRA", "JMP") or opcode == "WARPSYNC.COLLECTIVE") and target is not None:
                conditional = predicate or "," in operands  # "BRA !P1, 0x2500" has its condition among the operands
                result.append([*(following if conditional else []), self._index[target]])
            else:
                result.append(following)
        return result


def _edges_back(successors: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Edges of the graph to a node that the depth-first search is still in: from the end of a loop to its head."""
    seen, open_nodes = {0}, {0}
    path = [(0, iter(successors[0]))] if successors else []
    while path:
        node, following = path[-1]
        if (child := next(following, None)) is None:
            open_nodes.remove(node)
            path.pop()
        elif child in open_nodes:
            yield node, child
        elif child not in seen:
            seen.add(child)
            open_nodes.add(child)
            path.append((child, iter(successors[child])))


def parse(lines: Iterable[str]) -> list[Function]:
    """What `cuobjdump -sass` printed."""
    instruction = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
    functions: list[Function] = []
    arch = ""
    for line in lines:
        if (match := instruction.match(line)) is not None:
            address, predicate, opcode, operands = match.groups(default="")
            functions[-1].instructions.append(Instruction(int(address, 16), predicate, opcode, operands))
        elif (match := re.match(r"\s*code for (\S+)", line)) is not None:
            arch = match[1]
        elif (match := re.match(r"\s*Function : (\S+)", line)) is not None:
            functions.append(Function(short_name(match[1]), arch, []))
    return functions


def missing_tool() -> str | None:
    """The first program that disassemble() lacks. cuobjdump hands the code on to nvdisasm."""
    return next((name for name in ("cuobjdump", "nvdisasm") if find_tool(name) is None), None)


def disassemble(module: Path) -> list[Function]:
    """The kernels of a compiled module, or of any file that cuobjdump reads."""
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        raise FileNotFoundError(f"no {missing_tool()}: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    environment = os.environ | {"NVDISASM_PATH": str(Path(nvdisasm).parent)}
    command = [cuobjdump, "-sass", module]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        functions = parse(process.stdout)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return functions


def table(function: Function, shown: Iterable[str] = SHOWN) -> str:
    """A row for each opcode, a column for the whole kernel and one for each loop that holds such an opcode."""
    shown = list(shown)
    rows = [opcode for opcode in sorted(function.opcodes) if any(matches(opcode, pattern) for pattern in shown)]
    loops = [loop for loop in function.loops if any(opcode in loop.opcodes for opcode in rows)]
    width = max(map(len, rows), default=0)
    lines = [
        f"{function.kernel}, {function.arch}: {function.opcodes.total()} instructions",
        f"  {'':{width}} {'all':>6}" + "".join(f" {f'0x{loop.address:x}':>8}" for loop in loops),
    ]
    lines += [
        f"  {opcode:{width}} {function.opcodes[opcode]:6}"
        + "".join(f" {loop.opcodes[opcode] or '':>8}" for loop in loops)
        for opcode in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="", metavar="SUBSTRING", help="only kernels whose name contains this")
    parser.add_argument("--arch", default="", metavar="SUBSTRING", help="only architectures like this, e.g. sm_80")
    parser.add_argument("--all", action="store_true", help="every opcode, integer arithmetic included")
    parser.add_argument("file", nargs="?", type=Path, help="a cubin or library; default: the installed module")
    args = parser.parse_args()
    functions = [
        function
        for function in disassemble(args.file or built_module())
        if args.kernel in function.kernel and args.arch in function.arch
    ]
    for function in functions:
        print(table(function, ["*"] if args.all else SHOWN), end="\n\n")
    if not functions:
        print("no such kernel", file=sys.stderr)
    return not functions


if __name__ == "__main__":
    sys.exit(main())
