"""What a program says of a mistake in its command."""

import re
import subprocess
import sys

import pytest
from absl import logging

from tests.conftest import ROOT
from trainers.shared import console


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ["--config.train.num_step=3"], 'error: .*num_step.*Did you mean "num_steps"', marks=pytest.mark.full
        ),
        (["--config.data.path=missing_folder"], "error: `path` must be an existing folder or file.*missing_folder"),
    ],
)
def test_a_wrong_flag_gets_one_line_and_status_2(tmp_path, flags, message):
    command = [sys.executable, "-m", "trainers.train", "--config=trainers/configs/demo.py:tiny", *flags]
    process = subprocess.run([*command, f"--workdir={tmp_path}/run"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert re.search(message, process.stderr, re.DOTALL), process.stderr


def test_a_setting_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        console._exit_on_error({}.__getitem__, "windw", (KeyError,))
    assert capsys.readouterr().err.startswith("error: windw is not a setting; trainers/configs/base.py has all")


def test_the_traceback_is_shown_to_those_who_ask():
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    try:
        with pytest.raises(KeyError):
            console._exit_on_error({}.__getitem__, "windw", (KeyError,))
    finally:
        logging.set_verbosity(before)
