"""Errors and help texts of commands."""

import errno
import os
import re
import subprocess
import sys
import tomllib

import keras
import ml_collections
import numpy as np
import pytest
from absl import logging

from tests.conftest import ROOT
from tf_sparse_attention import remote_files
from tf_sparse_attention.data.stores.array_store import DamagedDataError
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import command_line, training
from tf_sparse_attention.trainers.shared.nonfinite import NonfiniteError


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.train.num_step=3"], 'error: .*num_step.*Did you mean "num_steps"'),
        pytest.param(
            ["--config.data.path=missing_folder"],
            "error: `path` must be an existing folder or file.*missing_folder",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_wrong_flag_gets_one_line_and_status_2(tmp_path, flags, message):
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.train", "--config=demo:tiny", *flags]
    process = subprocess.run([*command, f"--workdir={tmp_path}/run"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert re.search(message, process.stderr, re.DOTALL), process.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workdr=runs/demo"], "error: Unknown command line flag 'workdr'. Did you mean: workdir"),
        (["runs/demo"], "error: .*--workdir"),
        (["--workdir=runs/demo", "test"], "error: All arguments must be flags. Received: test."),
    ],
)
def test_a_wrong_command_gets_status_2_before_any_backend_is_imported(flags, message):
    command = [sys.executable, "-X", "importtime", "-m", "tf_sparse_attention.trainers.evaluate", *flags]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2 and not re.search(r"Traceback|\| (keras|tensorflow)$", process.stderr, re.MULTILINE)
    assert re.search(message, process.stderr), process.stderr


def test_an_unknown_backend_is_named():
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.evaluate", "--workdir=runs/demo"]
    variables = {**os.environ, "KERAS_BACKEND": "jxa"}
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert process.returncode == 2
    message = "error: The environment variable `KERAS_BACKEND` must be tensorflow or jax. Received: jxa."
    assert process.stderr.startswith(message)


def test_a_missing_text_is_an_error_of_one_line(make_tiny_config, tmp_path, capsys):
    config = make_tiny_config()
    config.data.path = "missing_folder"
    with pytest.raises(SystemExit, match="2"):
        command_line._exit_on_error(lambda argv: training.train(config, tmp_path / "run"), [], command_line.USER_ERRORS)
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: `path` must be an existing folder or file.*missing_folder.*\n\(--verb.*\)\n", said)


@pytest.mark.parametrize("error", [ValueError("shapes (2, 3) and (4,)"), FileNotFoundError(errno.ENOENT, "none")])
def test_an_error_inside_a_training_is_a_fault_with_its_traceback(error, make_plain_config, tmp_path, monkeypatch):
    def fail(self, *arguments):
        raise error

    monkeypatch.setattr(training.Run, "fit", fail)
    with pytest.raises(type(error)) as raised:
        command_line._exit_on_error(
            lambda argv: training.train(make_plain_config(), tmp_path), [], command_line.USER_ERRORS
        )
    assert raised.value is error and raised.traceback[-1].name == "fail"
    assert command_line.exit_status(error) == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        remote_files.RemoteError("gs://bucket cannot be reached"),
        DamagedDataError("a store is damaged"),
        NonfiniteError("a loss of nan"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_users_can_fix_are_no_faults(error):
    with pytest.raises(type(error)), command_line.mark_faults():
        raise error
    assert command_line.exit_status(error) in (2, 4)


@pytest.mark.parametrize("name", ["unheard_of", "windw"])
@pytest.mark.parametrize("is_wrapped", [False, True])  # as ml_collections does it for the last part of a name
def test_a_setting_that_does_not_exist_is_named(name, is_wrapped, capsys):
    def look_up(argv):
        try:
            return ml_collections.ConfigDict({"window": 1})[name]
        except KeyError as error:
            raise AttributeError(error) if is_wrapped else error from None

    with pytest.raises(SystemExit, match="2"):
        command_line._exit_on_error(look_up, [], (KeyError, AttributeError))
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(f"error: {name} is not a setting. trainers/configs/base.py describes all settings")
    assert said.endswith(' Did you mean "window" instead of "windw"?') == (name == "windw")


class Refusing(keras.layers.Layer):
    def call(self, inputs):
        raise ValueError("`inputs` must be short.")


def test_the_error_of_a_layer_is_one_line(capsys):
    layer = Refusing()
    with pytest.raises(SystemExit, match="2"):
        command_line._exit_on_error(layer, np.zeros((2, 3)), (ValueError,))
    assert capsys.readouterr().err == "error: `inputs` must be short.\n(--verbosity=1 shows where)\n"


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "make room on this"), (errno.EROFS, "choose a folder with")]
)
def test_a_disk_error_has_advice_in_one_line(number, advice, capsys):
    def write(argv):
        raise OSError(number, os.strerror(number), "runs/model.keras")

    with pytest.raises(SystemExit, match="2"):
        command_line._exit_on_error(write, [], (OSError,))
    assert re.fullmatch(rf"error: .*: 'runs/model.keras': {advice} .*, and run .*\n.*\n", capsys.readouterr().err)


def test_an_error_can_have_a_separate_exit_status():
    def train(argv):
        raise NonfiniteError("a loss of nan")

    with pytest.raises(SystemExit, match="4"):
        command_line._exit_on_error(train, [], (ValueError,))
    assert NonfiniteError.exit_status in command_line.EXIT_STATUSES


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("bokks:tiny", r"`--config` must be a file, or one of .*books, .*\. Received: --config=bokks:tiny\."),
        ("books:tinny", r"flag --config=\S+:tinny: `variant` must be one of .*\. Received: variant=tinny\."),
    ],
)
def test_a_wrong_configuration_or_variant_gets_one_line_before_any_backend_is_imported(config, message):
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.train", "--workdir=runs/none", "--config", config]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2
    assert re.fullmatch(rf"error: {message}\n\(--verbosity=1 shows where\)\n", process.stderr), process.stderr


def test_verbosity_shows_the_traceback():
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    try:
        with pytest.raises(KeyError):
            command_line._exit_on_error({}.__getitem__, "windw", (KeyError,))
    finally:
        logging.set_verbosity(before)


PROGRAMS = ("train", "evaluate", "generate", "export", "import", "vocabulary")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def module_of(name):
    """Return the module of a command."""
    return SCRIPTS[f"tsa-{name}"].partition(":")[0]


def test_help_has_the_flags_and_three_examples_with_existing_flags():
    environment = {**os.environ, "COLUMNS": "100"}
    commands = ([sys.executable, "-m", module_of(name), "--help"] for name in PROGRAMS)
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **options) for command in commands]  # at once: most of it is waiting
    config = base.get_config().to_dict()
    settings = {
        f"config.{section}.{name}"
        for section in config
        if isinstance(config[section], dict)
        for name in config[section]
    }
    for name, process in zip(PROGRAMS, processes, strict=True):
        said = process.communicate()[0]
        assert (
            process.returncode == 0
            and len(re.findall(rf"^  (?:KERAS_BACKEND=\w+ )?tsa-{name} ", said, re.MULTILINE)) == 3
        ), name
        flags = set(re.findall(r"^  --(?:\[no\])?([\w.]+):", said, re.MULTILINE))
        examples = said.partition("Examples:")[2].partition("\n\n")[0]
        assert set(re.findall(r"--(?:no)?([\w.]+)", examples)) <= flags | settings, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_full_help_needs_no_backend_and_is_no_failure(run_python, name):
    code = f"""
import runpy, sys
sys.argv = ["tsa-{name}", "--helpfull", "--config=demo:tiny"]
try:
    runpy.run_module("{module_of(name)}", run_name="__main__", alter_sys=True)
except SystemExit as end:
    print("ended with", end.code, "and", {{"keras", "tensorflow", "jax"}} & set(sys.modules) or "nothing")
"""
    assert run_python(code).endswith("ended with 0 and nothing\n")


def test_every_setting_has_a_comment():
    source = (ROOT / "tf_sparse_attention" / "trainers" / "configs" / "base.py").read_text(encoding="utf-8")
    lines = source.partition("def _data():")[2].splitlines()
    for number, line in enumerate(lines):
        if re.match(r'        "\w+": ', line):
            assert "#" in line or "#" in lines[number - 1] or "#" in lines[number + 2], line


def test_the_docs_have_the_table_of_exit_statuses():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([\d, ]+) \| (.*) \|$", page, re.MULTILINE))
    assert {int(status) for statuses in rows for status in statuses.split(",")} == set(command_line.EXIT_STATUSES)
    for status, text in command_line.EXIT_STATUSES.items():
        assert status > 100 or re.sub(r"(tsa-\w+)", r"`\1`", text) == rows[str(status)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("demo", "CONFIGS/demo.py"),
        ("demo:local", "CONFIGS/demo.py:local"),
        ("trainers/configs/books.py", "CONFIGS/books.py"),
        ("mine.py", "mine.py"),
        ("elsewhere/demo.py", "elsewhere/demo.py"),
        ("nothing", "nothing"),
    ],
)
def test_a_configuration_is_found_by_its_name_in_any_folder(given, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = found.replace("CONFIGS", str(ROOT / "tf_sparse_attention" / "trainers" / "configs"))
    assert command_line.with_config_files([f"--config={given}", "--workdir=demo"]) == [
        f"--config={found}",
        "--workdir=demo",
    ]
    assert command_line.with_config_files(["-config", given]) == [f"--config={found}"]


def test_an_existing_file_takes_precedence_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").touch()
    assert command_line.find_config("demo") == "demo"


def test_every_command_of_the_package_is_a_program():
    for target in SCRIPTS.values():
        module, _, function = target.partition(":")
        assert f"\ndef {function}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert {f"tsa-{name}" for name in PROGRAMS} < set(SCRIPTS)
