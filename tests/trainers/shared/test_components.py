"""Models, optimizers and schedules of configurations, and imported models."""

from fnmatch import fnmatch

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.trainers import task_runs
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, evaluation, workdir
from tf_sparse_attention.trainers.tasks import registry

PARTS = [{"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}]


def make_config(**sections):
    config = base.get_config()
    config.model.update(num_layers=1, hidden_dim=4, attention=PARTS)
    for name, settings in sections.items():
        config[name].update(settings)
    return config


def rates(steps, **settings):
    schedule = components.make_schedule(make_config(optimizer=settings), hidden_dim=16)
    return [float(schedule(step)) for step in steps]


def test_a_model_has_the_given_settings():
    config = make_config(model={"tie_embeddings": True, "norm": "post"}, train={"dtype": "mixed_bfloat16"})
    model = components.make_model(config, vocabulary_size=9)
    assert model.backbone.get_config()["norm"]["placement"] == "post"
    assert model.backbone.get_config()["activation"] == tsa.models.Backbone(3, 1, 4, PARTS).get_config()["activation"]
    assert model.tie_embeddings
    assert model.backbone.vocabulary_size == 9
    assert model.dtype_policy.name == model.backbone.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.full
def test_parts_can_be_serialized_layers_and_blocks_can_differ(tmp_path):
    local = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}
    layer = keras.saving.serialize_keras_object(tsa.layers.LocalAttention2D(2, 4, width=5, block_shape=(2, 3)))
    for attention, expected in [
        ([local, layer], [["LocalAttention", "LocalAttention2D"]] * 2),
        ([[local], [layer]], [["LocalAttention"], ["LocalAttention2D"]]),
    ]:
        config = make_config()
        config.model.num_layers = 2
        config.model.attention = attention
        workdir.save_config(tmp_path, config)
        for given in (config, workdir.load_config(tmp_path)):
            blocks = components.make_model(given, vocabulary_size=9).backbone.blocks
            assert [[type(part).__name__ for part in block.attention.parts] for block in blocks] == expected
            assert tuple(blocks[1].attention.parts[-1].block_shape) == (2, 3)


def test_a_preset_gives_unset_settings():
    config = make_config(model={"preset": "pg19_local_cluster8k", "hidden_dim": 8, "embedding_dim": 8})
    arguments = components.make_model(config, vocabulary_size=9).backbone.get_config()
    assert (arguments["hidden_dim"], arguments["num_layers"], arguments["attention"]["parts"]) == (8, 1, PARTS)
    assert arguments["activation"] == tsa.models.PRESETS["pg19_local_cluster8k"]["arguments"]["activation"]


@pytest.mark.full
def test_the_configuration_overrides_rematerialization_of_a_preset():
    for settings, remat in (({}, True), ({"remat": False}, False)):
        config = base.get_config()
        config.model.update(preset="sparse_transformer_enwik8", num_layers=1, **settings)
        config.model.update(hidden_dim=8, intermediate_dim=8, attention=PARTS)
        assert components.make_model(config, vocabulary_size=9).backbone.get_config()["remat"] is remat


def test_schedules_follow_their_rules():
    assert rates((0, 1000), learning_rate=0.5) == pytest.approx([0.5, 0.5])
    warm = {"learning_rate": 1.0, "warmup_steps": 4}
    assert rates((0, 3, 16), schedule="constant", **warm) == pytest.approx([0.25, 1.0, 1.0])
    assert rates((0, 16), schedule="rsqrt_normalized_decay", **warm) == pytest.approx([1.0, 0.5])
    assert rates((0, 2, 16), schedule="rsqrt_with_linear_warmup", **warm) == pytest.approx([0.0, 0.5, 0.5])
    assert rates((3,), schedule="noam", **warm) == pytest.approx([1.0 * 16**-0.5 * 4**-0.5])
    cosine = rates((0, 2, 4, 9, 14), schedule="cosine", decay_steps=10, **warm)
    assert cosine == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0], abs=1e-6)


def test_a_cosine_schedule_ends_with_the_run_by_default():
    config = make_config(optimizer={"schedule": "cosine", "warmup_steps": 4, "learning_rate": 1.0})
    config.train.num_steps = 20
    schedule = components.make_schedule(config, hidden_dim=8)
    assert float(schedule(12)) == pytest.approx(0.5) and float(schedule(20)) == pytest.approx(0.0, abs=1e-6)


def test_an_optimizer_gets_its_settings_and_measures_its_gradient(subtests):
    for name, base_class, settings in [
        ("adafactor", tsa.optimizers.Adafactor, {"beta_1": 0.9}),
        ("adagrad", tsa.optimizers.Adagrad, {"clip": 0.5}),
        ("adam", keras.optimizers.Adam, {"beta_2": 0.95, "global_clipnorm": 1.0}),
        ("adamw", keras.optimizers.AdamW, {"weight_decay": 0.1, "gradient_accumulation_steps": 2}),
    ]:
        with subtests.test(name):
            optimizer = components.make_optimizer(make_config(optimizer={"name": name, **settings}), hidden_dim=16)
            assert isinstance(optimizer, base_class) and isinstance(optimizer, tsa.optimizers.GradientNorm)
            assert {setting: getattr(optimizer, setting) for setting in settings} == settings


def test_settings_that_do_not_fit_together_are_errors_that_name_them(subtests):
    sizes = {"num_layers": 1, "hidden_dim": 8, "attention": PARTS}
    masked, mask_rate = {**sizes, "causal": False}, {"mask_rate": 0.1}
    for make, name, sections in [
        ("make_model", "model", {}),
        ("make_model", "data.mask_rate", {"model": masked}),
        ("make_model", "data.mask_rate", {"model": sizes, "data": mask_rate}),
        ("make_model", "model.memory_length", {"model": {**masked, "memory_length": 4}, "data": mask_rate}),
        ("make_model", "model.initialization", {"model": {**sizes, "initialization": "width"}}),
        ("make_optimizer", "optimizer.beta_2", {"optimizer": {"beta_2": 0.9}}),
        ("make_optimizer", "optimizer.name", {"optimizer": {"name": "lion"}}),
        ("make_schedule", "optimizer.schedule", {"optimizer": {"schedule": "linear"}}),
        ("make_schedule", "optimizer.warmup_steps", {"optimizer": {"schedule": "cosine"}}),
    ]:
        config = base.get_config()
        config.update(sections)
        with subtests.test(str(sections)), pytest.raises(ValueError, match=f"`config.{name}`"):
            getattr(components, make)(config, 258)


def test_an_embedding_of_positions_and_an_initialization_follow_the_configuration():
    config = make_config(model={"grid": [4, 4]})
    assert components.make_model(config, 258).backbone.grid_embedding.grid == (4, 4)
    for preset in (None, "pg19_local_cluster8k"):
        depth = {"preset": preset, "hidden_dim": 8, "initialization": "depth", "tie_embeddings": False}
        assert not np.any(components.make_model(make_config(model=depth), 258)(np.ones((1, 5), "int32")))


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 8, PARTS, intermediate_dim=16, seed=0))
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return path


@pytest.mark.full
def test_an_imported_model_is_evaluated_on_another_text_and_sampled_from(make_tiny_config, model_file, tmp_path):
    config, changes = make_tiny_config(), base.overridable_settings()
    changes.data.path, config.data.path = config.data.path, str(tmp_path / "missing")
    model = workdir.import_model(config, model_file, tmp_path / "run")
    result = evaluation.evaluate(tmp_path / "run", "test", changes)
    assert 4 < result["bits_per_byte"] < 10 and "not_causal" not in result
    # The training text is unknown, so the file name contains the evaluation text.
    name = f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"
    assert fnmatch(result["path"], str(tmp_path / "run" / name))
    assert result["tokenizer"] == "ByteTokenizer" and result["vocabulary_size"] == 258
    source = registry.load_task(tmp_path / "run").make_sample_source(task_runs.load_model(tmp_path / "run"))
    assert task_runs.draw_samples(source, b"ab", length=3)[0]["text"].startswith("ab")
    ids = np.ones((1, 20), "int32")
    np.testing.assert_array_equal(workdir.load_model(tmp_path / "run")(ids), model(ids))


def test_ids_that_the_tokenizer_lacks_log_a_warning(make_tiny_config, tmp_path, caplog):
    large = tsa.models.LanguageModel(tsa.models.Backbone(300, 1, 8, PARTS, intermediate_dim=16))
    large.save(tmp_path / "large.keras")
    workdir.import_model(make_tiny_config(), tmp_path / "large.keras", tmp_path / "run")
    assert "The model has 42 ids more than the tokenizer" in caplog.text


def continuing(config, model_file, **settings):
    """Return the configuration with a model to continue and default model settings."""
    config.model = base.get_config().model
    config.model.update(start_from=str(model_file), **settings)
    return config


@pytest.mark.full
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
        ("attention", [{**PARTS[0], "window": 8}]),
        ("preset", "pg19_local_cluster8k"),
    ]:
        config = continuing(base.get_config(), model_file, **{name: value})
        config.data.mask_rate = 0.0 if config.model.causal else 0.1
        message = rf"`config\.model\.{name}` .*Received: {name}="
        with subtests.test(f"{name}={value}"), pytest.raises(ValueError, match=message):
            components.make_model(config, 258)
    same = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "attention": PARTS, "norm": "pre"}
    assert components.make_model(continuing(base.get_config(), model_file, **same), 258).backbone.num_layers == 1


def test_a_file_without_a_fitting_model_and_a_folder_with_a_run_are_errors(make_tiny_config, model_file, tmp_path):
    config, run = make_tiny_config(), tmp_path / "run"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    tsa.models.LanguageModel(tsa.models.Backbone(100, 1, 8, PARTS)).save(tmp_path / "small.keras")
    for name, message in [
        ("missing", "`model`.*missing.keras"),
        ("other", "must hold a `LanguageModel`. Received: a Sequential"),
        ("small", "must be the tokenizer of the model.s training.*258 ids, a model with 100 ids"),
    ]:
        with pytest.raises(ValueError, match=message):
            workdir.import_model(config, tmp_path / f"{name}.keras", run)
    assert not run.exists()
    workdir.import_model(config, model_file, run)
    with pytest.raises(ValueError, match=r"`workdir` must not contain a run"):
        workdir.import_model(config, model_file, run)
    (tmp_path / "half.keras").write_bytes(model_file.read_bytes()[:1000])
    for name, reason in (("half", "1000 bytes"), ("nowhere", "NAME.keras")):
        config = continuing(base.get_config(), tmp_path / f"{name}.keras")
        with pytest.raises(ValueError, match=rf"`config\.model\.start_from`.*{reason}"):
            components.make_model(config, 258)
