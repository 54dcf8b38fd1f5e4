"""Small random checkpoint in the published format with its vocabulary, to try conversions without a download."""

import contextlib
import json
import os
import pathlib
import pydoc_data.topics
import tempfile
import zipfile

import numpy as np

from tf_sparse_attention.atomic_files import atomic_folder
from tf_sparse_attention.convert.t2t.files import write_checkpoint
from tf_sparse_attention.convert.t2t.layout import STEP, Layout
from tf_sparse_attention.convert.t2t.settings import FILE
from tf_sparse_attention.data import train_subwords

CHECKPOINT, VOCABULARY = "checkpoint.zip", "vocab.subwords"  # names of the written files
BLOCK, CLUSTER_SIZE = 32, 64
SETTINGS = {
    "query_shape": [BLOCK],
    "memory_query_shape": [BLOCK],
    "memory_flange": [BLOCK],
    "share_qk": True,
    "sparsity_cluster_attention_window": CLUSTER_SIZE,
    "ffn_layer": "geglu",
}


def write_miniature(folder: str | os.PathLike, seed: int = 0, with_encoder: bool = False) -> pathlib.Path:
    """Write a small checkpoint in the format of the published PG-19 models, with its subword vocabulary.

    Variable names, layout and settings follow the published models: post-norm, GEGLU and local heads. In the last of 3
    layers, 2 of 4 heads are routed. The weights are random, so the model's predictions are meaningless. The vocabulary
    is trained on the topics of Python's help.

    Args:
        folder: the folder to create, with `checkpoint.zip` and `vocab.subwords`.
        seed: integer, seed of the random weights. Default: 0.
        with_encoder: whether to write an encoder-decoder, with 3 layers each. Default: False.

    Returns:
        The folder.

    Raises:
        ValueError: If `folder` already exists.

    Example:
        >>> folder = write_miniature("miniature")
        >>> model = from_t2t_checkpoint(folder / "checkpoint.zip")
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise ValueError(f"`folder` must not exist yet. Received: folder={folder}.")
    tokenizer = train_subwords(pydoc_data.topics.topics.values(), 300)
    with atomic_folder(folder) as temporary:
        temporary.mkdir()
        tokenizer.to_file(temporary / VOCABULARY)
        layout = _layout(tokenizer.vocabulary_size, with_encoder)
        _write_checkpoint(temporary / CHECKPOINT, layout, np.random.default_rng(seed))
    return folder


def _layout(vocabulary_size, with_encoder):
    return Layout(
        scope="sparse_transformer/body/",
        vocabulary_size=vocabulary_size,
        embedding_dim=16,
        hidden_dim=32,
        num_layers=3,
        intermediate_dim=64,
        activation="geglu",
        norm="post",
        num_heads=4,
        key_dim=8,
        value_dim=8,
        num_routing=2,
        num_clusters=4,
        routed=(2,),
        has_averages=True,
        local_distance=2 * BLOCK,
        routing_distance=2 * BLOCK,
        encoder_layers=3 if with_encoder else 0,
        encoder_routed=(2,) if with_encoder else (),
    )


def _write_checkpoint(path, layout, numbers):
    """Write a zip file with a checkpoint of random weights for a `Layout`, and its settings."""
    tensors = {layout.scope + name: _random(numbers, name, shape) for name, shape in layout.shapes.items()}
    with contextlib.ExitStack() as stack:
        prefix = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.ckpt-7"
        write_checkpoint(prefix, {**tensors, STEP: np.array(7)})
        archive = stack.enter_context(zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED))
        archive.writestr(FILE, json.dumps(SETTINGS, indent=2))
        for file in sorted(prefix.parent.iterdir()):
            archive.write(file, file.name)


def _random(numbers, name, shape):
    """Return values in the range of a newly initialized model."""
    if name.endswith("layer_norm_scale") or name.endswith("ema_count"):
        return np.ones(shape, "float32")
    if len(shape) < 2:
        return np.zeros(shape, "float32")
    return (numbers.normal(size=shape) * shape[0] ** -0.5).astype("float32")
