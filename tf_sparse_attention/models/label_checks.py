"""Checks of the labels of recordings."""

from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.types import Tensor


def check_labels(name: str, labels: Tensor, num_ids: int | None = None) -> None:
    """Raise a `ValueError` for invalid labels in eager calls. Compiled calls are not checked.

    Args:
        name: name of the argument in errors.
        labels: int (B, U), ids from 1 on, 0 for padding on the right.
        num_ids: number of ids, including 0. None: no limit.
    """
    values = concrete_values(labels)
    if values is None:
        return
    wrong = values[(values < 0) | (values >= (float("inf") if num_ids is None else num_ids))]
    if wrong.size:
        limit = "on" if num_ids is None else f"to {num_ids - 1}"
        raise ValueError(f"`{name}` must be ids from 1 {limit}, and 0 for padding. Received: {wrong[0]}.")
    if ((values[:, :-1] == 0) & (values[:, 1:] != 0)).any():
        raise ValueError(f"`{name}` must have padding, 0, on the right only. Received: 0 before another label.")
