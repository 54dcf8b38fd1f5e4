"""A run is resumed only with the model, the optimizer and the text of its checkpoint."""

import pytest

from tf_sparse_attention.trainers.configs import base, demo
from tf_sparse_attention.trainers.shared import resume


def describe(fingerprint="text", **changes):
    config = demo.get_config("tiny")
    for path, value in changes.items():
        section, name = path.split("__")
        config[section][name] = value
    return resume.describe(config, fingerprint)


def test_the_same_configuration_is_accepted():
    resume.check_compatible(describe(), describe())


@pytest.mark.parametrize(
    "change",
    [
        {"train__num_steps": 99},
        {"train__log_every": 1},
        {"train__jit_compile": False},
        {"train__num_logical_cpus": 2},
        {"generate__length": 5},
        {"data__data_dir": "/elsewhere"},
        {"data__path": "/moved"},
    ],
)
def test_settings_that_do_not_affect_the_model_can_change(change):
    resume.check_compatible(describe(), describe(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__dropout": 0.5}, r"`config.model.dropout` .* Received: 0.5, in the checkpoint 0.1"),
        ({"optimizer__name": "adam"}, r"`config.optimizer.name` .* Received: 'adam'"),
        ({"data__batch_size": 3}, r"`config.data.batch_size` .* Received: 3, in the checkpoint 2"),
        ({"train__dtype": "bfloat16"}, r"`config.train.dtype` .* Received: 'bfloat16'"),
    ],
)
def test_another_model_optimizer_or_batch_is_an_error_that_names_it(change, message):
    with pytest.raises(ValueError, match=message):
        resume.check_compatible(describe(), describe(**change))


def test_a_difference_inside_a_part_of_the_attention_is_named():
    other = demo.get_config("tiny")
    other.model.attention[1]["num_clusters"] = 5
    with pytest.raises(ValueError, match=r"`config.model.attention\[1\].num_clusters` .* Received: 5"):
        resume.check_compatible(describe(), resume.describe(other, "text"))


def test_another_seed_is_an_error():
    other = demo.get_config("tiny")
    other.seed = 7
    with pytest.raises(ValueError, match=r"`config.seed` .* Received: 7, in the checkpoint 0"):
        resume.check_compatible(describe(), resume.describe(other, "text"))


def test_another_text_is_an_error_even_under_the_same_name():
    with pytest.raises(
        ValueError, match=r"`config.data` must match the training data .* Received: new, in the checkpoint old"
    ):
        resume.check_compatible(describe("old"), describe("new"))


def test_tuples_and_lists_are_equal():
    config = base.get_config()
    with config.unlocked(), config.ignore_type():
        config.model.attention = ({"layer": "LocalAttention"},)
    other = base.get_config()
    other.model.attention = [{"layer": "LocalAttention"}]
    resume.check_compatible(resume.describe(config, ""), resume.describe(other, ""))
