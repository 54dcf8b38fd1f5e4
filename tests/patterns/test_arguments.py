"""Wrong arguments of patterns are refused by name, where they are given."""

import numpy as np
import pytest

from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.patterns import Blocks, Dilated, First, Hashed, ImageBlocks, Nearest, Stride, Summary, Window


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Window(0), "size"),
        (lambda: Window(2.5), "size"),
        (lambda: Blocks(3, before=-1), "before"),
        (lambda: Stride(0), "stride"),
        (lambda: Dilated(3, 0), "dilation"),
        (lambda: First(0), "count"),
        (lambda: Summary(4, 3, group=1), "num_summary"),
        (lambda: ImageBlocks(0), "width"),
        (lambda: ImageBlocks(4, 8), "block_shape"),
        (lambda: ImageBlocks(4, (0, 2)), "block_shape"),
        (lambda: ImageBlocks(4, before=(-1, 0)), "before"),
        (lambda: ImageBlocks(4, after=1), "after"),
        (lambda: ImageBlocks(4, order="rows"), "order"),
        (lambda: ImageBlocks(4, height=0), "height"),
        (lambda: Nearest(0, 4), "num_clusters"),
        (lambda: Nearest(3, 4, ema_decay=1.0), "ema_decay"),
        (lambda: Nearest(3, 4, commitment_loss=-1.0), "commitment_loss"),
        (lambda: Nearest(3, 4, revive_after=-1), "revive_after"),
        (lambda: Hashed(3, 4), "num_buckets"),
        (lambda: Hashed(4, 4, round=-1), "round"),
    ],
)
def test_a_wrong_argument_is_named(make, named):
    with pytest.raises(ValueError, match=f"^`{named}`.* must be .*Received: "):
        make()


def test_pairs_may_be_lists():
    pattern = ImageBlocks(4, [2, 2], before=[1, 0])
    assert pattern == ImageBlocks(4, (2, 2), before=(1, 0)) and hash(pattern) == hash(ImageBlocks(4, (2, 2), (1, 0)))


@pytest.mark.parametrize("causal", [True, False])
def test_more_pixels_than_an_image_has_are_refused(causal):
    layer = SparseAttention(2, 4, Window(2) | ImageBlocks(4, (2, 2), order="blocks", height=3))
    pixels = np.ones((1, 13, 6), "float32")
    assert layer(pixels[:, :12], use_causal_mask=causal).shape == (1, 12, 6)
    message = r"`query` must have at most `height` times `width` positions\. Received: 13 positions, height=3, width=4"
    for attend in (layer, layer.attention_pattern):
        with pytest.raises(ValueError, match=message):
            attend(pixels, use_causal_mask=causal)
