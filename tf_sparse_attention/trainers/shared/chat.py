"""Conversations with a trained model, for `tsa-generate --chat`."""

from collections.abc import Callable, Iterable
from typing import Any

from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.trainers.shared import sample_sources, sampling

CHUNK_SIZE = 4  # tokens per piece of an answer


def chat(
    source: Any,
    turns: Iterable[str],
    show: Callable[[str], None],
    length: int | None,
    seed: int,
    context_length: int,
    settings: dict[str, Any] | None = None,
) -> None:
    """Answer the turns of a conversation; see `ChatSession`.

    Args:
        source: a `LocalModelSource` of a `LanguageModel`.
        turns: texts. The answer directly follows each text.
        show: function that receives each piece of an answer, then a line break.
        length: maximum number of tokens of an answer. None: the default of the source.
        seed: integer.
        context_length: maximum number of tokens of the conversation.
        settings: arguments of `tf_sparse_attention.generation.Sampling`. None: the defaults of the source.

    Raises:
        ValueError: if the source has no language model, a setting is out of range, or the conversation is too long.
    """
    if type(source) is not sample_sources.LocalModelSource or not isinstance(source.model, LanguageModel):
        raise ValueError(
            "`chat` must be False unless the model is a language model, from --workdir, --model or --preset. Received: "
            f"{type(source).__name__}."
        )
    defaults = {name: value for name, value in source.defaults.items() if name != "prompt"}
    default_length = defaults.pop("length")
    length = default_length if length is None else length
    strategy = sample_sources.make_strategy(defaults | (settings or {}))
    tokenizer, stops = source.tokenizer, (source.tokenizer.end_id,)
    session = source.model.chat_session(context_length, strategy, tokenizer, seed, stops)
    for turn in turns:
        session.append(turn)
        for piece in session.generate(length, chunk_size=CHUNK_SIZE):
            show(sampling.printable(piece))
        show("\n")
