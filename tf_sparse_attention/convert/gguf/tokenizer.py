"""Tokenizers of GGUF files, by the package `tokenizers`, as tokenizers of KerasHub."""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import keras
import keras_hub
import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

KEY = "tokenizer.ggml."
FILE = "tokenizer.json"
CONTROL, USER_DEFINED = 3, 4  # types of tokens that the text is split at
SPACE = "\u2581"
# Meaning of llama.cpp's names of pre-tokenizers.
LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
LLAMA3_WORDS += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_WORDS = LLAMA3_WORDS.replace("{1,3}", "")


def _split(pattern: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]


WORDS: dict[str, list[Any]] = {
    "default": [pre_tokenizers.ByteLevel(False)],
    "gpt-2": [pre_tokenizers.ByteLevel(False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)],
    "llama-bpe": _split(LLAMA3_WORDS),
    "qwen2": _split(QWEN2_WORDS),
}


@keras.saving.register_keras_serializable("tf_sparse_attention")
class GgufTokenizer(keras_hub.tokenizers.Tokenizer):
    """The tokenizer of a GGUF file.

    Args:
        content: the tokenizer as JSON of the package `tokenizers`. None: it is loaded later by `load_assets`.
        start_token_id: id of the token before a text, or None.
        end_token_id: id of the token after a text.
        pad_token_id: id of padding.
    """

    def __init__(
        self,
        content: str | None = None,
        start_token_id: int | None = None,
        end_token_id: int = 0,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "int32", **kwargs})
        self.file_assets = [FILE]
        self.start_token_id, self.end_token_id, self.pad_token_id = start_token_id, end_token_id, pad_token_id
        self._tokenizer: Any = None if content is None else tokenizers.Tokenizer.from_str(content)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the tokenizer that the metadata of a GGUF file describe.

        Raises:
            Exception: If it is of an unknown type, or if entries are missing or wrong.
        """
        kind, tokens = metadata.get(f"{KEY}model"), metadata[f"{KEY}tokens"]
        if kind not in MAKERS:
            raise ValueError(f"{KEY}model must be one of {sorted(MAKERS)}, not {kind!r}.")
        tokenizer = MAKERS[kind](metadata)
        for token, number in zip(tokens, metadata.get(f"{KEY}token_type") or [1] * len(tokens), strict=True):
            if number in (CONTROL, USER_DEFINED):
                tokenizer.add_tokens([AddedToken(token, normalized=False, special=number == CONTROL)])
        end = _token_id(metadata, "eos_token_id", 0)
        has_start = metadata.get(f"{KEY}add_bos_token", kind == "llama")
        return cls(
            tokenizer.to_str(),
            start_token_id=_token_id(metadata, "bos_token_id") if has_start else None,
            end_token_id=end,
            # KerasHub ends a text at the first end token, also among padding.
            pad_token_id=next(index for index in (_token_id(metadata, "padding_token_id", 0), 0, 1) if index != end),
        )

    @property
    def special_token_ids(self) -> list[int]:
        """Ids that are removed from generated text."""
        ids = self.start_token_id, self.end_token_id, self.pad_token_id
        return sorted({index for index in ids if index is not None})

    def tokenize(self, inputs: str | Sequence[str]) -> Any:
        """Return the ids of a text, as an array, or of several texts, as a list of lists."""
        if isinstance(inputs, str):
            return np.array(self._tokenizer.encode(inputs, add_special_tokens=False).ids, self.dtype)
        return [each.ids for each in self._tokenizer.encode_batch(list(inputs), add_special_tokens=False)]

    def call(self, inputs: str | Sequence[str]) -> Any:
        """Same as `tokenize`."""
        return self.tokenize(inputs)

    def detokenize(self, inputs: Any) -> Any:
        """Return the text of ids, or the texts of rows of ids."""
        rows = [np.asarray(row) for row in inputs] if np.ndim(inputs[0]) else [np.asarray(inputs)]
        texts = self._tokenizer.decode_batch([row.tolist() for row in rows], skip_special_tokens=False)
        return texts if np.ndim(inputs[0]) else texts[0]

    def get_vocabulary(self) -> list[str]:
        """Return all tokens in the order of their ids."""
        return [self.id_to_token(index) for index in range(self.vocabulary_size())]

    def vocabulary_size(self) -> int:
        """Return the number of tokens."""
        return self._tokenizer.get_vocab_size()

    def id_to_token(self, id: int) -> str:
        """Return the token of an id."""
        return self._tokenizer.id_to_token(id)

    def token_to_id(self, token: str) -> int:
        """Return the id of a token."""
        return self._tokenizer.token_to_id(token)

    def save_assets(self, dir_path: str) -> None:
        """Write the tokenizer to a folder."""
        pathlib.Path(dir_path, FILE).write_text(self._tokenizer.to_str(), encoding="utf-8")

    def load_assets(self, dir_path: str) -> None:
        """Read the tokenizer from a folder."""
        self._tokenizer = tokenizers.Tokenizer.from_file(os.path.join(dir_path, FILE))

    def get_config(self) -> dict[str, Any]:
        names = "start_token_id", "end_token_id", "pad_token_id"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _token_id(metadata: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the id of a special token, such as "eos_token_id".

    Raises:
        ValueError: If it is not the id of a token.
    """
    index, count = metadata.get(KEY + name, default), len(metadata[f"{KEY}tokens"])
    if not isinstance(index, int) or not 0 <= index < count:
        raise ValueError(f"{KEY}{name} must be the id of one of {count} tokens, not {index!r}.")
    return index


def _make_byte_level(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return byte-pair encoding of bytes with merges, as in GPT-2 and Llama 3."""
    name = metadata.get(f"{KEY}pre", "default")
    if name not in WORDS:
        raise ValueError(f"{KEY}pre must be one of {sorted(WORDS)}, not {name!r}.")
    merges = [tuple(merge.split(" ")) for merge in metadata[f"{KEY}merges"]]
    made = tokenizers.Tokenizer(models.BPE(_ids(metadata), merges))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(WORDS[name]), decoders.ByteLevel()
    return made


def _make_sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return byte-pair encoding of characters with scores, as in SentencePiece: Llama 1 and 2, Gemma."""
    ids, scores = _ids(metadata), metadata[f"{KEY}scores"]
    unknown = metadata[f"{KEY}tokens"][_token_id(metadata, "unknown_token_id", 0)]
    merges = sorted(_merges(ids), key=lambda pair: -scores[ids["".join(pair)]])
    made = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend(SPACE)] if metadata.get(f"{KEY}add_space_prefix", True) else []
    made.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return made


def _merges(ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Iterate over the pairs of tokens that together are a token."""
    for token in ids:
        for cut in range(1, len(token)):
            if token[:cut] in ids and token[cut:] in ids:
                yield token[:cut], token[cut:]


def _ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata[f"{KEY}tokens"])}


MAKERS = {"gpt2": _make_byte_level, "llama": _make_sentencepiece}
