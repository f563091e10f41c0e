"""Runs the CUDA compiler, and fails where ptxas says that it did not do what the source asks for.

ptxas reports the worst that can befall a tensor-core kernel (wgmma serialised, setmaxnreg ignored) with codes C7500 to
C7599, and calls it "info": such a line is no warning, so that warnings as errors does not see it, and the kernel is
right but slow. CMake calls the compiler through this script (CMAKE_CUDA_COMPILER_LAUNCHER) where JAXGEMM_WERROR is on.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ADVISORY = re.compile(r"\((C75\d\d)\)")

_SERIALISED = (
    "every wgmma is waited for before the next starts: between wgmma.fence and wgmma.wait_group there must be no "
    "function call, no divergent branch and no other use of the accumulators, and registers for all of them"
)
_INJECTED = (
    "wgmma.fence must stand before the first wgmma after an accumulator was written, and wgmma.wait_group before one "
    "is read"
)
REMEDIES = {
    "C7508": "setmaxnreg needs to know the registers at entry: give __launch_bounds__ its second argument",
    "C7510": _SERIALISED,
    "C7511": _SERIALISED,
    "C7517": _INJECTED,
    "C7519": _INJECTED,
    "C7520": _SERIALISED,
}


def complaints(output: str) -> list[str]:
    """One sentence for each kind of advisory in what the compiler printed."""
    codes = sorted(set(ADVISORY.findall(output)))
    return [f"{code}: {REMEDIES.get(code, 'the code is slower than its source says; see above')}" for code in codes]


def output_files(command: Sequence[str]) -> list[Path]:
    return [Path(value) for option, value in itertools.pairwise(command) if option == "-o"]


def main(command: Sequence[str]) -> int:
    result = subprocess.run(command, check=False, capture_output=True)
    for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(output)
        stream.flush()
    found = complaints((result.stdout + result.stderr).decode(errors="replace"))
    if result.returncode != 0 or not found:
        return result.returncode
    for sentence in found:
        print(f"error: ptxas advisory {sentence}", file=sys.stderr)
    for path in output_files(command):  # or else the next build would take it for good
        path.unlink(missing_ok=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
