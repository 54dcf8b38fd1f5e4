"""Tokens sorted by cluster into blocks: each has one slot, in a block of its cluster."""

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.ops.clustered_attention import ClusterBlocks


@pytest.mark.parametrize(("length", "num_clusters"), [(1, 3), (5, 50), (40, 1), (130, 3)])
def test_every_token_has_a_slot_in_a_block_of_its_cluster(length, num_clusters):
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, num_clusters + 1, (2, 3, length), "int32")  # the last number is padding
    blocks = ClusterBlocks.from_clusters(ops.convert_to_tensor(clusters), num_clusters, block_size=16)
    x = rng.normal(size=(2, 3, length, 4)).astype("float32")
    restored = ops.convert_to_numpy(blocks.restore(blocks.arrange(x)))
    np.testing.assert_array_equal(restored, np.where((clusters < num_clusters)[..., None], x, 0))
    own = ops.convert_to_numpy(blocks.cluster_of_block)
    held = np.take_along_axis(clusters, ops.convert_to_numpy(blocks.tokens), axis=-1).reshape(*own.shape, -1)
    present = ops.convert_to_numpy(blocks.present).reshape(held.shape)
    assert np.all((held == own[..., None])[present]) and present.sum() == (clusters < num_clusters).sum()


def test_few_tokens_have_few_short_blocks():
    blocks = ClusterBlocks.from_clusters(ops.zeros((1, 1, 3), "int32"), 100)
    assert blocks.cluster_of_block.shape == (1, 1, 3) and blocks.tokens.shape == (1, 1, 9)
    assert ClusterBlocks.from_clusters(ops.zeros((1, 1, 320), "int32"), 9).cluster_of_block.shape == (1, 1, 20)
