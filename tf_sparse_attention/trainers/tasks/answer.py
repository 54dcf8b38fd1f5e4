"""The task of long answers: a question with passages that may help is read, and an answer written.

By an encoder-decoder, or as published by one language model, which reads both and then the answer (Krishna et al. 2021,
"Hurdles to Progress in Long-form Question Answering"); the answer alone is scored.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_collections
from rouge_score.rouge_scorer import RougeScorer

from tf_sparse_attention.trainers.tasks import pairs
from tf_sparse_attention.trainers.tasks.pairs import PairTask
from tf_sparse_attention.trainers.tasks.settings import Names, check_settings

# Settings of one of the two kinds of models.
OF_LANGUAGE_MODELS = {"model": ("preset", "start_from")}
OF_ENCODERS = {"model": ("encoder_attention", "num_encoder_layers")}


class Task(PairTask):
    """Answers to questions, with one tokenizer for both; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": pairs.DATA,
        "model": (*pairs.MODEL, "start_from", "causal"),
        "train": pairs.TRAIN,
        "generate": pairs.GENERATE,
    }

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        check_settings(config, pairs.FIELDS, OF_LANGUAGE_MODELS if config.model.cross_attention else OF_ENCODERS)
        super().__init__(config, state)

    def score_targets(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns ROUGE-L from 0 to 100, the mean F1 of the longest common subsequences of words, and that of sources.

        Args:
            lines: what `GeneratedTargets.complete` returns.

        Returns:
            Dictionary: "rouge_l", with stems, as the published evaluation of ELI5 has it, and again under "of_sources".
        """
        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        means = [
            sum(scorer.score(line["target"], line[side])["rougeL"].fmeasure for line in lines) / len(lines)
            for side in ("generated", "source")
        ]
        return {"rouge_l": 100 * means[0], "of_sources": {"rouge_l": 100 * means[1]}}
