"""A run is resumed only with the model, the optimizer and the text of its checkpoint."""

import pytest

from tf_sparse_attention.trainers.configs import demo
from tf_sparse_attention.trainers.shared import resume


def describe(fingerprint="text", **changes):
    config = demo.get_config("tiny")
    config.update(changes)
    return resume.describe(config, fingerprint)


def attention(**changes):
    """Return the parts of the attention, with changes of the second, as lists or tuples."""
    first, second = demo.get_config("tiny").model.attention
    return [dict(first), {**second, **changes}]


def test_settings_that_do_not_affect_the_model_can_change():
    changed = describe(
        train={"num_steps": 99, "log_every": 1, "jit_compile": False, "num_logical_cpus": 2},
        generate={"length": 5},
        data={"data_dir": "/elsewhere", "path": "/moved"},
    )
    resume.check_compatible(describe(), changed)
    with_tuple = demo.get_config("tiny")
    with with_tuple.unlocked(), with_tuple.ignore_type():
        with_tuple.model.attention = tuple(attention())
    resume.check_compatible(describe(), resume.describe(with_tuple, "text"))


def test_another_model_optimizer_batch_or_text_is_an_error_that_names_it(subtests):
    for name, changed, message in [
        ("model.dropout", describe(model={"dropout": 0.5}), "0.5, in the checkpoint 0.1"),
        ("optimizer.name", describe(optimizer={"name": "adam"}), "'adam'"),
        ("data.batch_size", describe(data={"batch_size": 3}), "3, in the checkpoint 2"),
        ("train.dtype", describe(train={"dtype": "bfloat16"}), "'bfloat16'"),
        (r"model.attention\[1\].num_clusters", describe(model={"attention": attention(num_clusters=5)}), "5"),
        ("seed", describe(seed=7), "7, in the checkpoint 0"),
        ("data", describe("new"), "new, in the checkpoint text"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`config.{name}`.*Received: {message}"):
            resume.check_compatible(describe(), changed)
