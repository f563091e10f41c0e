"""Registers, shared memory and stack of every compiled kernel, compared with a committed budget.

A stack is where spilled registers and arrays with run-time indices go: a kernel with one is slow, and is refused.
More registers than the budget says mean fewer CTAs per multiprocessor: a change that needs them says so by changing
tests/resource_budget.json, which `python cmake/resource_usage.py --write` does.
"""

import argparse
import ctypes
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

BUDGET = Path(__file__).resolve().parent.parent / "tests" / "resource_budget.json"


LAUNCH = "launch"
"""In the place of an architecture: the shared memory that jaxgemm.kernels() asks for, on all of them."""


@dataclass(frozen=True, order=True)
class Usage:
    """What one kernel takes on one architecture."""

    kernel: str
    arch: str
    registers: int  # per thread
    shared_bytes: int  # per CTA: static, and what a kernel asks for at launch in a row of its own
    stack_bytes: int  # per thread

    @property
    def key(self) -> tuple[str, str]:
        return self.kernel, self.arch


def built_module() -> Path:
    """The compiled module that `import jaxgemm` loads."""
    from jaxgemm import _core

    assert _core.__file__ is not None
    return Path(_core.__file__)


def asked_for_at_launch() -> list[Usage]:
    """Dynamic shared memory of every kernel of the installed module."""
    from jaxgemm import _core

    return [Usage(info.name, LAUNCH, 0, info.smem_bytes, 0) for info in _core.kernels()]


def find_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: that of NVIDIA's wheel in this environment, else the one on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"cu[0-9]*/bin/{name}")):
            return str(path)
    return shutil.which(name)


def demangle(symbol: str) -> str:
    function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = function(symbol.encode(), None, None, ctypes.byref(status))
    if text is None:
        return symbol
    try:
        return ctypes.string_at(text).decode()
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(text)


def short_name(symbol: str) -> str:
    """E.g. "naive.cu: naive_kernel<Config32x32, false, true>"."""
    name = demangle(symbol).replace("(anonymous namespace)::", "").replace("jaxgemm::", "").removeprefix("void ")
    if name.endswith(")"):  # cut the parameter list
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if depth == 0:
                name = name[:i]
                break
    # nvcc names the anonymous namespace after the file: _GLOBAL__N__<hash>_<length>_<file>_<hash>
    if (file := re.search(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+)_cu_[0-9a-f]{8}", symbol)) is not None:
        name = f"{file[1]}.cu: {name}"
    return name


def parse(text: str) -> list[Usage]:
    """What `cuobjdump --dump-resource-usage` printed."""
    rows, arch, kernel = [], "", ""
    for line in text.splitlines():
        if (match := re.match(r"arch = (\S+)", line)) is not None:
            arch = match[1]
        elif (match := re.match(r"\s*Function (\S+):$", line)) is not None:
            kernel = short_name(match[1])
        elif (match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line)) is not None:
            registers, stack, shared, local = map(int, match.groups())
            rows.append(Usage(kernel, arch, registers, shared, stack + local))
    names = [row.key for row in rows]
    if repeated := {key for key in names if names.count(key) > 1}:
        raise ValueError(f"several kernels have one name: {sorted(repeated)}")
    return sorted(rows)


def measure(module: Path) -> tuple[str, list[Usage]]:
    """The version of the compiler that made the module, and what its kernels take."""
    if (cuobjdump := find_tool("cuobjdump")) is None:
        raise FileNotFoundError("no cuobjdump: pip install nvidia-cuda-cuobjdump")
    output = subprocess.run([cuobjdump, "--dump-resource-usage", module], check=True, capture_output=True, text=True)
    versions = {
        v.decode() for v in re.findall(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)", module.read_bytes())
    }
    return " ".join(sorted(versions)), sorted(parse(output.stdout) + asked_for_at_launch())


def read_budget(path: Path = BUDGET) -> tuple[str, list[Usage]]:
    content = json.loads(path.read_text())
    return content["compiler"], [Usage(**row) for row in content["kernels"]]


def write_budget(compiler: str, rows: Iterable[Usage], path: Path = BUDGET) -> None:
    lines = ",\n".join("    " + json.dumps(asdict(row)) for row in sorted(rows))
    path.write_text(f'{{\n  "compiler": {json.dumps(compiler)},\n  "kernels": [\n{lines}\n  ]\n}}\n')


def compare(built: Iterable[Usage], budget: Iterable[Usage]) -> list[str]:
    """One sentence for all that is over the budget, missing or unknown, among the architectures that were built."""
    built, wrong = list(built), []
    archs = {row.arch for row in built}
    allowed = {row.key: row for row in budget if row.arch in archs}
    for row in built:
        where = f"{row.kernel} on {row.arch}"
        if row.stack_bytes:
            wrong.append(
                f"{where} has a stack of {row.stack_bytes} bytes: registers are spilled, or an array is indexed "
                "at run time"
            )
        if (limit := allowed.pop(row.key, None)) is None:
            wrong.append(f"{where} is not in the budget")
            continue
        wrong += [
            f"{where}: {field} {getattr(row, field)}, budget {getattr(limit, field)}"
            for field in ("registers", "shared_bytes")
            if getattr(row, field) > getattr(limit, field)
        ]
    wrong += [f"{kernel} on {arch} is in the budget, but not in the module" for kernel, arch in allowed]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make what is built the budget")
    args = parser.parse_args()
    compiler, built = measure(built_module())
    width = max((len(row.kernel) for row in built), default=0)
    print(f"{'kernel':{width}} {'arch':8} {'registers':>9} {'shared':>7} {'stack':>6}")
    for row in built:
        print(f"{row.kernel:{width}} {row.arch:8} {row.registers:9} {row.shared_bytes:7} {row.stack_bytes:6}")
    if args.write:
        if spilled := [row.kernel for row in built if row.stack_bytes]:
            print(f"not written, these have a stack: {', '.join(spilled)}", file=sys.stderr)
            return 1
        write_budget(compiler, built)
        return 0
    budget_compiler, budget = read_budget()
    wrong = compare(built, budget)
    if compiler != budget_compiler:
        wrong.insert(0, f"the module was compiled by nvcc {compiler}, the budget is for {budget_compiler}")
    if missing := {row.arch for row in budget} - {row.arch for row in built}:
        wrong.insert(0, f"the module has no code for {', '.join(sorted(missing))}")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(
        f"{len(built)} kernels, {len(wrong)} beyond the budget" if wrong else f"{len(built)} kernels within the budget"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
