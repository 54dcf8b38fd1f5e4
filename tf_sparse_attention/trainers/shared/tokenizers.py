"""Tokenizers of configurations and runs."""

import os
from typing import Any

import tf_sparse_attention as tsa
from tf_sparse_attention.data.local_paths import local_path

# Tokenizers by their name in a configuration, see `base.TOKENIZERS`. All except bytes are loaded from a file.
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
    """Create a tokenizer.

    Args:
        name: one of `KINDS`.
        path: file or address of the vocabulary. None for bytes.
        settings: names of the settings of `name` and `path` in error messages.

    Raises:
        ValueError: If the name is unknown, or a vocabulary is missing or not needed.
    """
    if name not in KINDS:
        raise ValueError(f"`{settings[0]}` must be one of {', '.join(KINDS)}. Received: {name}.")
    if name == "bytes":
        if path is not None:
            raise ValueError(f"`{settings[1]}` must be unset for bytes. Received: {path}.")
        return KINDS[name]()
    if path is None:
        raise ValueError(
            f"`{settings[1]}` must be the file of a {name} tokenizer. `tsa-vocabulary` creates a vocabulary of "
            "subwords. Received: None."
        )
    return KINDS[name].from_file(local_path(path))


def describe(tokenizer: Any) -> dict[str, Any]:
    """Return the class and the config of a tokenizer, as plain data."""
    return {"class": type(tokenizer).__name__, "config": tokenizer.get_config()}


def from_description(description: dict[str, Any]) -> Any:
    """Create a tokenizer from the result of `describe`.

    Raises:
        ValueError: If the class of the tokenizer is not in the library.
    """
    classes = {kind.__name__: kind for kind in KINDS.values()}
    if description.get("class") not in classes:
        raise ValueError(f"`class` must be one of {', '.join(classes)}. Received: class={description.get('class')}.")
    return classes[description["class"]].from_config(description["config"])
