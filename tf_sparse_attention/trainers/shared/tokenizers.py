"""Creates the tokenizer of a configuration."""

import os
from typing import Any

import tf_sparse_attention as tsa
from tf_sparse_attention.data.local_paths import local_path

# By name in a configuration, `base.TOKENIZERS`; all but bytes are read from a file.
KINDS: dict[str, Any] = {
    "bytes": tsa.data.ByteTokenizer,
    "subword": tsa.data.SubwordTokenizer,
    "sentencepiece": tsa.data.SentencePieceTokenizer,
    "wordpiece": tsa.data.WordPieceTokenizer,
}


def make_tokenizer(
    name: str,
    path: str | os.PathLike | None = None,
    settings: tuple[str, str] = ("config.data.tokenizer", "config.data.vocabulary"),
) -> Any:
    """Returns a tokenizer.

    Args:
        name: one of `KINDS`.
        path: file of its vocabulary, or its address; None for bytes.
        settings: names of the two settings in error messages.

    Raises:
        ValueError: For an unknown name, or a vocabulary that is missing or not needed.
    """
    if name not in KINDS:
        raise ValueError(f"`{settings[0]}` must be one of {', '.join(KINDS)}. Received: {name}.")
    if name == "bytes":
        if path is not None:
            raise ValueError(f"`{settings[1]}` must be unset for bytes, which need none. Received: {path}.")
        return KINDS[name]()
    if path is None:
        raise ValueError(
            f"`{settings[1]}` must be the file of a {name} tokenizer; `tsa-vocabulary` finds "
            "the subwords of a text. Received: None."
        )
    return KINDS[name].from_file(local_path(path))
