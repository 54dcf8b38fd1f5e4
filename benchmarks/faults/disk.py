"""Trials with full disks, read-only folders and unusual folder names."""

import os
import shutil
from collections.abc import Iterator

from benchmarks.faults.kills import file_kinds
from benchmarks.faults.lab import Lab, Trial, make_writable

ODD = (
    "with space",
    "ünï¢ødé 日本",
    "quote'\"s",
    "[brackets]*?",
    "-dash",
    "percent %s %d",
    "hash#tag",
    "dot.",
    "a" * 200,
    "line\nbreak",
    "$HOME",
    "semi;colon&and",
)


def full_disk(lab: Lab, count: int) -> Iterator[Trial]:
    """Fill the disk when a file is opened, for each kind of file in turn, then free the disk and resume."""
    for number, (name, pattern, which) in enumerate(file_kinds(lab)[:count]):
        folder = lab.new(f"full-{number}")
        options = {"data_dir": folder / "data"}
        fault = {"FAULT": "full", "FAULT_FILE": pattern, "FAULT_NUMBER": str(which)}
        ended = lab.run(folder / "run", fault=fault, **options)
        problem = None if ended.is_clear or ended.status == 0 else str(ended)
        again = lab.resumed(folder / "run", **options)
        yield Trial(f"full at {name}", problem or again)
        shutil.rmtree(folder)


def read_only(lab: Lab, count: int) -> Iterator[Trial]:
    """Make the run directory of a new or resumed run, the folder of prepared data, or the text read-only."""
    cases = {
        "run directory": _read_only_workdir,
        "run directory of a resumed run": _read_only_later,
        "folder of data to prepare": _read_only_new_data,
        "prepared data": _read_only_data,
        "text": _read_only_text,
    }
    for name, case in list(cases.items())[:count]:
        folder = lab.new("read-only")
        try:
            yield Trial(name, case(lab, folder))
        finally:
            make_writable(folder)


NO_RIGHTS = {"FAULT": "no rights"}


def _refused(ended):
    return None if ended.is_clear else str(ended)


def _read_only_workdir(lab, folder):
    (folder / "run").mkdir()
    make_writable(folder, False)
    problem = _refused(lab.run(folder / "run", fault=NO_RIGHTS))
    make_writable(folder)
    return problem or lab.resumed(folder / "run")


def _read_only_later(lab, folder):
    lab.run(folder / "run", changes=["--config.train.num_steps=6"])
    make_writable(folder, False)
    problem = _refused(lab.run(folder / "run", fault=NO_RIGHTS))
    make_writable(folder)
    return problem or lab.resumed(folder / "run")


def _read_only_new_data(lab, folder):
    (folder / "data").mkdir()
    make_writable(folder / "data", False)
    problem = _refused(lab.run(folder / "run", data_dir=folder / "data", fault=NO_RIGHTS))
    make_writable(folder)
    return problem or lab.resumed(folder / "run", data_dir=folder / "data")


def _read_only_data(lab, folder):
    shutil.copytree(lab.reference.parent / "data", folder / "data")
    make_writable(folder / "data", False)
    return lab.resumed(folder / "run", data_dir=folder / "data", fault=NO_RIGHTS)


def _read_only_text(lab, folder):
    make_writable(lab.text, False)
    try:
        return lab.resumed(folder / "run", data_dir=folder / "data", fault=NO_RIGHTS)
    finally:
        make_writable(lab.text)


def odd_paths(lab: Lab, count: int) -> Iterator[Trial]:
    """Use unusual names for the run directory and the data folder, and a relative link with a trailing slash."""
    for number, name in enumerate(ODD[: max(count - 1, 0)]):
        folder = lab.new(f"odd-{number}")
        yield Trial(f"named {name[:20]!r}", lab.resumed(folder / name, data_dir=folder / name / "data"))
        shutil.rmtree(folder)
    folder = lab.new("odd-link")
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    relative = os.path.join("link", "run") + os.sep
    ended = lab.run(relative, cwd=folder)
    yield Trial("a relative link", lab.difference(folder / "real" / "run") if ended.status == 0 else str(ended))
