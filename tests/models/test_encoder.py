"""The encoder's inputs; what it computes is compared with torch in tests/convert/test_hugging_face.py."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tf_sparse_attention.models import Encoder

SIZES = {"vocabulary_size": 30, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "max_length": 40}
PART = {"layer": "GlobalLocalAttention", "num_heads": 2, "key_dim": 4, "window": 3}
ATTENTION = [PART]


def states(encoder, inputs):
    return ops.convert_to_numpy(encoder(inputs)["sequence_output"])


def ids(length, seed=0):
    return np.random.default_rng(seed).integers(2, 30, (2, length))


def test_ids_alone_are_enough():
    encoder = Encoder(attention=ATTENTION, **SIZES)
    np.testing.assert_array_equal(states(encoder, ids(9)), states(encoder, {"token_ids": ids(9)}))
    assert encoder(ids(9))["pooled_output"].shape == (2, 8)
    assert set(Encoder(attention=ATTENTION, use_pooler=False, **SIZES)(ids(9))) == {"sequence_output"}


@pytest.mark.full
def test_padding_to_whole_blocks_changes_nothing_and_a_block_of_padding_is_the_last_one():
    encoder, ids = Encoder(attention=ATTENTION, global_block=4, **SIZES), np.arange(1, 14)[None] % 9 + 1
    for length, is_same in ((16, True), (20, False)):
        inputs = {"token_ids": np.pad(ids, [(0, 0), (0, length - 13)]), "padding_mask": np.arange(length)[None] < 13}
        assert (np.abs(states(encoder, inputs)[:, :13] - states(encoder, ids)).max() < 1e-5) == is_same


def test_a_wrong_argument_is_refused(subtests):
    cases = [
        ({"attention": [ATTENTION, ATTENTION]}, "`attention`"),
        ({"attention": PART}, "`attention`"),
        ({"attention": ATTENTION, "intermediate_dim": None}, "`intermediate_dim`"),
        ({"attention": [{**PART, "layer": "LocalAttention"}], "global_block": 4}, "`global_block`"),
        ({"attention": ATTENTION, "num_token_types": 0}, "`num_token_types`"),
        ({"attention": ATTENTION, "dropout": 1.5}, "`dropout`"),
        ({"attention": ATTENTION, "global_block": 0}, "`global_block`"),
    ]
    for options, message in cases:
        with subtests.test(str(options)), pytest.raises(ValueError, match=message):
            Encoder(**{**SIZES, **options})


def test_wrong_inputs_are_refused(subtests):
    local, other = [{**PART, "layer": "LocalAttention"}], {**PART, "num_first_global": 1}
    keys = r"and only keys of \['padding_mask', 'segment_ids', 'token_ids', 'token_type_ids'\]"
    first_global = r"same `num_first_global`.* parts of block_0 with num_first_global \[0, 1\]"
    marks, documents = ({name: np.ones((2, 9), "int32")} for name in ("global_mask", "segment_ids"))
    cases = [
        (ATTENTION, {}, {"ids": ids(9)}, "`inputs`"),
        (ATTENTION, {}, ids(41), "`token_ids`"),
        (local, {}, {"token_ids": ids(9), **marks}, keys),
        (ATTENTION, {"global_block": 4}, {"token_ids": ids(9), **marks}, "`global_mask`"),
        (ATTENTION, {"global_block": 4}, {"token_ids": ids(9), **documents}, "`segment_ids`"),
        ([PART, other], {}, {"token_ids": ids(9), **documents}, first_global),
        (ATTENTION, {"num_token_types": 2}, {"token_ids": ids(9), **documents}, "`token_type_ids`"),
    ]
    for attention, options, inputs, message in cases:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            Encoder(attention=attention, **SIZES, **options)(inputs)


def test_positions_that_begin_behind_padding_leave_room_for_less():
    encoder = Encoder(attention=ATTENTION, padding_id=1, **SIZES)
    assert states(encoder, ids(38)).shape == (2, 38, 8)
    with pytest.raises(ValueError, match="`token_ids`"):
        encoder(ids(39))


OWN = [{}, {"num_first_global": 2}, {"num_first_global": 1, "own_projections": True}]


@pytest.mark.parametrize(("own", "padding_id"), first([(OWN[2], 1), (OWN[1], None), (OWN[0], 1)], 1))
def test_packed_documents_are_what_they_are_alone(own, padding_id):
    encoder = Encoder(attention=[{**PART, **own}], num_token_types=2, padding_id=padding_id, **SIZES)
    lengths, length = (7, 1, 12), 24
    tokens, types = ids(length), ids(length, 1) % 2
    tokens[:, 20:] = 1
    documents = np.repeat([3, 0, 5, 7], [*lengths, 4])[None].repeat(2, 0)
    documents[1] += 1
    marks = np.isin(np.arange(length), (4, 10, 19))[None].repeat(2, 0)
    packed = {"token_ids": tokens, "token_type_ids": types, "global_mask": marks, "padding_mask": tokens != 1}
    found = encoder({**packed, "segment_ids": documents})
    for start, end in ((0, 7), (7, 8), (8, 20)):
        alone = encoder({name: x[:, start:end] for name, x in packed.items()})
        rows = found["sequence_output"][:, start:end]
        np.testing.assert_allclose(rows, alone["sequence_output"], atol=1e-5)
        pooled = np.broadcast_to(alone["pooled_output"][:, None], rows.shape)
        np.testing.assert_allclose(found["pooled_output"][:, start:end], pooled, atol=1e-5)
    assert np.abs(found["sequence_output"] - encoder(packed)["sequence_output"])[:, 7:20].max() > 0.01
