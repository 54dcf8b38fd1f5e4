"""Configurations: headers, settings, models, and settings that a task ignores."""

import functools
import importlib
import math
import re
from pathlib import Path

import pytest

import tf_sparse_attention as tsa
from tests.draws import first, first_of_each
from tf_sparse_attention.trainers.configs import (
    all_attention_enwik8,
    answer,
    audio,
    base,
    books,
    classify,
    clustered_text,
    demo,
    enwik8,
    images,
    images_published,
    sparse_transformer_enwik8,
    speech,
    toys,
    translate_documents,
    wikitext103,
)
from tf_sparse_attention.trainers.shared import components, overrides
from tf_sparse_attention.trainers.shared.evaluation import with_overrides
from tf_sparse_attention.trainers.shared.tokenizers import describe
from tf_sparse_attention.trainers.tasks import image, registry
from tf_sparse_attention.trainers.tasks.classify import Task as ClassifyTask
from tf_sparse_attention.trainers.tasks.settings import COMMON, check_read
from tf_sparse_attention.trainers.tasks.speech import Task as SpeechTask

FOLDER = Path(base.__file__).parent
VARIANTS = {
    "all_attention_enwik8": all_attention_enwik8.VARIANTS,
    "answer": answer.VARIANTS,
    "audio": audio.VARIANTS,
    "books": books.VARIANTS,
    "classify": classify.VARIANTS,
    "clustered_text": clustered_text.VARIANTS,
    "demo": demo.VARIANTS,
    "enwik8": enwik8.SEQUENCE_LENGTHS,
    "images": images.VARIANTS,
    "images_published": images_published.SIZES,
    "pg19": ("pg19_local_cluster8k", "pg19_local8k", "pg19_routing_published"),
    "sparse_transformer_enwik8": sparse_transformer_enwik8.VARIANTS,
    "speech": speech.VARIANTS,
    "toys": toys.DATA,
    "translate_documents": translate_documents.VARIANTS,
    "wikitext103": wikitext103.SEQUENCE_LENGTHS,
}
ALL = [(name, (variant,)) for name, variants in VARIANTS.items() for variant in variants]
SMALL = [
    *(("books", (variant,)) for variant in books.VARIANTS),
    ("demo", ("mixed",)),
    ("demo", ("local",)),
    *(("clustered_text", (variant,)) for variant in clustered_text.VARIANTS),
    *(("sparse_transformer_enwik8", (variant,)) for variant in ("tiny", "tiny_strided")),
    ("all_attention_enwik8", ("tiny",)),
    ("answer", ("small",)),
    *(("audio", (variant,)) for variant in audio.SMALL),
    *(("speech", (variant,)) for variant in speech.KINDS),
    ("translate_documents", ("mixed",)),
    *(("classify", (variant,)) for variant in classify.VARIANTS),
    *(("images", (variant,)) for variant in images.VARIANTS),
]
# State of the training split of the speech with 59 phones.
PHONES = {"labels": [str(label) for label in range(59)], "unit": "phone", "mean": [0.0] * 40, "std": [1.0] * 40}


def load(name, arguments=()):
    return importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}").get_config(*arguments)


@functools.cache
def num_weights(name, arguments):
    """Return the weights of a configuration's model of bytes."""
    config = load(name, arguments)
    if config.task in ("translate", "answer"):
        config.data.update(source_field="en", target_field="fr")
        config.data.update(tokenizer="bytes", vocabulary=None)
        return registry.make_task(config).make_model().count_params()
    if config.task == "classify":
        state = {"tokenizer": describe(tsa.data.ByteTokenizer()), "labels": [str(label) for label in range(20)]}
        return ClassifyTask(config, state).make_model().count_params()
    if config.task == "image":
        return image_task(config).make_model().count_params()
    if config.task == "audio":
        return audio_task(config).make_model().count_params()
    if config.task == "speech":
        return SpeechTask(config, PHONES).make_model().count_params()
    return components.make_model(config, vocabulary_size=258).count_params()


def audio_task(config):
    config.data.path = "sounds.npz"
    state = {"codec": tsa.data.AudioCodec(config.data.sample_rate or 8000).get_config()}
    return registry.find_task_class("audio")(config, state)


def image_task(config):
    config.data.tfds = "cifar10"
    data = config.data
    codec = tsa.data.ImageCodec(*data.image_shape, data.image_order, tuple(data.image_block) or None)
    return image.Task(config, {"codec": codec.get_config()})


def test_every_file_has_a_header_with_command_hardware_time_and_score(subtests):
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base"} == set(VARIANTS)
    for name in VARIANTS:
        with subtests.test(name):
            header = importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}").__doc__
            sections = dict(re.findall(r"^(\w+): +(.*(?:\n +.*)*)", header, re.MULTILINE))
            assert list(sections) == ["Command", "Hardware", "Time", "Score"]
            assert all(re.search("[a-z]", text) for text in sections.values())  # a placeholder is in capitals
            assert all(re.search(r"\d|not run", sections[heading]) for heading in ("Time", "Score"))
            assert re.search(rf"--config={name}\b", header)


def test_every_variant_has_the_settings_of_the_base_that_its_task_reads_and_an_optimizer(subtests):
    defaults = base.get_config()
    for name, arguments in ALL:
        with subtests.test(f"{name}:{arguments[0]}"):
            config = load(name, arguments)
            assert set(config) == set(defaults)
            for section in defaults:
                if hasattr(defaults[section], "keys"):
                    assert set(config[section]) == set(defaults[section]), section
            check_read(config, config.task, registry.find_task_class(config.task).settings)
            assert components.make_optimizer(config, hidden_dim=8).name


def test_an_unknown_variant_is_an_error_with_the_names_of_all(subtests):
    for name, variants in VARIANTS.items():
        if name != "pg19":  # accepts the name of any preset
            with subtests.test(name), pytest.raises(ValueError, match=f"{', '.join(variants)}.*=big"):
                load(name, ("big",))


@pytest.mark.parametrize(("name", "arguments"), first_of_each(SMALL, lambda case: case[0]))
def test_a_small_model_can_be_built(name, arguments):
    assert 100_000 < num_weights(name, arguments) < 5_000_000


PUBLISHED = [case for case in ALL if case[0] in ("enwik8", "pg19", "wikitext103")]
PUBLISHED.append(("sparse_transformer_enwik8", ("published",)))


@pytest.mark.parametrize(("name", "arguments"), first_of_each(PUBLISHED, lambda case: case[0]))
def test_a_published_size_can_be_built_with_one_layer(name, arguments):
    config = load(name, arguments)
    config.model.update(num_layers=1, num_local_layers=0)
    backbone = components.make_model(config, vocabulary_size=258).backbone
    preset = tsa.models.PRESETS[config.model.preset]
    assert backbone.hidden_dim == preset["arguments"]["hidden_dim"]
    assert config.data.sequence_length == preset["sequence_length"]


def test_the_large_all_attention_model_can_be_built_with_one_layer():
    config = load("all_attention_enwik8", ("large",))
    config.model.update(num_layers=1, memory_length=16)
    config.model.attention[0]["window"] = 16
    config.train.dtype = "float32"
    assert components.make_model(config, vocabulary_size=258).backbone.hidden_dim == 512


@pytest.mark.parametrize("preset", first(images_published.SIZES, 1))
def test_a_published_model_of_images_has_the_positions_of_its_images(preset):
    config = load("images_published", (preset,))
    config.model.num_layers = 1
    model = image_task(config).make_model()
    assert config.data.sequence_length == model.backbone.max_length == tsa.models.PRESETS[preset]["sequence_length"]


def test_the_shallow_model_of_music_has_the_published_width_and_positions():
    config, whole = load("audio", ("music_shallow",)), load("audio", ("music",))
    backbone = audio_task(config).make_model().backbone
    published = tsa.models.PRESETS["sparse_transformer_music"]
    assert (backbone.num_layers, backbone.hidden_dim) == (2, published["arguments"]["hidden_dim"])
    assert config.data.sequence_length == backbone.max_length == published["sequence_length"]
    assert whole.model.preset == config.model.preset and whole.model.num_layers is None
    assert backbone.get_config()["remat"]


@pytest.mark.parametrize("name", ["audio", "images"])
def test_variants_of_a_task_of_bytes_differ_only_in_their_heads(name):
    variants = audio.SMALL if name == "audio" else images.VARIANTS
    counts = [num_weights(name, (variant,)) for variant in variants]
    assert max(counts) / min(counts) < 1.01
    configs = [load(name, (variant,)) for variant in variants]
    for section in ("data", "optimizer", "train", "generate"):
        assert len({str(config[section]) for config in configs}) == 1
    assert len({sum(part["num_heads"] for part in config.model.attention) for config in configs}) == 1


@pytest.mark.parametrize("name", ["demo", "books", "translate_documents"])
def test_only_local_heads_are_as_many_as_local_and_routed_heads(name):
    mixed, local = load(name), load(name, ("local",))
    assert abs(num_weights(name, ("mixed",)) / num_weights(name, ("local",)) - 1) < 0.01
    assert sum(part["num_heads"] for part in mixed.model.attention) == local.model.attention[0]["num_heads"]
    assert {part["layer"] for part in local.model.attention} == {"LocalAttention"}
    for section in ("data", "optimizer", "train"):
        assert mixed[section].to_dict() == local[section].to_dict()


def test_all_kinds_of_attention_to_speech_are_as_many_weights_and_differ_in_nothing_else():
    models = [SpeechTask(load("speech", (kind,)), PHONES).make_model() for kind in speech.KINDS]
    counts = [sum(math.prod(weight.shape) for weight in model.trainable_weights) for model in models]
    assert max(counts) / min(counts) < 1.01  # without untrained weights: hash directions and centroids
    plain = [load("speech", (kind,)).to_dict() for kind in speech.KINDS]
    for config in plain:
        del config["model"]["attention"], config["model"]["intermediate_dim"]
    assert all(config == plain[0] for config in plain)


def test_two_configurations_do_not_share_their_parts():
    one, other = load("demo"), load("demo")
    one.model.attention[0]["num_heads"] = 99
    assert other.model.attention[0]["num_heads"] != 99
    assert load("demo").model.attention[0]["num_heads"] != 99


def test_a_setting_that_does_not_exist_cannot_be_set():
    config = load("demo").lock()
    with pytest.raises(AttributeError, match='Did you mean "num_steps" instead of "num_step"'):
        config.train.num_step = 3


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
    ("language_model", "train", "label_smoothing", 0.1, r"0\.0"),
    ("masked", "model", "memory_length", 8, "0"),
    ("translate", "model", "causal", False, "True"),
    ("translate", "data", "mask_rate", 0.1, r"0\.0"),
    ("answer", "train", "evaluation_windows", 0, "64"),
    ("answer", "model", "memory_length", 8, "0"),
    ("image", "generate", "prompt", "a", "''"),
    ("image", "data", "mask_rate", 0.1, r"0\.0"),
    ("image", "model", "memory_length", 4, "0"),
    ("audio", "data", "image_shape", (8, 8, 3), r"\(\)"),
    ("audio", "data", "mask_rate", 0.1, r"0\.0"),
    ("audio", "model", "memory_length", 4, "0"),
    ("speech", "data", "mask_rate", 0.1, r"0\.0"),
    ("speech", "model", "memory_length", 8, "0"),
    ("classify", "model", "tie_embeddings", True, "False"),
    ("classify", "data", "mask_rate", 0.1, r"0\.0"),
    ("classify", "train", "label_smoothing", 0.1, r"0\.0"),
]


def test_a_setting_that_a_task_ignores_is_an_error_with_its_default(subtests):
    for task, section, name, value, default in IGNORED:
        config = base.get_config()
        config.task, config[section][name] = task, value
        message = rf"`config\.{section}\.{name}`.* task={task}, .*Received: {name}=.*The default is {default};"
        with subtests.test(f"{task} {name}"), pytest.raises(ValueError, match=message):
            registry.make_task(config)


def test_an_evaluation_rejects_settings_that_its_task_ignores():
    config, wanted = base.get_config(), overrides.overridable_settings()
    wanted.data.mask_rate = 0.0  # the default
    wanted.train.num_beams = 4
    with pytest.raises(ValueError, match=r"`config\.train\.num_beams` must be unset for task=language_model, which"):
        with_overrides(config, wanted)
    config.task = "speech"
    assert with_overrides(config, wanted).train.num_beams == 4
