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


def description_of(tokenizer: Any) -> dict[str, Any]:
    """Returns the class and the configuration of a tokenizer, plain data."""
    return {"class": type(tokenizer).__name__, "config": tokenizer.get_config()}


def from_description(description: dict[str, Any]) -> Any:
    """Returns the tokenizer that `description_of` describes.

    Raises:
        ValueError: If its class is not one of the library's.
    """
    classes = {kind.__name__: kind for kind in KINDS.values()}
    if description.get("class") not in classes:
        raise ValueError(f"`class` must be one of {', '.join(classes)}. Received: class={description.get('class')}.")
    return classes[description["class"]].from_config(description["config"])
