"""Models of KerasHub made sparse: an encoder, decoders with their caches, and text that they generate."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.convert.swap.swap_models import difference, local, mixed, randomized, routed
from tests.draws import first
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention, MixedAttention, SwappedAttention

keras_hub = pytest.importorskip("keras_hub")

from tests.convert.swap import decoder_models  # noqa: E402

SIZES = {"vocabulary_size": 50, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
LENGTH = 12


def padded(lengths=(12, 7)):
    return decoder_models.padded(lengths, LENGTH)


@pytest.fixture(scope="module")
def bert():
    return randomized(keras_hub.models.BertBackbone(**SIZES, dropout=0.0, max_sequence_length=32))


@pytest.fixture(scope="module")
def gpt2():
    backbone = keras_hub.models.GPT2Backbone(**SIZES, max_sequence_length=32)
    return randomized(keras_hub.models.GPT2CausalLM(backbone, preprocessor=None))


def test_an_encoder_gives_the_dense_result_with_padding(bert):
    inputs = {**padded(), "segment_ids": np.zeros((2, LENGTH), int)}
    lines = []
    sparse = replace_attention(bert, local(), print_fn=lines.append)
    assert lines[0].split("\n") == [
        "replaced  transformer_layer_0._self_attention_layer: MultiHeadAttention by LocalAttention"
    ]
    results = bert(inputs), sparse(inputs)
    real = inputs["padding_mask"] == 1
    assert difference(*(ops.convert_to_numpy(result["sequence_output"])[real] for result in results)) < 1e-5
    assert difference(*(result["pooled_output"] for result in results)) < 1e-5


def test_a_decoder_gives_the_dense_result_with_padding_without_a_mask_of_all_pairs(gpt2):
    inputs, seen = padded(), []
    sparse = replace_attention(gpt2, local(), print_fn=None)
    layer = sparse.backbone.transformer_layers[0]._self_attention_layer
    call = layer.attention.call
    layer.attention.call = lambda *args, **arguments: seen.append(arguments) or call(*args, **arguments)
    real = inputs["padding_mask"] == 1
    assert difference(*(ops.convert_to_numpy(model(inputs))[real] for model in (gpt2, sparse))) < 1e-5
    assert [seen[0][name] is None for name in ("attention_mask", "key_mask")] == [True, False]
    assert seen[0]["use_causal_mask"] is True


def paths(model):
    return [weight.path for weight in model.weights]


def assert_saved(model, folder):
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    assert paths(loaded) == paths(model)
    assert difference(model(padded()), loaded(padded())) == 0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`compile:UserWarning", "ignore:Layer .* does not have a `quantize`:UserWarning")
def test_weights_keep_their_paths_and_few_bits_are_saved(gpt2, tmp_path):
    sparse = replace_attention(gpt2, local(4), print_fn=None)
    assert sorted(paths(sparse)) == sorted(paths(gpt2))
    sparse.quantize("int8")
    assert_saved(sparse, tmp_path)


@pytest.mark.full
def test_weights_of_mixed_heads_are_in_their_block_before_and_after_loading(gpt2, tmp_path):
    backbone = replace_attention(gpt2, mixed, print_fn=None).backbone
    name = backbone.transformer_layers[0]._self_attention_layer.attention.name
    assert f"transformer_layer_0/{name}/near/query/kernel" in paths(backbone)
    assert len(set(paths(backbone))) == len(backbone.weights)
    assert_saved(backbone, tmp_path)


def halves(dense):
    """Two windows that see everything, each with half of the heads."""
    arguments = {**arguments_of(dense), "num_heads": 1, "window": LENGTH}
    return MixedAttention([LocalAttention(**{**arguments, "name": name}) for name in ("first", "second")])


@pytest.mark.full
def test_low_rank_kernels_are_carried_over():
    backbone = keras_hub.models.GPT2Backbone(**SIZES, max_sequence_length=32)
    backbone.enable_lora(2)
    model = randomized(backbone)
    sparse = replace_attention(model, halves, print_fn=None)
    assert difference(model(padded((12, 12))), sparse(padded((12, 12)))) < 1e-5
    assert len(sparse.trainable_weights) == 2 * len(model.trainable_weights)
    ranks = {weight.shape[-1] for weight in sparse.trainable_weights if weight.path.endswith("lora_kernel_a")}
    assert ranks == {2}


@pytest.mark.parametrize("make_layer", first([local(4), routed], 1))
def test_greedy_text_is_what_the_full_pass_finds_best(gpt2, make_layer):
    prompts = padded((2, 9))  # further from each other than the window
    sparse = replace_attention(gpt2, make_layer, print_fn=None)
    sparse.compile(sampler="greedy")
    text = ops.convert_to_numpy(sparse.generate(prompts, stop_token_ids=None)["token_ids"])
    np.testing.assert_array_equal(text * prompts["padding_mask"], prompts["token_ids"])
    decoder_models.assert_greedy(sparse, text, (2, 9))


def test_invalid_calls_of_swapped_attention_are_errors(subtests):
    layer = SwappedAttention(LocalAttention(2, 8, window=3, name="attention"))
    x, y = np.zeros((1, 4, 16), "float32"), np.zeros((1, 5, 16), "float32")
    cache, narrow = (np.zeros((1, 2, 4, 2, channels), "float32") for channels in (8, 2))
    for message, inputs, options in [
        ("`value` and `key`", (x, y), {}),
        ("`cache_update_index`", (x, x), {"cache": cache}),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            layer(*inputs, **options)
    with pytest.raises(ValueError, match="`cache` must have at least 16 channels"):
        SwappedAttention(LocalAttention(2, 2, block_size=4))(x, x, cache=narrow, cache_update_index=0)


def pictures(seed=0):
    return np.random.default_rng(seed).normal(size=(2, 32, 32, 3)).astype("float32")


@pytest.fixture(scope="module")
def blip2():
    """A decoder behind an image of 4 vectors."""
    from docs.tables.hub_models import blip2

    return randomized(keras_hub.models.BLIP2CausalLM(backbone=blip2(4), preprocessor=None))


def written(model, prompts):
    model.compile(sampler="greedy", run_eagerly=True)
    return ops.convert_to_numpy(model.generate(dict(prompts), stop_token_ids=None)["token_ids"])


@pytest.mark.full
@pytest.mark.parametrize("images", [{"images": pictures()}, {}])
def test_text_behind_an_image_is_that_of_the_dense_model(blip2, images):
    prompts = {**padded((4, 6)), **images}
    sparse = replace_attention(blip2, local(32), print_fn=None)
    np.testing.assert_array_equal(*(written(model, prompts) for model in (blip2, sparse)))


@pytest.mark.full
def test_a_window_behind_an_image_is_decoded_as_in_the_full_pass(blip2):
    prompts = {**padded((4, 9)), "images": pictures()}
    sparse = replace_attention(blip2, local(3), print_fn=None)
    decoder_models.assert_greedy(sparse, written(sparse, prompts), (4, 9), **prompts)
