"""Names of the weights of BERT's descendants in the layout of Hugging Face, by those of an `Encoder`."""

ROOTS = ("", "longformer.", "bert.")  # below which a checkpoint of a task has its encoder
PARTS = ("embeddings.", "encoder.", "pooler.")
COUNTERS = ("position_ids", "token_type_ids")  # that older checkpoints saved
OTHER_SPELLINGS = {"pooler.dense.": "pooler.", ".gamma": ".weight", ".beta": ".bias"}


def _names():
    names = {
        f"{own}_embedding/embeddings": f"embeddings.{theirs}_embeddings.weight"
        for own, theirs in (("token", "word"), ("position", "position"), ("segment", "token_type"))
    }
    layers = {
        **{f"attention/{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
        **{f"attention/global_{part}": f"attention.self.{part}_global" for part in ("query", "key", "value")},
        "attention/attention_output": "attention.output.dense",
        "feed_forward/inner": "intermediate.dense",
        "feed_forward/output": "output.dense",
    }
    for own, theirs in layers.items():
        names[f"{own}/kernel"] = f"encoder.layer.{{index}}.{theirs}.weight"
        names[f"{own}/bias"] = f"encoder.layer.{{index}}.{theirs}.bias"
    norms = {
        "embedding_norm": "embeddings.LayerNorm",
        "attention_norm": "encoder.layer.{index}.attention.output.LayerNorm",
        "feed_forward_norm": "encoder.layer.{index}.output.LayerNorm",
    }
    for own, theirs in norms.items():
        names[f"{own}/gamma"] = f"{theirs}.weight"
        names[f"{own}/beta"] = f"{theirs}.bias"
    names["pooler/kernel"], names["pooler/bias"] = "pooler.weight", "pooler.bias"
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
