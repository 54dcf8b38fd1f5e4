"""Configurations: headers, settings, models and invalid variants."""

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
from tf_sparse_attention.trainers.shared import components
from tf_sparse_attention.trainers.shared.tokenizers import describe
from tf_sparse_attention.trainers.tasks import image, registry
from tf_sparse_attention.trainers.tasks.classify import Task as ClassifyTask
from tf_sparse_attention.trainers.tasks.speech import Task as SpeechTask

FOLDER = Path(base.__file__).parent
CONFIGURATIONS = (
    "all_attention_enwik8",
    "answer",
    "audio",
    "books",
    "classify",
    "clustered_text",
    "demo",
    "enwik8",
    "images",
    "images_published",
    "pg19",
    "sparse_transformer_enwik8",
    "speech",
    "toys",
    "translate_documents",
    "wikitext103",
)
ALL = [
    *(("answer", (variant,)) for variant in answer.VARIANTS),
    *(("audio", (variant,)) for variant in audio.VARIANTS),
    *(("books", (variant,)) for variant in books.VARIANTS),
    *(("all_attention_enwik8", (variant,)) for variant in all_attention_enwik8.VARIANTS),
    *(("classify", (variant,)) for variant in classify.VARIANTS),
    *(("clustered_text", (variant,)) for variant in clustered_text.VARIANTS),
    *(("sparse_transformer_enwik8", (variant,)) for variant in sparse_transformer_enwik8.VARIANTS),
    *(("demo", (variant,)) for variant in demo.VARIANTS),
    *(("speech", (variant,)) for variant in speech.VARIANTS),
    *(("toys", (task,)) for task in toys.DATA),
    *(("translate_documents", (variant,)) for variant in translate_documents.VARIANTS),
    *(("images", (variant,)) for variant in images.VARIANTS),
    *(("images_published", (preset,)) for preset in images_published.SIZES),
    *(("enwik8", (preset,)) for preset in enwik8.SEQUENCE_LENGTHS),
    *(("wikitext103", (preset,)) for preset in wikitext103.SEQUENCE_LENGTHS),
    *(("pg19", (preset,)) for preset in ("pg19_local_cluster8k", "pg19_local8k", "pg19_routing_published")),
]
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


def test_every_file_is_tested():
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base"}
    assert names == set(CONFIGURATIONS) == {name for name, _ in ALL}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_header_says_command_hardware_time_and_score(name):
    header = importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}").__doc__
    sections = dict(re.findall(r"^(\w+): +(.*(?:\n +.*)*)", header, re.MULTILINE))
    assert list(sections) == ["Command", "Hardware", "Time", "Score"]
    assert all(re.search("[a-z]", text) for text in sections.values())  # a placeholder is in capitals
    assert all(re.search(r"\d|not run", sections[heading]) for heading in ("Time", "Score"))
    assert re.search(rf"--config={name}\b", header)


@pytest.mark.parametrize(("name", "arguments"), ALL)
def test_a_configuration_has_the_settings_of_the_base_and_no_other(name, arguments):
    config, defaults = load(name, arguments), base.get_config()
    assert set(config) == set(defaults)
    for section in defaults:
        if hasattr(defaults[section], "keys"):
            assert set(config[section]) == set(defaults[section]), section


@pytest.mark.parametrize(("name", "arguments"), ALL)
def test_an_optimizer_can_be_made(name, arguments):
    optimizer = components.make_optimizer(load(name, arguments), hidden_dim=8)
    assert optimizer.name


@pytest.mark.parametrize(("name", "arguments"), first_of_each(SMALL, lambda case: case[0]))
def test_a_small_model_can_be_built(name, arguments):
    assert 100_000 < num_weights(name, arguments) < 5_000_000


PUBLISHED = [(name, *given) for name, given in ALL if name in ("enwik8", "pg19", "wikitext103")]


@pytest.mark.parametrize(("name", "preset"), first_of_each(PUBLISHED, lambda case: case[0]))
def test_a_published_size_can_be_built_with_one_layer(name, preset):
    config = load(name, (preset,))
    config.model.num_layers = 1
    config.model.num_local_layers = 0
    backbone = components.make_model(config, vocabulary_size=258).backbone
    assert backbone.hidden_dim == tsa.models.PRESETS[preset]["arguments"]["hidden_dim"]
    assert config.data.sequence_length == tsa.models.PRESETS[preset]["sequence_length"]


def test_the_large_all_attention_model_can_be_built_with_one_layer():
    config = load("all_attention_enwik8", ("large",))
    config.model.update(num_layers=1, memory_length=16)
    config.model.attention[0]["window"] = 16
    config.train.dtype = "float32"
    assert components.make_model(config, vocabulary_size=258).backbone.hidden_dim == 512


def test_the_published_sparse_transformer_has_its_preset():
    config = load("sparse_transformer_enwik8")
    assert config.data.sequence_length == tsa.models.PRESETS["sparse_transformer_enwik8"]["sequence_length"]
    config.model.num_layers = 1
    assert components.make_model(config, vocabulary_size=258).backbone.hidden_dim == 512


@pytest.mark.parametrize("preset", first(images_published.SIZES, 2))
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


def test_models_of_sound_differ_in_their_heads_alone():
    counts = [num_weights("audio", (variant,)) for variant in audio.SMALL]
    assert max(counts) / min(counts) < 1.01


def test_models_of_images_differ_in_their_heads_alone():
    counts = [num_weights("images", (variant,)) for variant in images.VARIANTS]
    assert max(counts) / min(counts) < 1.01
    configs = [load("images", (variant,)) for variant in images.VARIANTS]
    for section in ("data", "optimizer", "train", "generate"):
        assert len({str(config[section]) for config in configs}) == 1
    assert {sum(part["num_heads"] for part in config.model.attention) for config in configs} == {4}


@pytest.mark.parametrize("name", ["demo", "books", "translate_documents"])
def test_local_heads_alone_are_as_many_as_local_and_routed_ones(name):
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("answer", "small, encoder, published"),
        ("audio", "small, routed, music, music_shallow"),
        ("books", "mixed, local"),
        ("classify", "full, clustered, improved, local, mixed"),
        ("demo", "mixed, local, tiny"),
        ("enwik8", "enwik8_local_cluster8k"),
        ("all_attention_enwik8", "small, large, tiny"),
        ("clustered_text", "improved, plain, lsh, tiny"),
        ("sparse_transformer_enwik8", "published, tiny, tiny_strided"),
        ("speech", "full, clustered, improved, lsh, local, routed, tiny"),
        ("toys", "language_model, masked, translate"),
        ("translate_documents", "mixed, local, translate_local_cluster4k"),
        ("images", "mixed, local, local_2d, strided, top_k"),
        ("images_published", "cifar10_local_cluster, cifar10_local1d"),
        ("wikitext103", "wikitext103_local_cluster4k, wikitext103_local_cluster1k, wikitext103_local4k"),
    ],
)
def test_an_unknown_variant_is_an_error(name, message):
    with pytest.raises(ValueError, match=rf"must be one of {message}.*Received: .*=big"):
        load(name, ("big",))


def test_a_setting_that_does_not_exist_cannot_be_set():
    config = load("demo").lock()
    with pytest.raises(AttributeError, match='Did you mean "num_steps" instead of "num_step"'):
        config.train.num_step = 3
