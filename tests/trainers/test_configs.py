"""Configurations: headers, settings, models, and settings that a task ignores."""

import functools
import importlib
import math
from pathlib import Path

import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components
from tf_sparse_attention.trainers.shared.components import describe
from tf_sparse_attention.trainers.shared.evaluation import with_overrides
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import COMMON, check_read

FOLDER = Path(base.__file__).parent
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base"})


def module_of(name):
    return importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}")


def variants_of(name):
    if name == "pg19":  # accepts the name of any preset
        return ["pg19_local_cluster8k", "pg19_local8k", "pg19_routing_published"]
    return list(module_of(name).VARIANTS)


ALL = [(name, variant) for name in NAMES for variant in variants_of(name)]
# Variants of some millions of weights.
SMALL = [("demo", "mixed"), ("demo", "local"), ("all_attention_enwik8", "tiny"), ("answer", "small")]
SMALL += [("sparse_transformer_enwik8", "tiny"), ("sparse_transformer_enwik8", "tiny_strided")]
SMALL += [("translate_documents", "mixed"), *(("audio", variant) for variant in module_of("audio").SMALL)]
SMALL += [case for case in ALL if case[0] in ("books", "clustered_text", "classify", "images")]
SMALL += [("speech", kind) for kind in module_of("speech").KINDS]
# State of the training split of the speech with 59 phones.
PHONES = {"labels": [str(label) for label in range(59)], "unit": "phone", "mean": [0.0] * 40, "std": [1.0] * 40}


def load(name, *variant):
    return module_of(name).get_config(*variant)


def make_model(config):
    """Return the model of bytes of a configuration, whose data are not opened."""
    state = {
        "image": lambda data: {"codec": codec_of(data).get_config()},
        "audio": lambda data: {"codec": tsa.data.AudioCodec(data.sample_rate or 8000).get_config()},
        "classify": lambda data: {"tokenizer": describe(tsa.data.ByteTokenizer()), "labels": [*map(str, range(20))]},
        "speech": lambda data: PHONES,
    }.get(config.task)
    if config.task in ("translate", "answer"):
        config.data.update(source_field="en", target_field="fr", tokenizer="bytes", vocabulary=None)
        return registry.make_task(config).make_model()
    if state is None:
        return components.make_model(config, vocabulary_size=258)
    if config.task in ("image", "audio"):
        config.data.path = "data.npz"
    return registry.find_task_class(config.task)(config, state(config.data)).make_model()


def codec_of(data):
    return tsa.data.ImageCodec(*data.image_shape, data.image_order, tuple(data.image_block) or None)


@functools.cache
def num_weights(name, variant):
    return make_model(load(name, variant)).count_params()


def test_every_variant_has_the_settings_of_the_base_that_its_task_reads_and_an_optimizer(subtests):
    defaults = base.get_config()
    for name, variant in ALL:
        with subtests.test(f"{name}:{variant}"):
            config = load(name, variant)
            assert set(config) == set(defaults)
            for section in defaults:
                if hasattr(defaults[section], "keys"):
                    assert set(config[section]) == set(defaults[section]), section
            check_read(config, config.task, registry.find_task_class(config.task).settings)
            if variant == variants_of(name)[0]:
                assert components.make_optimizer(config, hidden_dim=8).name


@pytest.mark.parametrize(("name", "variant"), first(SMALL, 2))
def test_a_small_model_can_be_built(name, variant):
    assert 100_000 < num_weights(name, variant) < 5_000_000


COMPARED = [("demo", ["mixed", "local"]), ("audio", module_of("audio").SMALL), ("images", variants_of("images"))]
COMPARED += [("books", ["mixed", "local"]), ("translate_documents", ["mixed", "local"])]


@pytest.mark.parametrize(("name", "variants"), first(COMPARED, 1))
def test_variants_of_a_comparison_differ_only_in_their_heads_and_are_as_many_weights(name, variants):
    counts = [num_weights(name, variant) for variant in variants]
    assert max(counts) / min(counts) < 1.01
    configs = [load(name, variant) for variant in variants]
    for section in ("data", "optimizer", "train", "generate"):
        assert len({str(config[section]) for config in configs}) == 1
    assert len({sum(part["num_heads"] for part in config.model.attention) for config in configs}) == 1
    if "local" in variants:
        assert {part["layer"] for part in load(name, "local").model.attention} == {"LocalAttention"}


@pytest.mark.full
def test_all_kinds_of_attention_to_speech_are_as_many_weights_and_differ_in_nothing_else():
    models = [make_model(load("speech", kind)) for kind in module_of("speech").KINDS]
    counts = [sum(math.prod(weight.shape) for weight in model.trainable_weights) for model in models]
    assert max(counts) / min(counts) < 1.01  # without untrained weights: hash directions and centroids
    plain = [load("speech", kind).to_dict() for kind in module_of("speech").KINDS]
    for config in plain:
        del config["model"]["attention"], config["model"]["intermediate_dim"]
    assert all(config == plain[0] for config in plain)


def test_two_configurations_do_not_share_their_parts():
    one, other = load("demo"), load("demo")
    one.model.attention[0]["num_heads"] = 99
    assert other.model.attention[0]["num_heads"] != 99
    assert load("demo").model.attention[0]["num_heads"] != 99


def test_a_task_names_settings_that_exist_and_each_is_read_by_some_task():
    defaults, read = base.get_config().to_dict(), {section: set(names) for section, names in COMMON.items()}
    for task in registry.NAMES:
        for section, names in registry.find_task_class(task).settings.items():
            assert set(names) <= set(defaults[section]) - set(COMMON.get(section, ())), (task, section)
            read[section] = read.get(section, set()) | set(names)
    for section in ("data", "model", "train", "generate"):
        assert read[section] == set(defaults[section])


IGNORED = [
    ("language_model", "data", "use_flips", True, "False"),
    ("masked", "model", "memory_length", 8, "0"),
    ("answer", "train", "evaluation_windows", 0, "64"),
    ("audio", "data", "image_shape", (8, 8, 3), r"\(\)"),
    ("speech", "model", "memory_length", 8, "0"),
]


def test_a_setting_that_a_task_ignores_is_an_error_with_its_default(subtests):
    for task, section, name, value, default in IGNORED:
        config = base.get_config()
        config.task, config[section][name] = task, value
        message = rf"`config\.{section}\.{name}`.* task={task}, .*Received: {name}=.*The default is {default};"
        with subtests.test(f"{task} {name}"), pytest.raises(ValueError, match=message):
            registry.make_task(config)


def test_an_evaluation_rejects_settings_that_its_task_ignores():
    config, wanted = base.get_config(), base.overridable_settings()
    wanted.data.mask_rate = 0.0  # the default
    wanted.train.num_beams = 4
    with pytest.raises(ValueError, match=r"`config\.train\.num_beams` must be unset for task=language_model, which"):
        with_overrides(config, wanted)
    config.task = "speech"
    assert with_overrides(config, wanted).train.num_beams == 4
