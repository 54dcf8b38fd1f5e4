"""Errors and help texts of commands."""

import errno
import itertools
import os
import re
import subprocess
import sys

import keras
import ml_collections
import numpy as np
import pytest
from absl import logging

from tests.conftest import ROOT
from tf_sparse_attention import remote_files
from tf_sparse_attention.data.array_store import DamagedDataError
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import command_line, training
from tf_sparse_attention.trainers.shared.callbacks import NonfiniteError

PROGRAMS = ("train", "evaluate", "generate", "export", "import_model", "vocabulary")


def run_at_once(commands):
    """Run commands at once. Return per command: exit status, output, errors, and the backends that were imported."""
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes, found = [], []
    for name, *flags, variables in commands:
        command = [sys.executable, "-X", "importtime", "-m", f"tf_sparse_attention.trainers.{name}", *flags]
        processes.append(subprocess.Popen(command, env={**os.environ, "COLUMNS": "100", **variables}, **options))
    for process in processes:
        output, errors = process.communicate()
        backends = set(re.findall(r"\| (keras|tensorflow|jax)$", errors, re.MULTILINE))
        errors = "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("import time:"))
        found.append((process.returncode, output, errors, backends))
    return found


def test_a_wrong_command_gets_one_line_and_status_2_before_any_backend_is_imported(subtests, tmp_path):
    run = f"--workdir={tmp_path}/run"
    cases = [
        (["train", "--config=demo:tiny", "--config.train.num_step=3", run], r'.*num_step.*Did you mean "num_steps"'),
        (["train", "--config=bokks:tiny", run], r"`--config`.*books, .*\. Received: --config=bokks:tiny\."),
        (["train", "--config=books:tinny", run], r"flag --config=\S+:tinny: `variant`.*\. Received: variant='tinny'\."),
        (["evaluate", "--workdr=runs/demo"], "Unknown command line flag 'workdr'. Did you mean: workdir"),
        (["evaluate", "runs/demo"], ".*--workdir"),
        (["evaluate", "--config.optimizer.name=1", run], "Unknown command line flag 'config.optimizer.name'"),
        (["evaluate", "--config.data.batch_size=many", run], "flag --config.data.batch_size=many: "),
        (["evaluate", run, "test"], r"All arguments must be flags\. Received: test\."),
    ]
    *found, unknown = run_at_once(
        [*([*command, {}] for command, _ in cases), ["evaluate", "--workdir=runs/demo", {"KERAS_BACKEND": "jxa"}]]
    )
    message = "error: The environment variable `KERAS_BACKEND` must be tensorflow or jax. Received: jxa."
    assert unknown[0] == 2 and unknown[2].startswith(message)
    for (command, message), (status, _, errors, backends) in zip(cases, found, strict=True):
        with subtests.test(" ".join(command[:-1])):
            assert (status, backends) == (2, set())
            assert re.match(f"error: {message}", errors) and "Traceback" not in errors, errors


def test_a_missing_text_is_an_error_of_one_line(make_tiny_config, tmp_path, capsys):
    config = make_tiny_config()
    config.data.path = "missing_folder"
    assert exit_of(lambda argv: training.train(config, tmp_path / "run"), command_line.USER_ERRORS) == 2
    assert re.fullmatch(r"error: `path`.*missing_folder.*\n\(--verb.*\)\n", capsys.readouterr().err)


def test_an_error_inside_a_training_is_a_fault_with_its_traceback(make_plain_config, tmp_path, monkeypatch):
    for error in (ValueError("shapes (2, 3) and (4,)"), FileNotFoundError(errno.ENOENT, "none")):

        def fail(self, *arguments, error=error):
            raise error

        monkeypatch.setattr(training.Run, "fit", fail)
        with pytest.raises(type(error)) as raised:
            command_line._exit_on_error(
                lambda argv: training.train(make_plain_config(), tmp_path), [], command_line.USER_ERRORS
            )
        assert raised.value is error and raised.traceback[-1].name == "fail"
        assert error.is_fault


def test_errors_that_users_can_fix_are_no_faults():
    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        remote_files.RemoteError("gs://bucket cannot be reached"),
        DamagedDataError("folder", "a store that is damaged"),
        NonfiniteError("a loss of nan"),
    ):
        with pytest.raises(type(error)), command_line.mark_faults():
            raise error
        assert not hasattr(error, "is_fault")


def exit_of(function, errors, argument=()):
    """Return the exit status of a function whose errors end the process."""
    with pytest.raises(SystemExit) as raised:
        command_line._exit_on_error(function, argument, errors)
    return raised.value.code


def test_a_setting_that_does_not_exist_is_named(capsys):
    def look_up(argv):
        name, is_wrapped = argv
        try:
            return ml_collections.ConfigDict({"window": 1})[name]
        except KeyError as error:
            # ml_collections wraps the error for the last part of a name.
            raise AttributeError(error) if is_wrapped else error from None

    for name, is_wrapped in itertools.product(["unheard_of", "windw"], [False, True]):
        assert exit_of(look_up, (KeyError, AttributeError), (name, is_wrapped)) == 2
        line = capsys.readouterr().err.splitlines()[0]
        assert line.startswith(f"error: {name} is not a setting. trainers/configs/base.py describes all settings")
        assert line.endswith(' Did you mean "window" instead of "windw"?') == (name == "windw")


class Refusing(keras.layers.Layer):
    def call(self, inputs):
        raise ValueError("`inputs` must be short.")


def test_an_error_is_one_line_with_advice_and_its_exit_status(capsys):
    def write(number):
        raise OSError(number, os.strerror(number), "runs/model.keras")

    def diverge(argv):
        raise NonfiniteError("a loss of nan")

    assert exit_of(Refusing(), (ValueError,), np.zeros((2, 3))) == 2
    assert capsys.readouterr().err == "error: `inputs` must be short.\n(--verbosity=1 shows where)\n"
    for number, advice in ((errno.ENOSPC, "make room on this"), (errno.EROFS, "choose a folder with")):
        assert exit_of(write, (OSError,), number) == 2
        line = rf"error: .*: 'runs/model.keras': {advice} .*, and run .*\n.*\n"
        assert re.fullmatch(line, capsys.readouterr().err)
    assert exit_of(diverge, (ValueError,)) == NonfiniteError.exit_status == 4


def test_verbosity_shows_the_traceback():
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    try:
        with pytest.raises(KeyError):
            command_line._exit_on_error({}.__getitem__, "windw", (KeyError,))
    finally:
        logging.set_verbosity(before)


def test_help_has_the_flags_and_three_examples_with_existing_flags_and_needs_no_backend(subtests):
    config = base.get_config().to_dict()
    settings = {
        f"config.{section}.{name}"
        for section in config
        if isinstance(config[section], dict)
        for name in config[section]
    }
    *found, full = run_at_once(
        [*([name, "--help", {}] for name in PROGRAMS), ["train", "--helpfull", "--config=demo:tiny", {}]]
    )
    assert (full[0], full[3]) == (0, set()) and "--workdir:" in full[1]
    for name, (status, text, _, backends) in zip(PROGRAMS, found, strict=True):
        with subtests.test(name):
            assert (status, backends) == (0, set())
            program = f"tsa-{name.removesuffix('_model')}"
            assert len(re.findall(rf"^  (?:KERAS_BACKEND=\w+ )?{program} ", text, re.MULTILINE)) == 3
            flags = set(re.findall(r"^  --(?:\[no\])?([\w.]+):", text, re.MULTILINE))
            examples = text.partition("Examples:")[2].partition("\n\n")[0]
            assert set(re.findall(r"--(?:no)?([\w.]+)", examples)) <= flags | settings


def test_a_configuration_is_found_by_its_name_in_any_folder_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    configs = ROOT / "tf_sparse_attention" / "trainers" / "configs"
    for given, found in [
        ("demo", f"{configs}/demo.py"),
        ("demo:local", f"{configs}/demo.py:local"),
        ("trainers/configs/books.py", f"{configs}/books.py"),
        ("mine.py", "mine.py"),
    ]:
        flags = [f"--config={found}", "--workdir=demo"]
        assert command_line.with_config_files([f"--config={given}", "--workdir=demo"]) == flags
        assert command_line.with_config_files(["-config", given]) == flags[:1]
    assert command_line.find_config("elsewhere/demo.py") == "elsewhere/demo.py"
    with pytest.raises(ValueError, match=r"`--config` must be a file.*Received: --config=nothing\."):
        command_line.with_config_files(["--config=nothing"])
    (tmp_path / "demo").touch()
    assert command_line.find_config("demo") == "demo"
