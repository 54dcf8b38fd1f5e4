"""Run directories: files, intact and damaged, their lock, and what a resumed run may change."""

import errno
import fcntl
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.trainers.task_runs import load_tokenizer
from tf_sparse_attention.data import ByteTokenizer, SubwordTokenizer
from tf_sparse_attention.trainers.configs import base, demo
from tf_sparse_attention.trainers.shared import training, workdir
from tf_sparse_attention.trainers.shared.components import describe

VOCABULARY = ["<pad>_", "<EOS>_", "ab_", *"\\_u;0123456789abc"]
BYTES, SUBWORDS = ({"tokenizer": describe(made)} for made in (ByteTokenizer(), SubwordTokenizer(VOCABULARY)))


def is_refused(reason):
    """Expect an error about the run directory that gives this reason."""
    return pytest.raises(ValueError, match=rf"(?s)`workdir`.*{reason}")


def test_what_is_not_a_run_directory_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with is_refused("not a file.*file"):
        workdir.open_workdir(tmp_path / "file", create=True)
    with is_refused("model.keras or a checkpoint"):
        workdir.load_model(tmp_path)
    with is_refused("config.json"):
        workdir.load_config(tmp_path)
    with is_refused("existing folder"):
        workdir.load_model(tmp_path / "absent")
    with is_refused("gs://bucket/run"):
        workdir.load_config("gs://bucket/run")


def test_a_broken_file_is_named_with_what_is_wrong(subtests, tmp_path):
    workdir.save_config(tmp_path, base.get_config())
    assert workdir.load_config(tmp_path).seed == 0
    (tmp_path / "checksums.json").unlink()
    config = [("{", "Expecting"), ("[1]", "a list"), ('{"seed": 0}', "no section"), ("", "Exp")]
    source = [(content, "") for content in ('{"name": "books"}', "[]", "{", "\xff")]
    state = [
        ('{"tokenizer": {"class": "SubwordTokenizer"}}', "no 'config'"),
        ('{"tokenizer": {"class": "Evil", "config": {}}}', None),
    ]
    for name, load, cases in [
        ("task.json", load_tokenizer, state),
        ("config.json", workdir.load_config, config),
        ("source.json", workdir.load_source, source),
    ]:
        for content, found in cases:
            (tmp_path / name).write_bytes(content.encode("latin-1"))
            expected = "`class`.*Received: class='Evil'" if found is None else f"`workdir`.*{name}, with {found}"
            with subtests.test(f"{name}: {content}"), pytest.raises(ValueError, match=expected):
                load(tmp_path)


def test_an_edited_file_is_named_and_a_replaced_one_is_read(tmp_path):
    config = base.get_config()
    for config.seed in (1, 2):  # a later start may have other settings
        workdir.save_config(tmp_path, config)
        assert workdir.load_config(tmp_path).seed == config.seed
    workdir.save_state(tmp_path, SUBWORDS)
    assert load_tokenizer(tmp_path).vocabulary_size > 0
    for name, old, new, read in [
        ("task.json", "ab_", "ba_", load_tokenizer),
        ("task.json", "ba_", "bb_", lambda folder: workdir.check_state(folder, BYTES)),
        ("config.json", '"seed": 2', '"seed": 3', workdir.load_config),
    ]:
        path = tmp_path / name
        path.write_text(path.read_text().replace(old, new))
        with is_refused(f"{name}.*, with content other than"):
            read(tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert load_tokenizer(tmp_path).vocabulary_size > 0


def test_a_replaced_file_never_has_the_checksum_of_other_content(tmp_path, monkeypatch):
    write, left = workdir.write_json, []
    workdir.save_json(tmp_path, "labels.json", {"a": 1})

    def look(path, content):
        write(path, content)
        left.append(workdir.read_json(tmp_path, "labels.json"))

    monkeypatch.setattr(workdir, "write_json", look)
    workdir.save_json(tmp_path, "labels.json", {"a": 2})
    assert left == [{"a": 1}, {"a": 2}, {"a": 2}]


def test_a_truncated_model_and_one_with_a_changed_byte_are_named(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"units", b"Units", 1))
    with is_refused("readable model file.* a damaged config.json"):
        workdir.load_model(tmp_path)
    path.write_bytes(content[:16])
    with is_refused("complete file .*model.keras, which has 16 bytes"):
        workdir.load_model(tmp_path)


def test_a_run_resumes_with_its_tokenizer_even_if_the_file_is_missing(tmp_path):
    workdir.save_state(tmp_path, BYTES)
    (tmp_path / "task.json").unlink()
    workdir.check_state(tmp_path, BYTES)
    with pytest.raises(ValueError, match=r"`config\.data` must match the tokenizer"):
        workdir.check_state(tmp_path, SUBWORDS)


def test_a_state_that_is_no_plain_data_is_an_error(tmp_path):
    for state in (["a"], {"labels": np.zeros(2)}, {1: "a"}):
        with pytest.raises(ValueError, match=r"`Task\.get_state`"):
            workdir.save_state(tmp_path, state)


def test_a_killed_process_leaves_no_lock(tmp_path):
    # Without the package, which takes seconds to import.
    program = f"import fcntl, os; f = open({str(tmp_path / workdir.LOCK)!r}, 'a+'); fcntl.flock(f, fcntl.LOCK_EX); "
    subprocess.run([sys.executable, "-c", program + "os.kill(os.getpid(), 9)"], check=False)
    with workdir.hold_lock(tmp_path):
        pass


def test_a_file_system_without_locks_logs_a_warning(tmp_path, monkeypatch, caplog):
    def flock(file, how):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with workdir.hold_lock(tmp_path):
        pass
    assert "cannot be locked ([Errno 95] Operation not supported)" in caplog.text


def description_of(fingerprint="text", **changes):
    config = demo.get_config("tiny")
    config.update(changes)
    return training.describe(config, fingerprint)


def attention(**changes):
    """Return the parts of the attention, with changes of the second, as lists or tuples."""
    first, second = demo.get_config("tiny").model.attention
    return [dict(first), {**second, **changes}]


def test_settings_that_do_not_affect_the_model_can_change():
    changed = description_of(
        train={"num_steps": 99, "log_every": 1, "jit_compile": False, "num_logical_cpus": 2},
        generate={"length": 5},
        data={"data_dir": "/elsewhere", "path": "/moved"},
    )
    training.check_compatible(description_of(), changed)
    with_tuple = demo.get_config("tiny")
    with with_tuple.unlocked(), with_tuple.ignore_type():
        with_tuple.model.attention = tuple(attention())
    training.check_compatible(description_of(), training.describe(with_tuple, "text"))


def test_another_model_optimizer_batch_or_text_is_an_error_that_names_it(subtests):
    for name, changed, message in [
        ("model.dropout", description_of(model={"dropout": 0.5}), "0.5, in the checkpoint 0.1"),
        ("optimizer.name", description_of(optimizer={"name": "adam"}), "'adam'"),
        ("data.batch_size", description_of(data={"batch_size": 3}), "3, in the checkpoint 2"),
        ("train.dtype", description_of(train={"dtype": "bfloat16"}), "'bfloat16'"),
        (r"model.attention\[1\].num_clusters", description_of(model={"attention": attention(num_clusters=5)}), "5"),
        ("seed", description_of(seed=7), "7, in the checkpoint 0"),
        ("data", description_of("new"), "new, in the checkpoint text"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`config.{name}`.*Received: {message}"):
            training.check_compatible(description_of(), changed)
