"""Old names of arguments and methods still work, with a warning."""

import numpy as np
import pytest

from tf_sparse_attention.data import (
    ByteTokenizer,
    SegmentBatches,
    Tokenizer,
    TrainingBatches,
    evaluation_batches,
    evaluation_segments,
    pack_masked,
    pack_windows,
)

TOKENS = np.array([[5, 6, 1, 7, 1, 0]], np.int32)


def assert_renamed(call, old, new):
    """Checks that `call` accepts an argument under both names, with equal results and one warning."""
    with pytest.warns(DeprecationWarning, match=f"`{old}` is now `{new}`"):
        found = call(**{old: False})
    return found, call(**{new: False})


@pytest.mark.parametrize(
    "pack",
    [
        lambda **packing: pack_windows(TOKENS, **packing),
        lambda **packing: pack_masked(TOKENS, TOKENS == 6, **packing),
    ],
    ids=["pack_windows", "pack_masked"],
)
def test_windows_accept_packed(pack):
    found, expected = assert_renamed(pack, "packed", "use_packing")
    assert "segment_ids" not in found[0]
    np.testing.assert_array_equal(found[0]["token_ids"], expected[0]["token_ids"])


@pytest.mark.parametrize("kind", [TrainingBatches, SegmentBatches])
def test_batches_accept_packed(kind, random_store):
    found, expected = assert_renamed(lambda **packing: kind(random_store(), 2, 8, **packing), "packed", "use_packing")
    assert found.use_packing is expected.use_packing is False


@pytest.mark.parametrize("make", [evaluation_batches, evaluation_segments])
def test_evaluation_accepts_packed(make, random_store):
    store = random_store()
    found, expected = assert_renamed(lambda **packing: make(store, 2, 8, **packing), "packed", "use_packing")
    for (first, *_), (second, *_) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(first["token_ids"], second["token_ids"])


def test_both_names_at_once_are_an_error():
    with (
        pytest.warns(DeprecationWarning, match="`packed`"),
        pytest.raises(ValueError, match=r"`use_packing` must be given once. Received: `packed`, its old name"),
    ):
        pack_windows(TOKENS, packed=True, use_packing=True)


def test_settled_text_is_stable_prefix():
    ids = ByteTokenizer().tokenize("a\u00e9")[:-1]
    with pytest.warns(DeprecationWarning, match="`settled_text` is now `stable_prefix`"):
        assert ByteTokenizer().settled_text(ids) == ByteTokenizer().stable_prefix(ids) == "a"


def test_a_tokenizer_that_overrides_settled_text_keeps_its_own():
    with pytest.warns(DeprecationWarning, match="`settled_text` is now `stable_prefix`"):

        class Own(Tokenizer):
            def settled_text(self, ids):
                return "own"

    assert Own().stable_prefix([2]) == "own"
