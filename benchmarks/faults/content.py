"""Trials with damaged files and with invalid data."""

import gzip
import json
import shutil
from collections.abc import Iterator

from benchmarks.faults.lab import LAST, Lab, Trial

DAMAGES = ("truncated", "empty", "flipped", "noise", "removed", "doubled")


def damaged(lab: Lab, count: int) -> Iterator[Trial]:
    """Damage a file of an unfinished run, or of its prepared data, and run the same command again.

    The run survives if it exits with a one-line error, or ends with the result of an undisturbed run.
    """
    half = lab.new("half")
    lab.run(half / "run", data_dir=half / "data")
    for path in (half / "run" / LAST, half / "run" / "model.keras"):
        path.unlink()
    files = sorted(path.relative_to(half) for path in half.rglob("*") if path.is_file())
    lab.random.shuffle(files)
    for number in range(count):
        name, damage = files[number % len(files)], DAMAGES[number % len(DAMAGES)]
        folder = lab.new(f"damaged-{number}")
        shutil.copytree(half, folder, dirs_exist_ok=True)
        _damage(lab, folder / name, damage)
        ended = lab.run(folder / "run", data_dir=folder / "data")
        is_fine = ended.is_clear or (ended.status == 0 and lab.difference(folder / "run") is None)
        problem = None if is_fine else f"{ended}, {lab.difference(folder / 'run')}"
        yield Trial(f"{name} {damage}", problem)
        shutil.rmtree(folder)


def _damage(lab, path, damage):
    content = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
        return
    if damage == "truncated":
        content = content[: lab.random.randrange(max(len(content), 1))]
    elif damage == "empty":
        content = bytearray()
    elif damage == "flipped" and content:
        content[lab.random.randrange(len(content))] ^= 1 << lab.random.randrange(8)
    elif damage == "noise":
        content = bytearray(lab.random.randbytes(len(content)))
    elif damage == "doubled":
        content = content * 2
    path.write_bytes(content)


def _lines(*lines):
    return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()


FIELD = ["--config.data.text_field=body"]
GOOD = {"body": "some words " * 40}
# Contents of files by path, and further flags. A path that ends with "/" is an empty folder.
BAD_DATA = {
    "a missing folder": ({}, []),
    "an empty folder": ({"empty/": b""}, []),
    "empty files": ({"a.txt": b"", "b.txt": b" \n"}, []),
    "invalid UTF-8": ({"a.txt": b"words \xff\xfe words" * 99}, []),
    "a binary file": ({"a.txt": bytes(range(256)) * 40}, []),
    "zeros": ({"train/a.txt": b"\0" * 5000, "validation/a.txt": b"\0" * 500}, []),
    "a truncated gzip file": ({"a.txt.gz": gzip.compress(b"some words " * 999)[:-30]}, []),
    "no validation split": ({"train/a.txt": b"some words " * 999}, []),
    "a text shorter than a window": ({"a.txt": b"short"}, []),
    "a long line without a line break": ({"a.txt": b"abcdefgh" * 100_000}, []),
    "an invalid JSON line": ({"a.jsonl": _lines(GOOD, '{"body": "x', GOOD)}, FIELD),
    "a field that is not text": ({"a.jsonl": _lines(GOOD, {"body": {"x": 1}})}, FIELD),
    "lines without the field": ({"a.jsonl": _lines({"text": "x"})}, FIELD),
    "JSON lines without the setting text_field": ({"a.jsonl": _lines(GOOD)}, []),
}


def bad_data(lab: Lab, count: int) -> Iterator[Trial]:
    """Train on invalid data. The run must exit with a one-line error, or train to the end."""
    for number, (name, (files, flags)) in enumerate(list(BAD_DATA.items())[:count]):
        folder = lab.new(f"bad-{number}")
        for file, content in files.items():
            path = folder / "text" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.endswith("/"):
                path.mkdir()
            else:
                path.write_bytes(content)
        ended = lab.run(folder / "run", text=folder / "text", data_dir=folder / "data", changes=flags)
        yield Trial(name, None if ended.is_clear or ended.status == 0 else str(ended))
        shutil.rmtree(folder)
