"""Turns windows of a token stream into inputs, targets and weights of a language model."""

import numpy as np

from tf_sparse_attention.data.batches.streams import on_arrays
from tf_sparse_attention.types import Tensor


def pack_windows(
    tokens: Tensor, end_id: int = 1, use_packing: bool = True, padded: bool = True
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Turns windows of a stream of documents into model inputs, targets and weights.

    Target t is the window's token t. The input at t is the token before it, or the start id 0 at the window's
    first position and at the first token of every document. So a document in a packed window gives exactly the inputs
    that it gives by itself. Segment t is the number, from 1, of the document of target t.

    For documents "ab" and "c" and the end id 1 (a, b, c are their ids), a window of 6:

    ```
    targets      a b 1 c 1 0
    token_ids    0 a b 0 c 0
    segment_ids  1 1 1 2 2 0
    weights      1 1 1 1 1 0
    ```

    Args:
        tokens: int32 (B, T), ids of documents that each end with `end_id`; 0 is padding on the right.
        end_id: the id that ends a document. Default 1. 0: documents, such as recordings, have padding between them,
            which is not scored.
        use_packing: whether documents are separate sequences. If False the window is one sequence: there are no
            segments, and the input after a document's end is the end id itself. Default True.
        padded: whether there may be padding, so that a "padding_mask" is needed. Default True.

    Returns:
        `(inputs, targets, weights)` as `keras.Model.fit` takes them: inputs {"token_ids", "segment_ids"}, int32 (B, T)
        (without "segment_ids" if `use_packing` is False), and "padding_mask", bool (B, T), if `padded`; targets int32
        (B, T), weights float32 (B, T), 1 on tokens and 0 on padding. Inputs and segments are 0 on padding.
    """

    def pack(tokens):
        is_token = tokens != 0
        previous = np.pad(tokens[:, :-1], [(0, 0), (1, 0)])
        masks = {"padding_mask": is_token} if padded else {}
        weights = is_token.astype("float32")
        if not use_packing:
            return {"token_ids": np.where(is_token, previous, 0), **masks}, tokens, weights
        begins = previous == end_id
        token_ids = np.where(is_token & ~begins, previous, 0)
        segment_ids = np.where(is_token, 1 + np.cumsum(begins, axis=1, dtype="int32"), 0)
        return {"token_ids": token_ids, "segment_ids": segment_ids, **masks}, tokens, weights

    return on_arrays(pack, tokens)
