"""Settings come from a file, a dictionary or a preset, and contradict names and shapes at their peril."""

import dataclasses
import json

import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import Published, plan_of
from tf_sparse_attention.convert.t2t.settings import read_settings

CONTRADICTIONS = {
    "hidden_size": 16,
    "embedding_dims": 12,
    "filter_size": 17,
    "num_decoder_layers": 2,
    "num_encoder_layers": 6,
    "local_num_heads": 3,
    "sparsity_cluster_num_heads": 2,
    "sparsity_cluster_size": 8,
    "sparsity_skip_first": 1,
    "max_relative_position": 6,
    "local_relative": False,
    "sparsity_cluster_relative": False,
    "ffn_layer": "conv_hidden_relu",
    "ema": False,
    "layer_preprocess_sequence": "n",
    "layer_postprocess_sequence": "da",
}
UNSUPPORTED = {"hash_items": True, "sparsity_strided_num_heads": 1, "sparsity_cluster_strided_num_heads": 1}
UNSUPPORTED |= {"norm_type": "batch"}


def changed(small, **settings):
    return dataclasses.replace(small, settings={**small.settings, **settings})


def test_contradicting_unsupported_and_missing_settings_are_errors(small_checkpoint, subtests):
    for name, value in CONTRADICTIONS.items():
        message = f"must agree .* {name}={value!r}, but the variables imply"
        with subtests.test(name), pytest.raises(ValueError, match=message):
            plan_of(changed(small_checkpoint, **{name: value}))
    for name, value in UNSUPPORTED.items():
        with subtests.test(name), pytest.raises(ValueError, match=f"not supported.*{name}"):
            plan_of(changed(small_checkpoint, **{name: value}))
    for name in ("query_shape", "memory_flange", "share_qk", "sparsity_cluster_attention_window"):
        with subtests.test(name), pytest.raises(ValueError, match=f"Missing: {name}"):
            plan_of(changed(small_checkpoint, **{name: None}))
    for block, flange in [([8, 8], [8, 8]), ([8], [12]), ([0], [0]), (8, [8]), ("8", "8"), ([[8]], [8])]:
        with subtests.test(block=block, flange=flange), pytest.raises(ValueError, match="query_shape with one axis"):
            plan_of(changed(small_checkpoint, query_shape=block, memory_flange=flange))
    # Zero decoder layers leave the number to another setting.
    assert plan_of(changed(small_checkpoint, num_decoder_layers=0)).layout.num_layers == 3


def test_a_model_that_skips_all_its_layers_has_all_its_heads_local(references):
    published = Published(references / "t2t_checkpoints" / "pg19_local_like")
    heads = {"local_num_heads": 3, "sparsity_cluster_num_heads": 1, "sparsity_skip_first": 3}
    plan = tsa.convert.plan_t2t_checkpoint(published.prefix, hparams=heads)
    assert plan.backbone_arguments()["attention"]["parts"][0]["num_heads"] == 4
    with pytest.raises(ValueError, match="sparsity_cluster_num_heads=1"):
        tsa.convert.plan_t2t_checkpoint(published.prefix, hparams=heads | {"sparsity_skip_first": 2})


def test_settings_become_arguments_of_the_model(small_checkpoint):
    small_checkpoint.settings |= {"memory_flange": [16], "decay": 0.9, "beta": 0.5, "norm_epsilon": 1e-5}
    small_checkpoint.settings |= {"layer_prepostprocess_dropout": 0.1, "attention_dropout": 0.2, "relu_dropout": 0.3}
    small_checkpoint.settings |= {"dropout": 0.4, "target_dropout": 0.25, "share_qk": False}
    arguments = plan_of(small_checkpoint).backbone_arguments()
    routing, local = arguments["attention"]["parts"]
    assert (local["num_blocks_before"], local["block_size"], local["num_heads"]) == (2, 8, 2)
    assert (routing["ema_decay"], routing["commitment_loss"], routing["share_qk"]) == (0.9, 0.5, False)
    assert routing["dropout"] == local["dropout"] == 0.2
    assert arguments["norm"]["epsilon"] == 1e-5
    assert arguments["dropout"] == {"residual": 0.1, "activation": 0.3, "embedding": 0.4, "tokens": 0.25}


def test_settings_are_a_file_a_dictionary_or_a_preset(tmp_path, subtests):
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps({"a": 1, "b": 2}), encoding="utf-8")
    assert read_settings({"b": 3}, tmp_path) == {"a": 1, "b": 3}  # a dictionary replaces settings of the file
    assert read_settings(None, tmp_path) == {"a": 1, "b": 2}
    assert read_settings(path, None) == {"a": 1, "b": 2}
    for content in (b"{", b"[1]", b"\xff"):
        path.write_bytes(content)
        with subtests.test(content=content), pytest.raises(ValueError, match=r"`hparams` must .* JSON"):
            read_settings(None, tmp_path)
    with pytest.raises(ValueError, match=r"presets .*'pg19_routing_published'.*hparams='pg20'"):
        read_settings("pg20", None)
    other = next(name for name in tsa.models.PRESETS if name.endswith("strided") or "sparse" in name)
    with pytest.raises(ValueError, match=r"presets .*hparams="):
        read_settings(other, None)
