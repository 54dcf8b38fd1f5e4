"""Prompts as ids, and ids as pieces of text."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.types import Tensor


class Prompts(NamedTuple):
    """Prompts as ids.

    Attributes:
        rows: list of integer arrays (T,).
        is_single: whether the argument was one prompt instead of a list.
    """

    rows: Any
    is_single: bool

    def unwrap(self, results: list) -> Any:
        """Return the only result if the argument was one prompt, otherwise the list."""
        return results[0] if self.is_single else results


def parse_prompts(
    prompts: Any,
    vocabulary_size: int,
    tokenizer: Any = None,
    padding_mask: Tensor | None = None,
    name: str = "prompts",
    remove_start_id: bool = True,
) -> Prompts:
    """Parse the prompts of `LanguageModel.generate`.

    Args:
        prompts: `str`, `bytes`, ids (T,), a list of these, or an array or tensor of texts (B,) or of ids (B, T).
        vocabulary_size: V.
        tokenizer: tokenizer, required for text.
        padding_mask: for an array of ids: bool (B, T), False for padding on the left or the right.
        name: argument name for messages.
        remove_start_id: whether to remove a leading start id 0. Default True.

    Raises:
        ValueError: if an argument is invalid.
    """
    prompts = _to_list(name, prompts)
    if tokenizer is not None and (isinstance(tokenizer, type) or not hasattr(tokenizer, "detokenize")):
        raise ValueError(f"`tokenizer` must be a tokenizer of `tf_sparse_attention.data`. Received: {tokenizer!r}.")
    check = functools.partial(_check_prompt, name, vocabulary_size, remove_start_id)
    if padding_mask is not None:
        return Prompts([check(row) for row in _remove_padding(prompts, padding_mask)], False)
    is_empty_array = isinstance(prompts, np.ndarray) and prompts.shape == (0,)
    is_single = isinstance(prompts, (str, bytes)) or is_empty_array or (len(prompts) > 0 and all(map(_is_id, prompts)))
    rows = [prompts] if is_single else list(prompts)
    if not rows:
        raise ValueError(f"`{name}` must not be empty. Received: {name}={prompts!r}.")
    return Prompts([check(_ids(name, row, tokenizer)) for row in rows], is_single)


def _to_list(name, prompts):
    """Convert tensors and arrays to lists or numeric arrays; return sequences and text unchanged."""
    if isinstance(prompts, bytearray):
        return bytes(prompts)
    if isinstance(prompts, (str, bytes, list, tuple, range)):
        return prompts
    if not hasattr(prompts, "shape"):
        raise ValueError(f"`{name}` must be text, ids, or a list of these. Received: {name}={prompts!r}.")
    array = np.asarray(prompts.numpy() if hasattr(prompts, "numpy") else ops.convert_to_numpy(prompts))
    if array.ndim == 0 and array.dtype.kind in "biuf":
        raise ValueError(f"`{name}` must be text, ids, or a list of these. Received: {name}={prompts!r}.")
    return array if np.issubdtype(array.dtype, np.number) else array.tolist()


def _is_id(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _ids(name, prompt, tokenizer):
    if not isinstance(prompt, (str, bytes)):
        return prompt
    if tokenizer is None:
        raise ValueError(f"`tokenizer` must be given for {name} of text. Received: None, {prompt!r}.")
    return tokenizer.tokenize(prompt)


def _check_prompt(name, vocabulary_size, remove_start_id, prompt):
    try:
        ids = np.asarray(prompt)
    except ValueError:  # lists of several lengths
        ids = np.zeros((0, 0))
    is_valid = ids.ndim == 1 and (ids.size == 0 or np.issubdtype(ids.dtype, np.integer))
    if is_valid and remove_start_id and ids.size and ids[0] == 0:
        ids = ids[1:]
    if not is_valid or (ids.size and not 0 < ids.min() <= ids.max() < vocabulary_size):
        start = " The start id 0 may only be first." if remove_start_id else ""
        zero = f" Id 0 is padding, see `padding_mask`.{start}" if 0 in ids else ""
        raise ValueError(
            f"`{name}` must be text, or sequences of integers in [1, {vocabulary_size}).{zero} Received: {prompt!r}."
        )
    return ids.astype("int32")


def _remove_padding(prompts, padding_mask):
    mask = np.asarray(padding_mask.numpy() if hasattr(padding_mask, "numpy") else padding_mask)
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"`padding_mask` must contain only True and False. Received: padding_mask={padding_mask!r}.")
    ids, mask = np.asarray(prompts), mask.astype(bool)
    if ids.ndim != 2 or ids.shape != mask.shape or len(ids) == 0:
        raise ValueError(
            "`padding_mask` must have the shape of `prompts`, which must be ids (B, T). "
            f"Received: padding_mask of shape {mask.shape}, prompts of shape {ids.shape}."
        )
    # In each row, the mask may change to True at most once.
    runs = np.count_nonzero(np.diff(mask.astype(int), axis=1, prepend=0) > 0, axis=1)
    if runs.max(initial=0) > 1:
        row = int(runs.argmax())
        raise ValueError(
            "`padding_mask` must be False on the left or the right of a row, not between tokens. "
            f"Received: row {row} with {runs[row]} runs of tokens."
        )
    return [row[is_token] for row, is_token in zip(ids, mask, strict=True)]


def check_stop_token_ids(stop_token_ids: int | Sequence[int] | Tensor | None, vocabulary_size: int) -> np.ndarray:
    """Check stop ids and pad them with -1 to a multiple of 4, int32, so that few programs are compiled.

    Raises:
        ValueError: if `stop_token_ids` is not an id of the vocabulary, a sequence of ids, or None.
    """
    try:
        ids = np.atleast_1d(np.asarray(() if stop_token_ids is None else stop_token_ids))
    except ValueError:  # lists of several lengths
        ids = np.zeros((0, 0))
    is_valid = ids.ndim == 1 and (ids.size == 0 or np.issubdtype(ids.dtype, np.integer))
    if not is_valid or (ids.size and not 0 <= ids.min() <= ids.max() < vocabulary_size):
        raise ValueError(
            f"`stop_token_ids` must be an id, a sequence of ids in [0, {vocabulary_size}), or None. "
            f"Received: stop_token_ids={stop_token_ids!r}."
        )
    return np.pad(ids.astype("int32"), (0, -ids.size % 4 if ids.size else 4), constant_values=-1)


def check_seeds(seed: int | Sequence[int] | Tensor, num_rows: int) -> np.ndarray:
    """Check seeds and return them modulo 2**32, uint32 () or (B,).

    Raises:
        ValueError: if `seed` is not an integer or one integer per row.
    """
    try:
        seeds = np.asarray(seed)
    except ValueError:  # lists of several lengths
        seeds = np.zeros((0, 0))
    values = seeds.ravel().tolist()
    if seeds.shape not in ((), (num_rows,)) or not all(_is_id(value) for value in values):
        raise ValueError(
            f"`seed` must be an integer, or an integer for each of {num_rows} rows. Received: seed={seed!r}."
        )
    return np.array([int(value) % 2**32 for value in values], "uint32").reshape(seeds.shape)


def iterate_pieces(rows: Iterable[Tensor], tokenizer: Any) -> Iterator[Any]:
    """Yield the new ids of each row, or the new text of its stable prefix, and finally the remaining text."""
    yielded, row = 0, ()
    for row in rows:
        stable = row if tokenizer is None else tokenizer.stable_prefix(row)
        if len(stable) > yielded:
            yield stable[yielded:]
            yielded = len(stable)
    if tokenizer is not None and len(text := tokenizer.detokenize(row)) > yielded:
        yield text[yielded:]
