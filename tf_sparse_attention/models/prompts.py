"""Parses prompts from text or ids, one or many, padded or not."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.types import Tensor


class Prompts(NamedTuple):
    """Prompts as ids.

    Attributes:
        rows: list of integer arrays (T,).
        is_single: whether there was one prompt and no list.
    """

    rows: Any
    is_single: bool

    def unwrap(self, results: list) -> Any:
        """Returns the single result if there was one prompt without a list, else the list."""
        return results[0] if self.is_single else results


def parse_prompts(
    prompts: Any,
    vocabulary_size: int,
    tokenizer: Any = None,
    padding_mask: Tensor | None = None,
    name: str = "prompts",
    remove_start_id: bool = True,
) -> Prompts:
    """Returns the `Prompts` in the argument of `LanguageModel.generate`.

    Args:
        prompts: `str`, `bytes`, ids (T,), a list of these, or an array or tensor of texts (B,) or of ids (B, T).
        vocabulary_size: V.
        tokenizer: for text.
        padding_mask: bool (B, T) for an array of ids, False for padding, on either side.
        name: of the argument, for messages.
        remove_start_id: whether ids may begin with the start id 0, which is then taken off. Default True.

    Raises:
        ValueError: for anything else.
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
        raise ValueError(f"`{name}` must hold at least one. Received: {name}={prompts!r}.")
    return Prompts([check(_ids(name, row, tokenizer)) for row in rows], is_single)


def _to_list(name, prompts):
    """Returns tensors and arrays as lists or integer arrays, anything else as it is."""
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
    right = ids.ndim == 1 and (ids.size == 0 or np.issubdtype(ids.dtype, np.integer))
    if right and remove_start_id and ids.size and ids[0] == 0:
        ids = ids[1:]
    if not right or (ids.size and not 0 < ids.min() <= ids.max() < vocabulary_size):
        start = ", and the start id, first alone" if remove_start_id else ""
        zero = f" Id 0 is padding, see `padding_mask`{start}." if 0 in ids else ""
        raise ValueError(
            f"`{name}` must be text, or sequences of integers in [1, {vocabulary_size}).{zero} Received: {prompt!r}."
        )
    return ids.astype("int32")


def _remove_padding(prompts, padding_mask):
    mask = np.asarray(padding_mask.numpy() if hasattr(padding_mask, "numpy") else padding_mask)
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"`padding_mask` must be True and False. Received: padding_mask={padding_mask!r}.")
    ids, mask = np.asarray(prompts), mask.astype(bool)
    if ids.ndim != 2 or ids.shape != mask.shape or len(ids) == 0:
        raise ValueError(
            "`padding_mask` must have the shape of `prompts`, which must be ids (B, T). "
            f"Received: padding_mask of shape {mask.shape}, prompts of shape {ids.shape}."
        )
    # A row is one run of tokens if the mask changes to True no more than once.
    runs = np.count_nonzero(np.diff(mask.astype(int), axis=1, prepend=0) > 0, axis=1)
    if runs.max(initial=0) > 1:
        row = int(runs.argmax())
        raise ValueError(
            "`padding_mask` must be False on the left or the right of a row, not inside. "
            f"Received: row {row} with {runs[row]} pieces."
        )
    return [row[is_token] for row, is_token in zip(ids, mask, strict=True)]


def check_stop_token_ids(stop_token_ids: int | Sequence[int] | Tensor | None, vocabulary_size: int) -> np.ndarray:
    """Returns int32 (4,), or more if there are more, padded with -1, so that few programs are compiled.

    Raises:
        ValueError: unless they are None, an id of the vocabulary, or several.
    """
    try:
        found = np.atleast_1d(np.asarray(() if stop_token_ids is None else stop_token_ids))
    except ValueError:  # lists of several lengths
        found = np.zeros((0, 0))
    right = found.ndim == 1 and (found.size == 0 or np.issubdtype(found.dtype, np.integer))
    if not right or (found.size and not 0 <= found.min() <= found.max() < vocabulary_size):
        raise ValueError(
            f"`stop_token_ids` must be an id, a sequence of ids in [0, {vocabulary_size}), or None. "
            f"Received: stop_token_ids={stop_token_ids!r}."
        )
    return np.pad(found.astype("int32"), (0, -found.size % 4 if found.size else 4), constant_values=-1)


def check_seeds(seed: int | Sequence[int] | Tensor, num_rows: int) -> np.ndarray:
    """Returns seeds modulo 2**32, uint32 () or (B,).

    Raises:
        ValueError: unless they are an integer or one for each row.
    """
    try:
        seeds = np.asarray(seed)
    except ValueError:  # lists of several lengths
        seeds = np.zeros((0, 0))
    values = seeds.ravel().tolist()
    if seeds.shape not in ((), (num_rows,)) or not all(_is_id(value) for value in values):
        raise ValueError(f"`seed` must be an integer or one for each of {num_rows} rows. Received: seed={seed!r}.")
    return np.array([int(value) % 2**32 for value in values], "uint32").reshape(seeds.shape)
