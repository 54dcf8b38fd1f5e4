"""Models, optimizers and schedules of configurations."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, workdir

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


def test_the_configuration_overrides_rematerialization_of_a_preset():
    for settings, remat in (({}, True), ({"remat": False}, False)):
        config = base.get_config()
        config.model.update(preset="sparse_transformer_enwik8", num_layers=1, **settings)
        config.model.update(hidden_dim=8, intermediate_dim=8, attention=PARTS)
        assert components.make_model(config, vocabulary_size=9).backbone.get_config()["remat"] is remat


def test_the_source_follows_the_configuration(text_folder, data_dir):
    config = make_config(data={"path": str(text_folder), "data_dir": str(data_dir)})
    assert components.make_text_source(config).name.startswith("text_folder/")
    assert components.make_text_source(make_config(data={"data_dir": str(data_dir)})).name.startswith("python_source/")


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
    make_model, make_optimizer, make_schedule = (
        lambda config: components.make_model(config, 258),
        lambda config: components.make_optimizer(config, hidden_dim=16),
        lambda config: components.make_schedule(config, hidden_dim=16),
    )
    for make, name, sections in [
        (make_model, "model", {}),
        (make_model, "data.mask_rate", {"model": masked}),
        (make_model, "data.mask_rate", {"model": sizes, "data": mask_rate}),
        (
            make_model,
            "model.memory_length",
            {"model": {**masked, "memory_length": 4}, "data": mask_rate},
        ),
        (make_model, "model.initialization", {"model": {**sizes, "initialization": "width"}}),
        (make_optimizer, "optimizer.beta_2", {"optimizer": {"beta_2": 0.9}}),
        (make_optimizer, "optimizer.name", {"optimizer": {"name": "lion"}}),
        (make_schedule, "optimizer.schedule", {"optimizer": {"schedule": "linear"}}),
        (make_schedule, "optimizer.warmup_steps", {"optimizer": {"schedule": "cosine"}}),
    ]:
        config = base.get_config()
        config.update(sections)
        with subtests.test(str(sections)), pytest.raises(ValueError, match=f"`config.{name}`"):
            make(config)


def test_an_embedding_of_positions_and_an_initialization_follow_the_configuration():
    config = make_config(model={"grid": [4, 4]})
    assert components.make_model(config, 258).backbone.grid_embedding.grid == (4, 4)
    for preset in (None, "pg19_local_cluster8k"):
        depth = {"preset": preset, "hidden_dim": 8, "initialization": "depth", "tie_embeddings": False}
        assert not np.any(components.make_model(make_config(model=depth), 258)(np.ones((1, 5), "int32")))
