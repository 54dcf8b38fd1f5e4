"""Imported models: evaluation, samples, export and further training."""

from fnmatch import fnmatch

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import (
    components,
    evaluation,
    model_import,
    overrides,
    sampling,
    training,
    workdir,
)
from tf_sparse_attention.trainers.tasks import registry

PART = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 16, "position": "rotary"}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 8, [PART], intermediate_dim=16, seed=0))
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return path


def test_an_imported_model_is_evaluated_and_sampled_from(make_tiny_config, model_file, tmp_path):
    config = make_tiny_config()
    model = model_import.import_model(config, model_file, tmp_path / "run")
    result = evaluation.evaluate(tmp_path / "run", "test")
    assert 4 < result["bits_per_byte"] < 10 and "not_causal" not in result
    # The training text is unknown, so the file name contains the evaluation text.
    name = f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"
    assert fnmatch(result["path"], str(tmp_path / "run" / name))
    assert result["tokenizer"] == "ByteTokenizer" and result["vocabulary_size"] == 258
    source = registry.load_task(tmp_path / "run").make_sample_source(workdir.load_model(tmp_path / "run"))
    source.model._generator = Generator(source.model, run_eagerly=True)  # compiling takes longer than three tokens
    assert sampling.generate(source, b"ab", length=3)[0]["text"].startswith("ab")
    ids = np.ones((1, 20), "int32")
    np.testing.assert_array_equal(workdir.load_model(tmp_path / "run")(ids), model(ids))


@pytest.mark.filterwarnings("ignore:.*is not causal")
def test_scores_of_heads_that_are_not_causal_are_marked(make_tiny_config, tmp_path):
    part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 4}
    model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 8, [{**part, "selection": "top_k"}]))
    model.save(tmp_path / "model.keras")
    model_import.import_model(make_tiny_config(), tmp_path / "model.keras", tmp_path / "run")
    result = evaluation.evaluate(tmp_path / "run", "test")
    assert result["not_causal"] is True
    assert "some heads are not causal: scores are not likelihoods" in evaluation.as_text(result)


def test_the_text_of_the_configuration_may_be_missing(make_tiny_config, model_file, text_folder, tmp_path):
    config = make_tiny_config()
    config.data.path = str(tmp_path / "elsewhere")
    model_import.import_model(config, model_file, tmp_path / "run")
    changes = overrides.overridable_settings()
    changes.data.path = str(text_folder)
    assert evaluation.evaluate(tmp_path / "run", "test", changes)["tokens"] > 0


def test_ids_that_the_tokenizer_lacks_log_a_warning(make_tiny_config, tmp_path, caplog):
    large = tsa.models.LanguageModel(tsa.models.Backbone(300, 1, 8, [PART], intermediate_dim=16))
    large.save(tmp_path / "large.keras")
    model_import.import_model(make_tiny_config(), tmp_path / "large.keras", tmp_path / "run")
    assert "The model has 42 ids more than the tokenizer" in caplog.text


def test_a_folder_with_a_run_is_an_error(make_tiny_config, model_file, tmp_path):
    model_import.import_model(make_tiny_config(), model_file, tmp_path / "run")
    with pytest.raises(ValueError, match=r"`workdir` must not contain a run"):
        model_import.import_model(make_tiny_config(), model_file, tmp_path / "run")


def continuing(config, model_file, **settings):
    """Return the configuration with a model to continue and default model settings."""
    config.model = base.get_config().model
    config.model.update(start_from=str(model_file), **settings)
    return config


def test_training_starts_from_a_model_in_a_file(make_tiny_config, model_file, tmp_path):
    config = continuing(make_tiny_config(), model_file)
    config.optimizer.learning_rate = 1e-12
    config.train.update(num_steps=2, evaluate_every=0)
    trained = training.train(config, tmp_path / "run").model
    ids = np.ones((1, 20), "int32")
    first = keras.models.load_model(model_file, compile=False)
    np.testing.assert_allclose(trained(ids), first(ids), atol=1e-5)
    np.testing.assert_array_equal(workdir.load_model(tmp_path / "run")(ids), trained(ids))


def test_continued_training_uses_the_dtype_of_the_configuration(make_tiny_config, model_file):
    config = continuing(make_tiny_config(), model_file)
    config.train.dtype = "mixed_bfloat16"
    model = registry.make_task(config).make_model()
    assert model.backbone.blocks[0].compute_dtype == "bfloat16"
    assert model.backbone.blocks[0].variable_dtype == "float32"
    assert np.isfinite(model(np.ones((1, 20), "int32"))).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_length", 7),
        ("causal", False),
        ("num_layers", 2),
        ("attention", [{**PART, "window": 8}]),
        ("attention", [PART, PART]),
        ("attention", [{"layer": "AllAttention"}]),
        ("grid", [4, 4]),
        ("dropout", 0.5),
        ("tie_embeddings", True),
        ("preset", "pg19_local_cluster8k"),
    ],
)
def test_a_setting_that_differs_from_the_model_is_named(name, value, model_file):
    config = continuing(base.get_config(), model_file, **{name: value})
    config.data.mask_rate = 0.0 if config.model.causal else 0.1
    with pytest.raises(ValueError, match=rf"`config.model.{name}` must be unset, or match .*Received: {name}="):
        components.make_model(config, 258)


def test_settings_that_match_the_model_are_accepted(model_file):
    settings = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "attention": [PART], "norm": "pre"}
    config = continuing(base.get_config(), model_file, **settings)
    assert components.make_model(config, 258).backbone.num_layers == 1


def test_a_truncated_file_is_an_error(model_file, tmp_path):
    (tmp_path / "half.keras").write_bytes(model_file.read_bytes()[:1000])
    config = continuing(base.get_config(), tmp_path / "half.keras")
    with pytest.raises(ValueError, match=r"`config.model.start_from` must be a complete file .* 1000 bytes"):
        components.make_model(config, 258)


def test_a_missing_file_another_model_and_a_small_vocabulary_are_errors(make_tiny_config, model_file, tmp_path):
    config = make_tiny_config()
    with pytest.raises(ValueError, match=r"`model` must be a file NAME.keras. Received: .*missing.keras"):
        model_import.import_model(config, tmp_path / "missing.keras", tmp_path / "run")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match=r"must hold a `LanguageModel`. Received: a Sequential"):
        model_import.import_model(config, tmp_path / "other.keras", tmp_path / "run")
    small = tsa.models.LanguageModel(tsa.models.Backbone(100, 1, 8, [PART], intermediate_dim=16))
    small.save(tmp_path / "small.keras")
    with pytest.raises(
        ValueError, match=r"must be the tokenizer of the model.s training.*258 ids, a model with 100 ids"
    ):
        model_import.import_model(config, tmp_path / "small.keras", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config.model.start_from = "nowhere.keras"
    with pytest.raises(ValueError, match=r"`config.model.start_from` must be a file NAME.keras"):
        training.train(config, tmp_path / "run")
