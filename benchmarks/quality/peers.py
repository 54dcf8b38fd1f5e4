"""PyTorch's routing-transformer on recall tasks: `python -m benchmarks.quality.peers`.

Needs an environment with NumPy, `torch` and `routing-transformer` (which installs `local-attention`). The model is as
large as those of `benchmarks.quality.recall`, has two local heads of four with the same window, and learns the same
sequences. "shifted" uses the option `shift_tokens`: half of the channels come from the previous token. Its clusters
select members among all tokens, so only tasks without the answer later in the sequence are used.
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
    """Return the language model of routing-transformer."""
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
    """Return a function of token ids (B, T) and positions (B, A), to logits (B, A, V) and the auxiliary loss."""
    import torch

    to_vocabulary, model.out = model.out, torch.nn.Identity()
    model.to_vocabulary = to_vocabulary  # keeps its weights in the model

    def answer(token_ids, at):
        vectors, auxiliary = model(torch.from_numpy(token_ids).long())
        rows = torch.arange(len(at))[:, None]
        return to_vocabulary(vectors[rows, torch.from_numpy(at).long()]), auxiliary.sum()

    return answer


def train(task: Task, shift_tokens: bool, seed: int, steps: int = tasks.STEPS) -> dict:
    """Train a model from a seed and return its `tasks.scores`."""
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
