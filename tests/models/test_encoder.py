"""The encoder's inputs; what it computes is compared with torch in tests/convert/test_hugging_face.py."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tf_sparse_attention.models import Encoder

SIZES = {"vocabulary_size": 30, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12, "max_length": 40}
ATTENTION = {"num_heads": 2, "key_dim": 4, "window": 3}


def states(encoder, inputs):
    return ops.convert_to_numpy(encoder(inputs)["sequence_output"])


def ids(length, seed=0):
    return np.random.default_rng(seed).integers(2, 30, (2, length))


def test_ids_alone_are_enough():
    encoder = Encoder(attention=ATTENTION, **SIZES)
    np.testing.assert_array_equal(states(encoder, ids(9)), states(encoder, {"token_ids": ids(9)}))
    assert encoder(ids(9))["pooled_output"].shape == (2, 8)
    assert set(Encoder(attention=ATTENTION, use_pooler=False, **SIZES)(ids(9))) == {"sequence_output"}


def test_padding_changes_no_other_state():
    encoder = Encoder(attention={**ATTENTION, "first_global": 1}, padding_id=1, **SIZES)
    mask = np.arange(12)[None].repeat(2, 0) < 9
    padded = np.where(mask, np.pad(ids(9), ((0, 0), (0, 3))), 1)
    long = states(encoder, {"token_ids": padded, "padding_mask": mask})
    np.testing.assert_allclose(long[:, :9], states(encoder, ids(9)), atol=1e-5)


@pytest.mark.parametrize(("length", "blocks"), first([(4, [0]), (9, [0, 2]), (13, [0, 3]), (3, [0]), (12, [0, 2])], 3))
def test_the_first_and_last_block_are_global_whole_or_not(length, blocks):
    by_rule = Encoder(attention=ATTENTION, global_block=4, first_block_count=3, **SIZES)
    by_mask = Encoder(attention=ATTENTION, **SIZES)
    by_mask.set_weights(by_rule.get_weights())
    places = np.arange(length)[None].repeat(2, 0) // 4
    counts = np.where(places == 0, 3, np.isin(places, blocks))
    marked = states(by_mask, {"token_ids": ids(length), "global_mask": counts})
    np.testing.assert_allclose(states(by_rule, ids(length)), marked, atol=1e-6)


def test_blocks_may_have_attention_of_their_own():
    encoder = Encoder(attention=[ATTENTION, {**ATTENTION, "window": 7}], **SIZES)
    assert [block.attention.window for block in encoder.blocks] == [3, 7]
    again = Encoder.from_config(encoder.get_config())
    again.set_weights(encoder.get_weights())
    np.testing.assert_array_equal(states(encoder, ids(9)), states(again, ids(9)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": [ATTENTION]}, "`attention` must be a dictionary or a list of 2 of them"),
        ({"attention": ATTENTION, "num_segments": 0}, "`num_segments` must be"),
        ({"attention": ATTENTION, "dropout": 1.5}, "`dropout` must be"),
        ({"attention": ATTENTION, "global_block": 0}, "`global_block` must be"),
    ],
)
def test_a_wrong_argument_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Encoder(**{**SIZES, **options})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": ids(9)}, r'`inputs` must have "token_ids" and nothing else than .* Received: \[\'ids\'\]'),
        (ids(41), "`token_ids` must have at most 40 positions. Received: 41"),
    ],
)
def test_wrong_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        Encoder(attention=ATTENTION, **SIZES)(inputs)


def test_positions_that_begin_behind_padding_leave_room_for_less():
    encoder = Encoder(attention=ATTENTION, padding_id=1, **SIZES)
    assert states(encoder, ids(38)).shape == (2, 38, 8)
    with pytest.raises(ValueError, match=r"`token_ids` must have at most 38 positions\. Received: 39"):
        encoder(ids(39))


def test_marks_beside_global_blocks_are_refused():
    encoder = Encoder(attention=ATTENTION, global_block=4, **SIZES)
    with pytest.raises(ValueError, match="`global_mask` must be left out with `global_block`"):
        encoder({"token_ids": ids(9), "global_mask": np.ones((2, 9))})
