"""Where configurations lie: a file, or the name of one that comes with the programs, wherever they are installed."""

import pathlib
from collections.abc import Sequence

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
BASE = str(CONFIGS / "base.py")


def with_files(arguments: Sequence[str]) -> list[str]:
    """Returns a command line in which --config names a file, in one word: --config=demo:local.

    A file that is there is taken as it is, and what is neither stays, for `check_files` to name it.
    """
    resolved: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in ("-config", "--config"):
            value = value if equals else next(rest, "")
            argument = f"--config={find(value)}"
        resolved.append(argument)
    return resolved


def check_files(arguments: Sequence[str]) -> None:
    """Raises a `ValueError` where --config of a command line from `with_files` names no file."""
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag == "--config" and not pathlib.Path(value.partition(":")[0]).is_file():
            ours = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem != "__init__"))
            raise ValueError(f"`--config` must be a file, or one of {ours}. Received: --config={value}.")


def find(text: str) -> str:
    """Returns FILE[:VARIANT] of a file that is there, or of one in `trainers/configs` with the same name."""
    name, colon, variant = text.partition(":")
    path = pathlib.Path(name)
    ours = CONFIGS / f"{path.stem}.py"
    is_ours = path.parent == pathlib.Path() or path.parts[-3:-1] == ("trainers", "configs")
    if not path.is_file() and is_ours and ours.is_file():
        name = str(ours)
    return f"{name}{colon}{variant}"
