"""Long-form question answering: an answer to a question with passages.

The model is an encoder-decoder or, as published, a language model of the question, the passages and the answer (Krishna
et al. 2021, "Hurdles to Progress in Long-form Question Answering"). Only the answer is scored.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_collections
from rouge_score.rouge_scorer import RougeScorer

from tf_sparse_attention.trainers.tasks.pairs import PairTask
from tf_sparse_attention.trainers.tasks.task import Names, check_settings

# Settings of only the language model, or only the encoder-decoder.
LANGUAGE_MODEL_ONLY = {"model": ("preset", "start_from")}
ENCODER_ONLY = {"model": ("encoder_attention", "num_encoder_layers")}


class Task(PairTask):
    """Question answering with one tokenizer for both sides; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        **PairTask.settings,
        "model": (*PairTask.settings["model"], "start_from", "causal"),
    }

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        excluded = LANGUAGE_MODEL_ONLY if config.model.cross_attention else ENCODER_ONLY
        super().__init__(config, state)
        check_settings(config, {}, excluded)

    def score_targets(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Compute "rouge_l" from 0 to 100: the mean F1 of the longest common subsequence of words.

        Words are stemmed, as in the published evaluation of ELI5. "of_sources" has the score of the sources.
        """
        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        means = [
            sum(scorer.score(line["target"], line[side])["rougeL"].fmeasure for line in lines) / len(lines)
            for side in ("generated", "source")
        ]
        return {"rouge_l": 100 * means[0], "of_sources": {"rouge_l": 100 * means[1]}}
