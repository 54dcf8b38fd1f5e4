"""Translation of documents or paragraphs with an encoder-decoder."""

from collections.abc import Sequence
from typing import Any

import ml_collections
import sacrebleu

from tf_sparse_attention.trainers.tasks.pairs import PairTask
from tf_sparse_attention.trainers.tasks.task import check_settings

REQUIRED = {"model": ("num_layers", "hidden_dim", "attention", "cross_attention")}
# A preset specifies encoder and decoder.
EXCLUDED_WITH_PRESET = {"model": ("encoder_attention", "num_encoder_layers")}


class Task(PairTask):
    """Translation with one tokenizer for sources and targets; see `trainers.tasks.task.Task`."""

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        super().__init__(config, state)
        if config.model.preset is None:
            check_settings(config, REQUIRED, {})
        else:
            check_settings(config, {}, EXCLUDED_WITH_PRESET)

    @property
    def has_encoder(self) -> bool:
        return True

    def score_targets(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Compute "bleu" and "chrf" from 0 to 100, with each text as one segment, and their signatures of sacrebleu.

        "of_sources" has both scores of the untranslated sources.
        """
        targets = [[line["target"] for line in lines]]
        metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
        of_generated, of_sources = (
            {
                name: metric.corpus_score([line[side] for line in lines], targets).score
                for name, metric in metrics.items()
            }
            for side in ("generated", "source")
        )
        signatures = {f"{name}_signature": str(metric.get_signature()) for name, metric in metrics.items()}
        return {**of_generated, "of_sources": of_sources, **signatures}
