"""Inputs and targets for masked language modelling."""

from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.batches.packing import pack_windows
from tf_sparse_attention.data.batches.streams import on_arrays
from tf_sparse_attention.types import Tensor


def hidden_positions(numbers: Sequence[int] | np.ndarray, length: int, rate: float, seed: int = 0) -> np.ndarray:
    """Returns which positions of windows are hidden, a pure function of the seed and the number of each window.

    Args:
        numbers: integers (B,), the numbers of the windows.
        length: tokens in a window.
        rate: fraction of the positions that is hidden.
        seed: integer in [0, 2**63). Default 0.

    Returns:
        Bool array (B, length).
    """
    # One generator a window, so that the result does not depend on batch size or device.
    draws = [np.random.Generator(np.random.Philox(key=[seed, int(number)])).random(length) for number in numbers]
    return np.array(draws).reshape(len(numbers), length) < rate


def pack_masked(
    tokens: Tensor, hidden: Tensor, end_id: int = 1, use_packing: bool = True
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Turns windows of a stream of documents into inputs with hidden tokens, and the targets to predict.

    As `pack_windows`, but the input at t is token t itself, or 0 where it is hidden; the target is the hidden token, or
    0 elsewhere, with weight 0. Source: the masked language model of Devlin et al. 2019, "BERT", section 3.1.
    Note: differs in that every hidden token becomes the same id, where BERT leaves or swaps one in five.

    Args:
        tokens: int32 (B, T), ids of documents that each end with `end_id`; 0 is padding on the right.
        hidden: bool (B, T).
        end_id: the id that ends a document. Default 1.
        use_packing: whether documents are separate sequences, see `pack_windows`. Default True.

    Returns:
        `(inputs, targets, weights)`; the inputs always have a "padding_mask".
    """

    def pack(tokens, hidden):
        inputs, tokens, is_token = pack_windows(tokens, end_id, use_packing)
        hidden = hidden & (is_token > 0)
        inputs["token_ids"] = np.where(hidden, 0, tokens)
        return inputs, np.where(hidden, tokens, 0), hidden.astype("float32")

    return on_arrays(pack, tokens, hidden)
