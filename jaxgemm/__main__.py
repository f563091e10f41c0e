"""``python -m jaxgemm``: the main job (``_main_command.py``), and its subcommand ``tune`` (``_tune_command.py``)."""

import sys
from collections.abc import Sequence

from jaxgemm import _main_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that ``argv`` (by default that of this process) asks for; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["tune"]:
        from jaxgemm import _tune_command

        return _tune_command.main(argv[1:])
    return _main_command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
