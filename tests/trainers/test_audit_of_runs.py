"""Audits of trained models."""

import re
import subprocess
import sys

import keras
import pytest

from tests.conftest import ROOT
from tf_sparse_attention import audit
from tf_sparse_attention.analysis import causality_report
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.trainers.shared import command_line


@pytest.mark.parametrize("causal", [False, True])
def test_an_audit_is_written_in_lines(causal):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, LocalAttention(1, 4, window=3)(inputs, use_causal_mask=causal))
    positions, *said = causality_report(model, 9, num_cuts=2).to_text().splitlines()
    assert re.fullmatch(r"9 positions, cuts at 1, \d", positions)
    assert re.fullmatch(r"largest gradient from later inputs: \S+ \(0 passes\)", said[0])
    assert (" 0 (0 passes)" in said[0]) is causal
    assert said[2:] == ["causal"] if causal else said[2].startswith("leak: the output at position")
    assert said[-1] == ("causal" if causal else "NOT CAUSAL")


@pytest.mark.full
def test_the_model_of_a_run_is_audited(untrained):
    command = [sys.executable, "-m", "tf_sparse_attention.audit", str(untrained), "--length=9"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("\ncausal\n")


def test_the_audit_has_exit_statuses_of_the_trainers():
    assert (audit.CAUSAL, audit.FAILED, audit.NOT_CAUSAL) == (0, command_line.WRONG_COMMAND, command_line.NOT_CAUSAL)
    assert audit.NOT_CAUSAL in command_line.EXIT_STATUSES
