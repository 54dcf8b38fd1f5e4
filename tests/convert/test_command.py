"""The command converts, or says what is wrong and leaves what was there."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.conftest import ROOT
from tf_sparse_attention.trainers.convert import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


def test_a_checkpoint_becomes_a_keras_file(pg19_like, tmp_path, capsys):
    path = tmp_path / "models" / "pg19.keras"
    assert main(["t2t", str(pg19_like.prefix), "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "use the published selection" in printed
    assert "Read: optimizer slots, 84 in total" in printed
    model = keras.models.load_model(path)
    np.testing.assert_allclose(model(pg19_like.inputs), pg19_like.arrays["logits"], atol=2e-5)
    assert int(model.optimizer.iterations) == 300
    assert [file.name for file in path.parent.iterdir()] == ["pg19.keras"]


def test_a_dry_run_prints_the_mapping_and_writes_nothing(small_checkpoint, tmp_path, capsys):
    prefix = small_checkpoint.write(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["t2t", str(prefix), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["weight", "shape", "computed", "from", "change"]
    folded = next(line for line in lines if line.startswith("backbone/block_2/attention/routing_0/attention_output"))
    assert folded.endswith("rows 0 to 3, the shared matrix folded in")
    assert "output_transform/kernel and sparse_transformer/body/" in folded
    assert lines[-1] == "not weights: 1 step counter"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.full
def test_routed_heads_can_be_made_causal_at_once(small_checkpoint, references, tmp_path, capsys):
    path = tmp_path / "causal.keras"
    assert main(["t2t", str(small_checkpoint.write(tmp_path)), "--output", str(path), "--causal"]) == 0
    assert "Routed heads are causal" in capsys.readouterr().out
    part = keras.models.load_model(path).backbone.blocks[2].attention.parts[0]
    assert (part.selection, part.mask_self) == ("nearest", False)
    folder = references / "t2t_checkpoints" / "pg19_local_like"
    assert main(["t2t", str(folder), "--output", str(tmp_path / "a.keras"), "--causal"]) == 2
    assert "without routed heads" in capsys.readouterr().err


def test_an_error_is_a_message_and_leaves_the_file_that_was_there(small_checkpoint, tmp_path, capsys, subtests):
    prefix, path = small_checkpoint.write(tmp_path), tmp_path / "model.keras"
    path.write_text("precious", encoding="utf-8")
    for arguments, message in [
        ([], "`--output` must be a file NAME.keras"),
        (["--output", "model.h5"], "`--output` must be a file NAME.keras"),
        (["--hparams", "nowhere.json", "--dry-run"], "`hparams` must be a file"),
    ]:
        with subtests.test(arguments=arguments):
            assert main(["t2t", str(prefix), *arguments]) == 2
            assert message in capsys.readouterr().err
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:100])
    assert main(["t2t", str(prefix), "--output", str(path)]) == 2
    assert "complete TensorFlow checkpoint" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "precious"


def test_wrong_commands_need_no_backend():
    arguments = ["tf_sparse_attention.trainers.convert", "t2t", "FILE", "--dry-run", "--no"]
    command = [sys.executable, "-X", "importtime", "-m", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2 and "tsa-convert" in process.stderr
    assert not re.search(r"\| (keras|tensorflow)$", process.stderr, re.MULTILINE)
