"""SentencePiece tokenizer, based on tensorflow-text."""

import base64
import os
import pathlib
from typing import Any

from tf_sparse_attention.data.tokenizers.text_tokenizer import TextTokenizer
from tf_sparse_attention.types import Config


class SentencePieceTokenizer(TextTokenizer):
    """Tokenizer of a SentencePiece model (Kudo and Richardson 2018): piece i has the id i + 2.

    Not lossless: the model normalizes text, and unknown characters become its unknown piece. Needs tensorflow-text,
    also in a SavedModel.

    Args:
        model: content of a model file, `bytes`, or its base64 encoding, `str`.

    Raises:
        ValueError: If `model` is not a SentencePiece model.
        ImportError: If tensorflow-text is not installed.

    Example:

    >>> tokenizer = SentencePieceTokenizer.from_file("spm.model")
    >>> tokenizer.detokenize(tokenizer.tokenize("Text number 1."))
    'Text number 1.'
    """

    def __init__(self, model: bytes | str) -> None:
        super().__init__()
        self._model = base64.b64decode(model) if isinstance(model, str) else bytes(model)
        import tensorflow as tf

        try:
            self._num_pieces = int(self.inner.vocab_size())
        except tf.errors.OpError as error:
            raise ValueError(f"`model` must be a SentencePiece model. Received: {len(self._model)} bytes.") from error

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SentencePieceTokenizer":
        """Load a tokenizer from a model file, NAME.model."""
        path = pathlib.Path(path).expanduser()
        if not path.is_file():
            raise ValueError(f"`path` must be a SentencePiece model file. Received: path={path}.")
        return cls(path.read_bytes())

    @property
    def num_pieces(self) -> int:
        return self._num_pieces

    @property
    def trackable(self) -> Any:
        """Tokenizer of tensorflow-text, which holds the model."""
        return self.inner

    def _make(self, tensorflow_text):
        # `FastSentencepieceTokenizer` differs from SentencePiece for BPE models.
        return tensorflow_text.SentencepieceTokenizer(self._model)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"model": base64.b64encode(self._model).decode("ascii")}
