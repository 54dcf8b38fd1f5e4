"""Checks of labels of recordings."""

from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.types import Tensor


def check_labels(name: str, labels: Tensor, num_ids: int | None = None) -> None:
    """Raises a `ValueError` for labels that are none, where they can be seen: not inside of a program.

    Args:
        name: of the argument, for messages.
        labels: int (B, U), ids from 1 on, 0 for padding on the right.
        num_ids: the ids that there are, 0 included. None: any.
    """
    known = concrete_values(labels)
    if known is None:
        return
    wrong = known[(known < 0) | (known >= (float("inf") if num_ids is None else num_ids))]
    if wrong.size:
        most = "on" if num_ids is None else f"to {num_ids - 1}"
        raise ValueError(f"`{name}` must be ids from 1 {most}, and 0 for padding. Received: {wrong[0]}.")
    if ((known[:, :-1] == 0) & (known[:, 1:] != 0)).any():
        raise ValueError(f"`{name}` must have padding, 0, on the right alone. Received: 0 before another label.")
