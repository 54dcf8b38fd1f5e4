"""What can be done with a converted model: train on, save, export, make it causal."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import SCOPE
from tf_sparse_attention.convert.t2t.files import open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


@pytest.mark.full
def test_the_optimizer_has_the_published_moments_and_step_and_a_causal_model_keeps_the_loss(pg19_like, caplog):
    caplog.set_level("INFO")
    model = tsa.convert.from_t2t_checkpoint(pg19_like.prefix)
    backbone = model.backbone
    assert int(model.optimizer.iterations) == 300
    # 0.03 sqrt(10000) rsqrt(max(step, 10000)), the published schedule before its end of the warm-up.
    assert float(model.optimizer.learning_rate) == pytest.approx(0.03)
    local = backbone.blocks[0].attention.parts[0]
    pairs = {
        "embeddings/embedding": backbone.embedding.embeddings,
        "decoder_layer_0/self_attention/self_attention/q/kernel": local.query_dense.kernel,
        "decoder_layer_2/self_attention/ffn/weight3/kernel": backbone.blocks[2].feed_forward._output_dense.kernel,
    }
    with open_checkpoint(pg19_like.prefix) as checkpoint:
        for name, weight in pairs.items():
            slots, slot = model.optimizer.get_slots(weight), f"training/{SCOPE}{name}/Adafactor"
            np.testing.assert_array_equal(np.ravel(slots["row_moment"]), checkpoint.read(slot))
            np.testing.assert_array_equal(np.ravel(slots["column_moment"]), checkpoint.read(slot + "_1"))
        bias = checkpoint.read(f"training/{SCOPE}final_dense_2/bias/Adafactor")
    np.testing.assert_array_equal(model.optimizer.get_slots(model.to_vocabulary.bias)["second_moment"], bias)
    # The moments of weights that were split or folded are reset and logged.
    assert "9 weights" in caplog.text and "backbone/block_0/attention/local_0/attention_output/kernel" in caplog.text
    assert not np.any(model.optimizer.get_slots(local.output_dense.kernel)["row_moment"])
    causal = tsa.convert.with_causal_routing(model)
    loss = tsa.models.language_model_loss()(pg19_like.arrays["targets"], causal(pg19_like.inputs))
    assert float(loss) < pg19_like.arrays["loss"] + 0.5  # a model of no knowledge has log 48 = 3.9
    assert abs(float(loss) - pg19_like.arrays["loss"]) > 1e-4


@pytest.mark.full
def test_a_checkpoint_without_slots_has_an_initialized_optimizer_and_unknown_optimizers_none(
    small_checkpoint, tmp_path, caplog
):
    caplog.set_level("INFO")
    prefix = small_checkpoint.write(tmp_path)
    model = tsa.convert.from_t2t_checkpoint(prefix)
    assert "no optimizer state" in caplog.text
    assert int(model.optimizer.iterations) == 7
    model = tsa.convert.from_t2t_checkpoint(prefix, {"optimizer": "adam"})
    assert not model.compiled
    assert "adam" in caplog.text


@pytest.mark.full
def test_a_converted_model_trains_on_and_a_saved_model_resumes_from_the_same_state(pg19_like, tmp_path):
    model = tsa.convert.from_t2t_checkpoint(pg19_like.prefix, {"layer_prepostprocess_dropout": 0.0})
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(pg19_like.inputs), model(pg19_like.inputs))
    targets, histories = pg19_like.arrays["targets"], []
    for each in (model, loaded):
        each.jit_compile = False  # compiling takes longer than these few steps
        histories.append(each.fit(pg19_like.inputs, targets, batch_size=3, epochs=8, verbose=0).history["loss"])
    assert histories[0] == histories[1]
    # The first loss is that of the training so far, with the commitment added.
    expected = pg19_like.arrays["loss"] + pg19_like.arrays["extra_loss"]
    assert histories[0][0] == pytest.approx(expected, abs=1e-4)
    assert histories[0][-1] < histories[0][0] - 0.05
    assert int(model.optimizer.iterations) == 308


@pytest.mark.full
def test_heads_that_were_given_as_layers_or_block_by_block_become_causal():
    heads = {"num_heads": 1, "key_dim": 4}
    routing = {**heads, "num_clusters": 2, "cluster_size": 4, "selection": "top_k"}
    blocks = [
        [{"layer": "LocalAttention", **heads, "window": 3}, tsa.layers.RoutingAttention(**routing)],
        [{"layer": "RoutingAttention", **routing}],
    ]
    model = tsa.models.LanguageModel(tsa.models.Backbone(20, 2, 8, blocks))
    causal = tsa.convert.with_causal_routing(model)
    parts = [part for block in causal.backbone.blocks for part in block.attention.parts]
    assert [getattr(part, "selection", None) for part in parts] == [None, "nearest", "nearest"]
    assert [part.mask_self for part in parts[1:]] == [False, False]
    tsa.analysis.assert_causal(causal, sequence_length=16, num_cuts=4)


def test_models_that_cannot_be_made_causal_are_errors():
    common = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 4}
    hashed = tsa.models.Backbone(20, 1, 8, [{**common, "selection": "top_k"}, {**common, "selection": "hash"}])
    local = tsa.models.Backbone(20, 1, 8, [{"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}])
    for model, message in [
        (tsa.models.LanguageModel(hashed), r"without centroids.*selection=\['hash'\]"),
        (tsa.models.LanguageModel(local), "routed heads"),
        (keras.Sequential([]), "must be a `LanguageModel`"),
    ]:
        with pytest.raises(ValueError, match=message):
            tsa.convert.with_causal_routing(model)
