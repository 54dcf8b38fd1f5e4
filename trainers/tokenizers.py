"""The tokenizer of a configuration."""

import tf_sparse_attention as tsa

# Each by its name in a configuration; all but bytes are read from a file.
KINDS = {
    "bytes": tsa.data.ByteTokenizer,
    "subword": tsa.data.SubwordTokenizer,
    "sentencepiece": tsa.data.SentencePieceTokenizer,
    "wordpiece": tsa.data.WordPieceTokenizer,
}


def make_tokenizer(config):
    """Returns the tokenizer that `config.data` names.

    Raises:
        ValueError: For an unknown name, or a vocabulary that is missing or not needed.
    """
    name, path = config.data.tokenizer, config.data.vocabulary
    if name not in KINDS:
        raise ValueError(f"`config.data.tokenizer` must be one of {', '.join(KINDS)}. Received: {name}.")
    if name == "bytes":
        if path is not None:
            raise ValueError(f"`config.data.vocabulary` must be unset for bytes, which need none. Received: {path}.")
        return KINDS[name]()
    if path is None:
        raise ValueError(
            f"`config.data.vocabulary` must be the file of a {name} tokenizer; `python -m trainers.vocabulary` finds "
            "the subwords of a text. Received: None."
        )
    return KINDS[name].from_file(path)
