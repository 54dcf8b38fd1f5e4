"""Names of the weights of BERT's descendants in the layout of Hugging Face, by those of an `Encoder`."""

ROOTS = ("", "longformer.", "bert.")  # below which a checkpoint of a task has its encoder
PARTS = ("embeddings.", "encoder.", "pooler.")
COUNTERS = ("position_ids", "token_type_ids")  # that older checkpoints saved
OTHER_SPELLINGS = {"pooler.dense.": "pooler.", ".gamma": ".weight", ".beta": ".bias"}


# The weights of a layer, ours and theirs.
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


def root_of(names):
    """Returns the beginning that all names of an encoder have in a checkpoint, as "longformer."."""
    return next((root for root in ROOTS if any(name.startswith(f"{root}embeddings.") for name in names)), "")


def name_in_encoder(name, root):
    """Returns the name of a weight below an encoder; None for weights of heads, and for counters."""
    own = name.removeprefix(root)
    if not name.startswith(root) or not own.startswith(PARTS) or own.endswith(COUNTERS):
        return None
    for other, usual in OTHER_SPELLINGS.items():
        own = own.replace(other, usual)
    return own
