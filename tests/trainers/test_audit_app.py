"""The audit as a program."""

import re
import subprocess
import sys

import keras
import pytest

from tests.conftest import ROOT
from tf_sparse_attention.analysis import causality_report
from tf_sparse_attention.layers import LocalAttention


@pytest.mark.parametrize("causal", [False, True])
def test_an_audit_is_told_in_lines(causal):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, LocalAttention(1, 4, window=3)(inputs, use_causal_mask=causal))
    positions, *said = causality_report(model, 9, num_cuts=2).to_text().splitlines()
    assert re.fullmatch(r"9 positions, later ones from 1, \d on", positions)
    assert re.fullmatch(r"largest gradient by a later input: \S+ \(0 passes\)", said[0])
    assert (" 0 (0 passes)" in said[0]) is causal
    assert said[2:] == ["causal"] if causal else said[2].startswith("looks ahead: the output at position")
    assert said[-1] == ("causal" if causal else "NOT CAUSAL")


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
def test_a_model_in_a_file_is_audited(causal, tmp_path):
    inputs = keras.Input((None, 4))
    keras.Model(inputs, LocalAttention(1, 4, window=3)(inputs, use_causal_mask=causal)).save(tmp_path / "model.keras")
    command = [sys.executable, "-m", "trainers.audit", f"--model={tmp_path}/model.keras", "--sequence_length=9"]
    process = subprocess.run([*command, "--hidden_dim=4"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == (0 if causal else 3), process.stderr
    assert ("looks ahead: the output at position" in process.stdout) is not causal
    assert process.stdout.endswith("\ncausal\n" if causal else "\nNOT CAUSAL\n")
    assert "oneDNN" not in process.stderr  # nor anything else of what TensorFlow says where nothing is wrong
