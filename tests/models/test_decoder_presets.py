"""Presets of today's small decoders: their numbers, and that a tiny one of each is trained and sampled from."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.models import DECODER_PRESETS, LanguageModel
from tf_sparse_attention.models.presets import preset_arguments

IDS = np.tile(np.arange(1, 17, dtype="int32"), (4, 6))
# By name the query heads, key-value heads and size of a head; the window, how many layers go by before one sees
# everything, and the wavelengths of layers with a window and without.
NUMBERS = {
    "gemma3_1b": ((4, 1, 256), 512, 5, (1e4, 1e6)),
    "gemma3_tiny": ((4, 2, 16), 64, 5, (1e4, 1e6)),
    "gpt_oss_20b_dense": ((64, 8, 64), 128, 1, (1.5e5, 1.5e5)),
    "gpt_oss_tiny": ((8, 2, 16), 32, 1, (1.5e5, 1.5e5)),
}


def shape_of(name):
    """Return a model without values of its weights, which would take gigabytes."""
    with keras.StatelessScope(initialize_variables=False):
        return LanguageModel.from_preset(name, vocabulary_size=7, tie_embeddings=True, use_output_bias=False)


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if "tiny" in x else pytest.mark.full) for x in NUMBERS])
def test_layers_that_see_everything_alternate_with_windows(name):
    heads, window, num_local, wavelengths = NUMBERS[name]
    blocks = shape_of(name).backbone.blocks
    for index, block in enumerate(blocks):
        (layer,) = block.attention.parts
        is_local = index % (num_local + 1) < num_local
        assert getattr(layer, "window", None) == (window if is_local else None)
        assert (layer.num_heads, layer.num_key_value_heads, layer.key_dim) == heads
        assert layer.head_settings.rotary.max_wavelength == wavelengths[0 if is_local else 1]
        assert layer.head_settings.use_sink == name.startswith("gpt") != layer.head_settings.use_query_key_norm
    assert len(blocks) == preset_arguments(name)["num_layers"]


def test_every_decoder_has_its_numbers():
    assert set(DECODER_PRESETS) == set(NUMBERS)


@pytest.mark.full
def test_the_parameters_of_gemma_are_as_many_as_published():
    embedding = (262_144 - 7) * 1152  # of the ids that the small vocabulary lacks
    assert shape_of("gemma3_1b").count_params() + embedding == 999_885_952


@pytest.fixture(params=["gemma3_tiny", "gpt_oss_tiny"])
def tiny(request):
    keras.utils.set_random_seed(0)
    return LanguageModel.from_preset(request.param, vocabulary_size=20, tie_embeddings=True, use_output_bias=False)


def test_a_tiny_decoder_writes_with_a_cache(tiny):
    _, cache = tiny.prefill(IDS[:1, :94], tiny.init_cache(1, 96))
    logits, _ = tiny.decode(IDS[:1, 94:95], cache, 94)
    np.testing.assert_allclose(np.asarray(logits)[:, 0], np.asarray(tiny(IDS[:1, :95]))[:, -1], atol=1e-4)
