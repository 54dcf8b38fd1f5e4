"""Mapping from the weight names of an `Encoder` to the names of BERT-like models in Hugging Face format."""

from collections.abc import Iterable

ROOTS = ("", "longformer.", "bert.")  # prefixes of the encoder in checkpoints of models with a task head
PARTS = ("embeddings.", "encoder.", "pooler.")
COUNTERS = ("position_ids", "token_type_ids")  # saved by older checkpoints
NAME_VARIANTS = {"pooler.dense.": "pooler.", ".gamma": ".weight", ".beta": ".bias"}


# Weights of a layer: from our names to the names of Hugging Face.
DENSE = {"kernel": "weight", "bias": "bias"}
NORM = {"gamma": "weight", "beta": "bias"}


def _names():
    names = {
        f"{own}_embedding/embeddings": f"embeddings.{theirs}_embeddings.weight"
        for own, theirs in (("token", "word"), ("position", "position"), ("segment", "token_type"))
    }
    block = "encoder.layer.{index}."
    dense = {
        **{f"attention/{part}": f"{block}attention.self.{part}" for part in ("query", "key", "value")},
        **{f"attention/global_{part}": f"{block}attention.self.{part}_global" for part in ("query", "key", "value")},
        "attention/attention_output": f"{block}attention.output.dense",
        "feed_forward/inner": f"{block}intermediate.dense",
        "feed_forward/output": f"{block}output.dense",
        "pooler": "pooler",
    }
    norms = {
        "embedding_norm": "embeddings.LayerNorm",
        "attention_norm": f"{block}attention.output.LayerNorm",
        "feed_forward_norm": f"{block}output.LayerNorm",
    }
    for layers, weights in ((dense, DENSE), (norms, NORM)):
        for own, theirs in layers.items():
            names |= {f"{own}/{ours}": f"{theirs}.{name}" for ours, name in weights.items()}
    return names


NAMES = _names()


def find_root(names: Iterable[str]) -> str:
    """Return the prefix of the encoder's names in a checkpoint, such as "longformer."."""
    return next((root for root in ROOTS if any(name.startswith(f"{root}embeddings.") for name in names)), "")


def name_in_encoder(name: str, root: str) -> str | None:
    """Return the name of an encoder's weight without the prefix; None for task heads and saved position ids."""
    own = name.removeprefix(root)
    if not name.startswith(root) or not own.startswith(PARTS) or own.endswith(COUNTERS):
        return None
    for variant, usual in NAME_VARIANTS.items():
        own = own.replace(variant, usual)
    return own
