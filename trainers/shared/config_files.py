"""Where configurations lie: a file, or the name of one that comes with the programs, wherever they are installed."""

import pathlib
from collections.abc import Sequence

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
BASE = str(CONFIGS / "base.py")


def with_files(arguments: Sequence[str]) -> list[str]:
    """Returns a command line in which --config names a file: --config=demo:local, --config=trainers/configs/demo.py.

    A file that is there is taken as it is, and what is neither stays, for the error that names it.
    """
    resolved = list(arguments)
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.lstrip("-") != "config" or not flag.startswith("-"):
            continue
        if equals:
            resolved[index] = f"{flag}={find(value)}"
        elif index + 1 < len(arguments):
            resolved[index + 1] = find(arguments[index + 1])
    return resolved


def find(text: str) -> str:
    """Returns FILE[:VARIANT] of a file that is there, or of one in `trainers/configs` with the same name."""
    name, colon, variant = text.partition(":")
    path = pathlib.Path(name)
    ours = CONFIGS / f"{path.stem}.py"
    is_ours = path.parent == pathlib.Path() or path.parts[-3:-1] == ("trainers", "configs")
    if not path.is_file() and is_ours and ours.is_file():
        name = str(ours)
    return f"{name}{colon}{variant}"
