"""Chat sessions: conversations that keep their KV cache, and can be copied and saved."""

import copy
import functools
import hashlib
import itertools
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.generation import (
    BeamSearch,
    Progress,
    Speculative,
    advance,
    get_strategy,
    row_keys,
)
from tf_sparse_attention.generation.strategies import Strategy
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.models.generator import END_ID, Task, make_progress, pad_prompts
from tf_sparse_attention.models.prompts import check_seeds, check_stop_token_ids, iterate_pieces, parse_prompts
from tf_sparse_attention.models.steps import cached_step, limit_vocabulary
from tf_sparse_attention.types import Tensor


class ChatSession:
    """Conversation with a language model that keeps its KV cache, so each turn processes only its own tokens.

    The session holds the tokens so far and their KV cache. All turns use the same few compiled programs.
    `LanguageModel.chat_session` creates sessions.

    Args:
        model: a causal `LanguageModel` that can decode with a cache.
        max_length: maximum number of tokens of the conversation. None: unbounded, for models whose caches have a
            constant size, and strategies that do not depend on the whole sequence.
        strategy: as for `LanguageModel.generate`, without beam search. Default "random".
        tokenizer: tokenizer of the training data. None: turns and answers are ids.
        seed: integer seed of the samples. Default 0.
        stop_token_ids: an id, or several, after which an answer ends. Default 1, the end of a document.
        positions_in_cache: as in `AttentionLayer.init_cache`, if `max_length` is None. Default False.

    Raises:
        ValueError: if an argument is invalid, or the model cannot decode with a KV cache of this kind.

    Example:
        >>> session = model.chat_session(max_length=300, tokenizer=ByteTokenizer())
        >>> session.append("def main():")
        >>> for piece in session.generate(max_new_tokens=50):
        ...     print(piece, end="", flush=True)
    """

    def __init__(
        self,
        model: keras.Model,
        max_length: int | None,
        strategy: Strategy = "random",
        tokenizer: Any = None,
        seed: int = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        positions_in_cache: bool = False,
    ) -> None:
        check_has_cache(model)
        checks.check_switch("positions_in_cache", positions_in_cache)
        if max_length is not None:
            checks.check_count("max_length", max_length)
            if positions_in_cache:
                raise ValueError(
                    "`positions_in_cache` must be False unless `max_length` is None. Received: "
                    f"positions_in_cache=True, max_length={max_length}."
                )
        self.model, self.max_length, self.tokenizer = model, max_length, tokenizer
        self._strategy = self._checked_strategy(strategy)
        self._keys = ops.convert_to_numpy(row_keys(check_seeds(seed, 1), 1))
        self._stops = check_stop_token_ids(stop_token_ids, model.vocabulary_size)
        self._generator = model.generator
        self._size: Any = None if max_length is None else self._generator.buffer_length(max_length)
        self._positions_in_cache = positions_in_cache
        self._ids: list[int] = []  # the cache holds the start id and all tokens except the last one
        self._cache = self._generator.start(1, self._size, positions_in_cache=positions_in_cache)

    def _checked_strategy(self, strategy):
        chosen = get_strategy(strategy)
        if isinstance(chosen, (BeamSearch, Speculative)):
            raise ValueError(
                "`strategy` must not be a beam search or speculative in a session or without `max_length`. Received: "
                f"a {type(chosen).__name__}."
            )
        if self.max_length is None and chosen.adjust(chosen.values) is not None:
            raise ValueError(
                "`strategy` must not have `repetition_penalty` or `no_repeat_ngram` if `max_length` is None. Received: "
                f"strategy={strategy!r}."
            )
        return chosen

    def __repr__(self) -> str:
        size = "any number of" if self.max_length is None else self.max_length
        return f"<ChatSession of {self.model.name}: {len(self._ids)} tokens of {size}>"

    @property
    def token_ids(self) -> np.ndarray:
        """The tokens of all turns and answers, int32 (T,)."""
        return np.array(self._ids, "int32")

    @property
    def cache_bytes(self) -> int:
        """Size of the KV cache in bytes, constant over the session."""

        def item_size(x):
            return ops.convert_to_numpy(ops.zeros((), x.dtype)).itemsize

        return sum(math.prod(x.shape) * item_size(x) for x in keras.tree.flatten(self._cache))

    def append(self, prompt: Any) -> None:
        """Add a turn to the conversation.

        Args:
            prompt: `str`, `bytes` or a sequence of ids.

        Raises:
            ValueError: if the prompt is invalid, or the conversation would exceed `max_length`.
        """
        parsed = parse_prompts(prompt, self.model.vocabulary_size, self.tokenizer, name="prompt")
        if len(parsed.rows) > 1:
            raise ValueError(f"`prompt` must be one prompt. Received: {len(parsed.rows)}.")
        ids = [int(token) for token in parsed.rows[0]]
        if self.max_length is not None and len(self._ids) + len(ids) > self.max_length:
            raise ValueError(
                f"`prompt` must fit into the {self.max_length} tokens of the session. Received: a prompt of "
                f"{len(ids)} tokens after {len(self._ids)}."
            )
        inputs = [0, *self._ids, *ids][len(self._ids) : len(self._ids) + len(ids)]  # the start id is 0
        if inputs:
            counts = np.array([len(inputs)], "int32")
            self._cache = self._generator.read(self._cache, np.array([inputs], "int32"), counts)
        self._ids += ids

    def generate(
        self,
        max_new_tokens: int | None = None,
        strategy: Strategy | None = None,
        chunk_size: int = 1,
    ) -> Iterator[Any]:
        """Iterate over pieces of an answer during generation. The answer becomes part of the conversation.

        Pieces of text never split a UTF-8 character, or a word of a subword tokenizer. If iteration stops early, the
        conversation keeps the tokens so far.

        Args:
            max_new_tokens: maximum number of tokens of the answer. None: until a stop id or `max_length`.
            strategy: as in the constructor. None: the strategy of the session.
            chunk_size: tokens per piece; larger pieces cost less. Default 1.

        Yields:
            Nonempty pieces: `str` with a tokenizer, otherwise int32 arrays.

        Raises:
            ValueError: if an argument is invalid, or the session is full.
        """
        chunks = self.iterate_ids(max_new_tokens, strategy, chunk_size)
        if self.tokenizer is None:
            return chunks
        rows = itertools.accumulate(chunks, lambda *parts: np.concatenate(parts), initial=np.zeros(0, "int32"))
        return iterate_pieces(rows, self.tokenizer)

    def iterate_ids(
        self, max_new_tokens: int | None, strategy: Strategy | None, chunk_size: int
    ) -> Iterator[np.ndarray]:
        """Iterate over the ids of an answer, int32 (n,) per piece; see `generate`."""
        checks.check_optional_count("max_new_tokens", max_new_tokens)
        checks.check_count("chunk_size", chunk_size)
        if len(self._ids) == self.max_length:
            raise ValueError(
                f"`max_length` of the session must leave room for an answer. Received: max_length={self.max_length}, "
                "a session with as many tokens."
            )
        chosen = self._strategy if strategy is None else self._checked_strategy(strategy)
        return self._chunks(chosen, max_new_tokens, chunk_size)

    def _chunks(self, strategy, max_new_tokens, chunk_size):
        """Yield the ids of each chunk until a stop id, `max_new_tokens` tokens or `max_length`."""
        num_ids = None if self.tokenizer is None else min(self.tokenizer.vocabulary_size, self.model.vocabulary_size)
        num_ids = None if num_ids == self.model.vocabulary_size else num_ids
        add = self._add_in_buffer
        if self._size is None:
            add = functools.partial(self._add_unbounded, chunk_size)
        ends = [] if max_new_tokens is None else [len(self._ids) + max_new_tokens]
        limit = min([*ends, *([] if self.max_length is None else [self.max_length])], default=None)
        while limit is None or len(self._ids) < limit:
            count, begin = chunk_size if limit is None else min(chunk_size, limit - len(self._ids)), len(self._ids)
            new, self._cache = add(strategy, num_ids, count)
            self._ids += [int(token) for token in new]
            yield new
            if new[-1] in self._stops:
                return
            if len(self._ids) != begin + len(new):
                raise ValueError("A session must not change while it generates. Finish or close the iterator first.")

    def _add_in_buffer(self, strategy, num_ids, count):
        """Add `count` tokens in a buffer of all tokens. Returns the new tokens and the cache."""
        inputs = pad_prompts([[0, *self._ids]], self._size + 1)
        lengths, limit = np.array([len(self._ids)], "int32"), np.array(self.max_length, "int32")
        task = Task(strategy, inputs, lengths, limit, self._size, self._keys, self._stops, num_ids)
        progress = make_progress(inputs, lengths, limit, self._cache)
        progress = self._generator.advance(progress, task, np.array(count, "int32"))
        end = int(ops.convert_to_numpy(progress.lengths)[0])
        return ops.convert_to_numpy(progress.token_ids)[0, len(self._ids) : end], progress.state

    def _add_unbounded(self, chunk_size, strategy, num_ids, count):
        """Add `count` tokens in a buffer of `chunk_size` tokens. Returns the new tokens and the cache."""
        model = self.model

        def add(progress, position, keys, stop_token_ids, values):
            step = limit_vocabulary(cached_step(model, position), num_ids)
            return advance(progress, step, strategy.sampler(values), keys, stop_token_ids, first=position)

        inputs, lengths = np.zeros((1, chunk_size + 1), "int32"), np.zeros(1, "int32")
        inputs[0, 0] = self._ids[-1] if self._ids else 0
        program = self._generator.program(("stream", chunk_size, *strategy.kind, num_ids), add)
        position = np.array(len(self._ids), "int32")
        progress: Progress = program(
            make_progress(inputs, lengths, count, self._cache), position, self._keys, self._stops, strategy.values
        )
        end = int(ops.convert_to_numpy(progress.lengths)[0])
        return ops.convert_to_numpy(progress.token_ids)[0, :end], progress.state

    def fork(self, seed: int | None = None) -> Self:
        """Return an independent copy. The copies share cache tensors until one copy is extended.

        Args:
            seed: integer seed of the samples of the copy. None: the seed of this session, so both sample the same
                answers to the same turns.
        """
        session = copy.copy(self)
        session._ids = list(self._ids)
        if seed is not None:
            session._keys = ops.convert_to_numpy(row_keys(check_seeds(seed, 1), 1))
        return session

    def save(self, path: str | os.PathLike) -> None:
        """Write the conversation and its cache to a file, atomically.

        Args:
            path: name of the file, by convention with the extension ".npz".
        """
        content: dict[str, Any] = {
            "token_ids": self.token_ids,
            "header": np.array(json.dumps(self._header())),
            **{f"cache_{number}": _as_bytes(x) for number, x in enumerate(keras.tree.flatten(self._cache))},
        }
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **content)

    def load(self, path: str | os.PathLike) -> None:
        """Replace the conversation by one that `save` wrote.

        The file has the tokens and the cache. For the same answers, the session must have the same strategy and seed.

        Args:
            path: name of the file.

        Raises:
            ValueError: if the file is damaged, or belongs to a model with another architecture or other weights, or to
                a session with another `max_length` or `positions_in_cache`.
        """
        try:
            with open(path, "rb") as file, np.load(file) as archive:
                content = {name: archive[name] for name in archive.files}
            header = json.loads(str(content["header"]))
        except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(f"`path` must be a file that `ChatSession.save` wrote. Received: {path}.") from error
        for name, value in self._header().items():
            if name == "fingerprint" and header.get(name) != value:
                raise ValueError(
                    "`path` must be a session of a model with the same architecture and weights. Received: a session "
                    "of another model."
                )
            if header.get(name) != value:
                raise ValueError(
                    f"`path` must be a session with the same {name}. Received: {header.get(name)!r}, expected "
                    f"{value!r}."
                )
        token_ids = [int(token) for token in content["token_ids"]]
        tensors = [
            ops.convert_to_tensor(_from_bytes(content[f"cache_{number}"], x), x.dtype)
            for number, x in enumerate(keras.tree.flatten(self._cache))
        ]
        self._ids = token_ids
        self._cache = keras.tree.pack_sequence_as(self._cache, tensors)

    def _header(self):
        """Return the header, which must be the same in a stored session."""
        return {
            "fingerprint": fingerprint(self.model),
            "max_length": self.max_length,
            "positions_in_cache": self._positions_in_cache,
            "cache": [[*map(int, x.shape), str(x.dtype)] for x in keras.tree.flatten(self._cache)],
        }


def fingerprint(model: keras.Model) -> str:
    """Return a hash of the architecture and the weights of a model. Names of layers do not count."""
    digest = hashlib.sha256()
    for weight in model.weights:
        value = np.ascontiguousarray(ops.convert_to_numpy(weight))
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(value.tobytes())
    config = keras.saving.serialize_keras_object(model)
    digest.update(json.dumps(_without_names(config), sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _without_names(config: Any) -> Any:
    """Remove the names of layers from a nested config: Keras numbers automatic names per process."""
    if isinstance(config, dict):
        return {key: _without_names(value) for key, value in config.items() if key not in ("name", "build_config")}
    return [_without_names(value) for value in config] if isinstance(config, (list, tuple)) else config


def _as_bytes(x: Tensor) -> np.ndarray:
    """Return a tensor as bytes: NumPy files have no bfloat16."""
    return np.frombuffer(np.ascontiguousarray(ops.convert_to_numpy(x)).tobytes(), "uint8")


def _from_bytes(content: np.ndarray, like: Tensor) -> np.ndarray:
    """Return the array of a tensor with the dtype and shape of another tensor."""
    dtype = ops.convert_to_numpy(like).dtype
    return np.frombuffer(content.tobytes(), dtype).reshape(tuple(like.shape))
