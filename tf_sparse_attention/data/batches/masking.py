"""Windows with hidden tokens, which a model that sees both sides has to guess."""

import numpy as np

from tf_sparse_attention.data.batches.packing import pack_windows


def hidden_places(numbers, length, rate, seed=0):
    """Returns which places of windows are hidden, a function of the seed and the number of each window alone.

    Args:
        numbers: Integers (B,), the numbers of the windows.
        length: Tokens in a window.
        rate: Share of the places that is hidden.
        seed: Integer in [0, 2**63). Default 0.

    Returns:
        Bool array (B, length).
    """
    # A generator for each window, so that rows are hidden alike in whatever batches and on whatever device they come.
    draws = [np.random.Generator(np.random.Philox(key=[seed, int(number)])).random(length) for number in numbers]
    return np.array(draws).reshape(len(numbers), length) < rate


def pack_masked(tokens, hidden, end_id=1, packed=True):
    """Turns windows of a stream of documents into inputs with hidden tokens, and what to guess.

    As `pack_windows`, but the input at t is token t itself, or 0 where it is hidden; the target is the hidden token, 0
    elsewhere, which the loss leaves out. Source: the masked language model of Devlin et al. 2019, "BERT", section 3.1.
    Note: differs in that every hidden token becomes the same id, where BERT leaves or swaps one in five.

    Args:
        tokens: int32 (B, T), ids of documents that each end with `end_id`; 0 is padding on the right.
        hidden: bool (B, T).
        end_id: The id that ends a document. Default 1.
        packed: Whether documents are kept apart, default True; see `pack_windows`.

    Returns:
        `(inputs, targets, weights)`; the inputs always have a "padding_mask".
    """
    import tensorflow as tf

    inputs, tokens, is_token = pack_windows(tokens, end_id, packed)
    hidden = hidden & (is_token > 0)
    inputs["token_ids"] = tf.where(hidden, 0, tokens)
    return inputs, tf.where(hidden, tokens, 0), tf.cast(hidden, tf.float32)
