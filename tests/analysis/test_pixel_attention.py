"""What a pixel looks at: the scores of the layer itself, each at the pixel of the byte that is read."""

import numpy as np
import pytest

import tf_sparse_attention as tsa

LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 20}
IMAGE = np.random.default_rng(0).integers(256, size=(4, 6, 2), dtype=np.uint8)


def model_of(codec, part=LOCAL):
    backbone = tsa.models.Backbone(257, 1, 8, [part], embedding={"grid": codec.grid}, seed=0)
    return tsa.models.LanguageModel(backbone)


@pytest.mark.parametrize(
    "codec", [tsa.data.ImageCodec(4, 6, 2), tsa.data.ImageCodec(4, 6, 2, "blocks", (2, 3))], ids=["raster", "blocks"]
)
def test_weights_are_those_of_the_layer_at_the_pixels_that_are_read(codec):
    model, ids = model_of(codec), codec.encode(IMAGE)
    (found,) = tsa.analysis.pixel_attention(model, codec, IMAGE, pixel=(2, 4), channel=1)
    block = model.backbone.blocks[0]
    x = model.backbone.embed(np.append(0, ids[:-1])[None].astype("int32"), False)
    x = block._attention_norm(x)
    _, scores = block.attention(x, use_causal_mask=True, return_attention_scores=True)
    query, expected = codec.positions()[2, 4, 1], np.zeros((2, 4, 6))
    for row, column, channel in np.ndindex(4, 6, 2):
        key = codec.positions()[row, column, channel] + 1  # the input after the start id
        if key < codec.length:
            expected[:, row, column] += np.asarray(scores)[0, :, query, key]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.sum() == pytest.approx(2, abs=1e-5)  # two heads, whose window does not reach the start id


def test_a_pixel_beyond_the_image_is_refused():
    codec = tsa.data.ImageCodec(4, 6, 2)
    for pixel, channel in (((4, 0), 0), ((0, -1), 0), ((0, 0), 2), ((1,), 0)):
        with pytest.raises(ValueError, match="`pixel`"):
            tsa.analysis.pixel_attention(model_of(codec), codec, IMAGE, pixel, channel)
