"""Imported models: evaluation, samples, export and further training."""

from fnmatch import fnmatch

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.trainers import task_runs
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import (
    components,
    evaluation,
    model_import,
    overrides,
    sampling,
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


def test_an_imported_model_is_evaluated_on_another_text_and_sampled_from(make_tiny_config, model_file, tmp_path):
    config, changes = make_tiny_config(), overrides.overridable_settings()
    changes.data.path, config.data.path = config.data.path, str(tmp_path / "missing")
    model = model_import.import_model(config, model_file, tmp_path / "run")
    result = evaluation.evaluate(tmp_path / "run", "test", changes)
    assert 4 < result["bits_per_byte"] < 10 and "not_causal" not in result
    # The training text is unknown, so the file name contains the evaluation text.
    name = f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"
    assert fnmatch(result["path"], str(tmp_path / "run" / name))
    assert result["tokenizer"] == "ByteTokenizer" and result["vocabulary_size"] == 258
    source = registry.load_task(tmp_path / "run").make_sample_source(task_runs.load_model(tmp_path / "run"))
    assert sampling.generate(source, b"ab", length=3)[0]["text"].startswith("ab")
    ids = np.ones((1, 20), "int32")
    np.testing.assert_array_equal(workdir.load_model(tmp_path / "run")(ids), model(ids))


def test_ids_that_the_tokenizer_lacks_log_a_warning(make_tiny_config, tmp_path, caplog):
    large = tsa.models.LanguageModel(tsa.models.Backbone(300, 1, 8, [PART], intermediate_dim=16))
    large.save(tmp_path / "large.keras")
    model_import.import_model(make_tiny_config(), tmp_path / "large.keras", tmp_path / "run")
    assert "The model has 42 ids more than the tokenizer" in caplog.text


def continuing(config, model_file, **settings):
    """Return the configuration with a model to continue and default model settings."""
    config.model = base.get_config().model
    config.model.update(start_from=str(model_file), **settings)
    return config


def test_training_starts_from_a_model_in_a_file_with_the_dtype_of_the_configuration(make_tiny_config, model_file):
    config = continuing(make_tiny_config(), model_file)
    first = keras.models.load_model(model_file, compile=False)
    for found, expected in zip(registry.make_task(config).make_model().weights, first.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    config.train.dtype = "mixed_bfloat16"
    model = registry.make_task(config).make_model()
    assert model.backbone.blocks[0].compute_dtype == "bfloat16"
    assert model.backbone.blocks[0].variable_dtype == "float32"
    assert np.isfinite(model(np.ones((1, 20), "int32"))).all()


def test_a_setting_that_differs_from_the_model_is_named(model_file, subtests):
    for name, value in [
        ("memory_length", 7),
        ("causal", False),
        ("num_layers", 2),
        ("attention", [{**PART, "window": 8}]),
        ("grid", [4, 4]),
        ("dropout", 0.5),
        ("preset", "pg19_local_cluster8k"),
    ]:
        config = continuing(base.get_config(), model_file, **{name: value})
        config.data.mask_rate = 0.0 if config.model.causal else 0.1
        message = rf"`config\.model\.{name}` .*Received: {name}="
        with subtests.test(f"{name}={value}"), pytest.raises(ValueError, match=message):
            components.make_model(config, 258)
    same = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "attention": [PART], "norm": "pre"}
    assert components.make_model(continuing(base.get_config(), model_file, **same), 258).backbone.num_layers == 1


def test_a_file_without_a_fitting_model_and_a_folder_with_a_run_are_errors(make_tiny_config, model_file, tmp_path):
    config, run = make_tiny_config(), tmp_path / "run"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    tsa.models.LanguageModel(tsa.models.Backbone(100, 1, 8, [PART])).save(tmp_path / "small.keras")
    for name, message in [
        ("missing", "`model`.*missing.keras"),
        ("other", "must hold a `LanguageModel`. Received: a Sequential"),
        ("small", "must be the tokenizer of the model.s training.*258 ids, a model with 100 ids"),
    ]:
        with pytest.raises(ValueError, match=message):
            model_import.import_model(config, tmp_path / f"{name}.keras", run)
    assert not run.exists()
    model_import.import_model(config, model_file, run)
    with pytest.raises(ValueError, match=r"`workdir` must not contain a run"):
        model_import.import_model(config, model_file, run)
    (tmp_path / "half.keras").write_bytes(model_file.read_bytes()[:1000])
    for name, reason in (("half", "1000 bytes"), ("nowhere", "NAME.keras")):
        config = continuing(base.get_config(), tmp_path / f"{name}.keras")
        with pytest.raises(ValueError, match=rf"`config\.model\.start_from`.*{reason}"):
            components.make_model(config, 258)
