"""The settings of a configuration as text: name, value, and the comment beside it in `trainers/configs/base.py`."""

import ast
import io
import pathlib
import shutil
import textwrap
import tokenize
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from tf_sparse_attention.trainers.configs import base

NAME_WIDTH = 44  # of the first column
SECTIONS = ("task", "seed", "data", "model", "optimizer", "train", "generate")


def describe(arguments: Sequence[str]) -> str:
    """Returns the settings of the configuration that a command names, or the defaults.

    Args:
        arguments: the command line, from `config_files.with_files`.
    """
    named = [argument.partition("=")[2] for argument in arguments if argument.startswith("--config=")]
    config = _read(named[-1]) if named else base.get_config()
    meanings, rows = comments(), []
    for section in SECTIONS:
        values = config[section] if hasattr(config[section], "keys") else {None: config[section]}
        for name in values:
            path = section if name is None else f"{section}.{name}"
            rows.append((f"--config.{path}", values[name], meanings.get(path, "")))
    return f"Settings of {named[-1] if named else 'trainers/configs/base.py'}:\n{table(rows)}"


def table(rows: Iterable[tuple[str, Any, str | None]], name_width: int = NAME_WIDTH) -> str:
    """Returns rows of name, default and meaning as text, as wide as the terminal; names have so many columns."""
    width = max(shutil.get_terminal_size((100, 24)).columns, 60)
    lines = []
    for name, default, meaning in rows:
        text = "" if default is None else f"[{default}] "
        indent = " " * min(name_width, width // 2)
        first = f"  {name}".ljust(len(indent) - 1) + " "
        text = textwrap.fill(text + (meaning or ""), width, initial_indent=first, subsequent_indent=indent)
        lines.append(text.rstrip() or first.rstrip())
    return "\n".join(lines)


def comments() -> dict[str, str]:
    """Returns the comment of each setting in `trainers/configs/base.py`, {"data.tfds": text}."""
    source = pathlib.Path(base.__file__).read_text(encoding="utf-8")
    by_line = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        section = function.name.strip("_")
        for node in ast.walk(function):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    text = _comment_of(key, value, by_line)
                    if isinstance(key, ast.Constant) and text:
                        name = str(key.value)
                        found[name if section == "get_config" else f"{section}.{name}"] = text
    return found


def _comment_of(key, value, by_line):
    """Returns the comment at the end of an entry, or the lines of comments above it."""
    if value.end_lineno in by_line:
        return by_line[value.end_lineno][0]
    above: list[str] = []
    line = key.lineno - 1
    while by_line.get(line, ("", False))[1]:
        above.insert(0, by_line[line][0])
        line -= 1
    return " ".join(above)


def _read(path):
    """Returns the configuration of a file, FILE or FILE:VARIANT, as the flag --config does."""
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", None, "", flag_values=values)
    values(["help", f"--config={path}"])
    return holder.value
