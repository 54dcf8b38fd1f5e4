"""The routing transformer of PyTorch on tasks of recall: `python -m benchmarks.quality.peers`.

Needs an environment with `torch` and `routing-transformer` (which brings `local-attention`), and nothing of this one
but NumPy. A model as large as those of `benchmarks.quality.recall`, two of its four heads local with the same window,
learns the same sequences; "shifted" has its option `shift_tokens`, by which half of the channels are those of the token
before. Only tasks in which no answer stands later in the sequence: its clusters choose members among all tokens.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.quality import results, tasks
from benchmarks.quality.cells import SEEDS
from benchmarks.quality.tasks import TASKS, Task

NAMES = ("associative_recall", "induction")
KINDS = {"routing_transformer": False, "routing_transformer_shifted": True}  # whether tokens are shifted
CLUSTER_SIZE = 64


def build(task: Task, shift_tokens: bool) -> Any:
    """Return the peer's language model."""
    from routing_transformer import RoutingTransformerLM

    return RoutingTransformerLM(
        num_tokens=task.vocabulary_size,
        dim=tasks.HIDDEN_DIM,
        depth=tasks.NUM_LAYERS,
        max_seq_len=max(task.test_lengths),
        heads=4,
        dim_head=32,
        window_size=CLUSTER_SIZE,
        local_attn_window_size=tasks.WINDOW,
        n_local_attn_heads=2,
        causal=True,
        shift_tokens=shift_tokens,
        tie_embedding=task.tie_embeddings,
    )


def answers_of(model: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return a function of token ids and positions (B, A): the logits there, and what the model adds to the loss."""
    import torch

    to_vocabulary, model.out = model.out, torch.nn.Identity()
    model.to_vocabulary = to_vocabulary  # its weights stay the model's

    def answer(token_ids, at):
        vectors, auxiliary = model(torch.from_numpy(token_ids).long())
        rows = torch.arange(len(at))[:, None]
        return to_vocabulary(vectors[rows, torch.from_numpy(at).long()]), auxiliary.sum()

    return answer


def train(task: Task, shift_tokens: bool, seed: int, steps: int = tasks.STEPS) -> dict:
    """Return the `tasks.scores` of a model trained from a seed."""
    import torch

    torch.manual_seed(seed)
    model = build(task, shift_tokens)
    answer = answers_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    for step, (token_ids, targets) in enumerate(tasks.training_batches(task, seed, steps)):
        warm = min((step + 1) / tasks.WARMUP_STEPS, 1)
        done = max(step - tasks.WARMUP_STEPS, 0) / (steps - tasks.WARMUP_STEPS)
        optimizer.param_groups[0]["lr"] = tasks.LEARNING_RATE * warm * (1 + np.cos(np.pi * done)) / 2
        at, answers = tasks.asked(targets)
        logits, auxiliary = answer(token_ids, at)
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), torch.from_numpy(answers).long()) + auxiliary
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()

    def logits_of(token_ids, at):
        with torch.no_grad():
            return answer(token_ids, at)[0].numpy()

    return tasks.scores(logits_of, task, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES), help="default: all")
    options = parser.parse_args()
    runs = itertools.product(options.tasks, KINDS, SEEDS)
    keys = [{"task": task, "kind": kind, "seed": seed} for task, kind, seed in runs]
    results.run_missing(keys, lambda task, kind, seed: train(TASKS[task], KINDS[kind], seed), tasks.RESULTS)


if __name__ == "__main__":
    main()
