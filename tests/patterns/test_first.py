"""The first tokens of packed documents that begin anywhere in a block."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.patterns.small_cases import attend_pattern, column
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import First
from tf_sparse_attention.patterns.first import BLOCK_SIZE

TOTAL = 6 * BLOCK_SIZE + 2
# Documents of one token, documents at the edges of blocks, and long ones; ids come back, in another document.
LENGTHS = [
    [1] * TOTAL,
    [BLOCK_SIZE - 1, 3 * BLOCK_SIZE, 1, BLOCK_SIZE, 2, BLOCK_SIZE],
    [5, BLOCK_SIZE - 6, 2, 3, TOTAL - BLOCK_SIZE - 4],
]


@pytest.mark.parametrize(("causal", "count"), first([(True, 3), (False, BLOCK_SIZE + 2), (False, 1)], 2))
def test_a_query_sees_the_first_tokens_of_its_own_document(causal, count):
    segments = np.array([np.repeat(np.arange(len(lengths)) % 3, lengths) for lengths in LENGTHS], "int32")
    # Zero scores: the output is the mean of the positions seen.
    zeros, values = (np.repeat(column(x), 3, axis=0) for x in (np.zeros(TOTAL), np.arange(TOTAL)))
    masks = TokenMasks(query_segments=segments, key_segments=segments)
    found = attend_pattern(First(count), zeros, zeros, values, causal=causal, masks=masks).output
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        begins = np.repeat(ends - lengths, lengths)
        last = np.minimum(np.repeat(ends, lengths), begins + count) - 1
        last = np.minimum(last, np.arange(TOTAL)) if causal else last
        np.testing.assert_allclose(ops.convert_to_numpy(found)[row, 0, :, 0], (begins + last) / 2, rtol=1e-5)


def test_documents_of_two_sequences_are_refused():
    layer, x = SparseAttention(1, 4, First(2)), np.ones((1, 8, 6), "float32")
    queries, keys = [[0, 0, 1, 1, 1, 1, 2, 2]], [[0, 0, 0, 0, 1, 1, 1, 2]]
    for call in (layer, layer.attention_pattern):
        with pytest.raises(ValueError, match=r"`value_segment_ids` must be None with First\(per_document=True\)"):
            call(x, x + 1, segment_ids=np.array(queries), value_segment_ids=np.array(keys))
        assert call(x, x + 1, segment_ids=np.array(queries)).shape[0] == 1  # the documents of both
    whole = SparseAttention(1, 4, First(2, per_document=False))
    assert whole(x, x + 1, segment_ids=np.array(queries), value_segment_ids=np.array(keys)).shape == x.shape
