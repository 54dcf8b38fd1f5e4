"""Encoder-decoders of every pattern, and differences of LiteRT and ONNX Runtime from Keras, for the table."""

import keras
import numpy as np
import tensorflow as tf

from tests.export import portable_cases as parts
from tests.export.portable_cases import flat, numbers, randomized, sparse
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.patterns import Dilated, First, Hashed, Nearest, Stride, Summary, TopKeys, Window

SOURCES, WORDS = 31, 30
# As long as targets, which heads of the nearest cluster need across.
LENGTH = SOURCE_LENGTH = parts.SIZES["max_length"]
DENSE = {"layer": "DenseAttention", **parts.HEADS}
GLOBAL = {"layer": "GlobalLocalAttention", **parts.HEADS, "window": 4, "num_first_global": 1}
CLUSTERED = {"layer": "ClusteredAttention", **parts.HEADS, "num_clusters": 3}
NEAREST = {**parts.ROUTING, "selection": "nearest"}
SEPARATE = {**NEAREST, "share_qk": False}

# Heads by what the table calls them: those of the encoder for `encode`, those across for `decode`.
CASES = {
    "local, window": parts.LOCAL,
    "local, blocks": parts.BLOCKS,
    "local, two dimensions": parts.IMAGE,
    "dense": DENSE,
    "strided": parts.STRIDED,
    "fixed": parts.FIXED,
    "routing, nearest": SEPARATE,
    "routing, nearest, shared": NEAREST,
    "routing, top_k": {**SEPARATE, "selection": "top_k"},
    "routing, top_keys": {**SEPARATE, "selection": "top_keys"},
    "hashing (LSH), band": {**parts.LSH, "share_qk": False},
    "hashing (LSH), chunks": {**parts.LSH, "share_qk": False, "selection": "chunks"},
    "all-attention": parts.ALL,
    "global tokens": GLOBAL,
    "clustered": CLUSTERED,
    "`Window(4)`": sparse(Window(4)),
    "`Window(4) \\| First(2)`": sparse(Window(4) | First(2)),
    "`Dilated(2, 3)`": sparse(Dilated(2, 3)),
    "`Stride(4) \\| Summary(4, 1)`": sparse(Stride(4) | Summary(4, 1)),
    "`Window(4) \\| Nearest(3, 4)`": sparse(Window(4) | Nearest(3, 4)),
    "`Window(4) \\| Hashed(4, 4)`": sparse(Window(4) | Hashed(4, 4)),
    "`Window(4) \\| TopKeys(3, 4)`": sparse(Window(4) | TopKeys(3, 4)),
}


def make(signature, heads, of_encoder=None, **of_decoder):
    """Return a `SequenceToSequence` with these heads where a signature computes them, "encode" or "decode"."""
    encoder, across = (heads, DENSE) if signature == "encode" else (parts.LOCAL, heads)
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 24, "seed": 0}
    of_decoder = {"attention": [parts.LOCAL], "cross_attention": [across], **of_decoder}
    of_encoder = {"vocabulary_size": SOURCES, "attention": [encoder], "causal": False, **(of_encoder or {})}
    decoder = LanguageModel(Backbone(WORDS, **sizes, **of_decoder))
    return randomized(SequenceToSequence(Backbone(**sizes, **of_encoder), decoder))


def random_rows(source_length=SOURCE_LENGTH):
    """Return inputs of `encode`, of which one row is padded, and ids of targets."""
    random = np.random.default_rng(0)
    ids = random.integers(1, SOURCES, size=(2, source_length), dtype="int32")
    source = {"source_ids": ids, "num_source_tokens": np.array([source_length, 6], "int32")}
    return source, random.integers(WORDS, size=(2, LENGTH), dtype="int32")


def logits_of(model, source, targets):
    """Return the logits (2, T, V) of targets after their sources."""
    return numbers(model({**_inputs_of(source), "decoder_token_ids": targets}))


def _inputs_of(source):
    mask = np.arange(source["source_ids"].shape[1]) < source["num_source_tokens"][:, None]
    return {"encoder_token_ids": source["source_ids"], "encoder_padding_mask": mask}


def encode_error(model, run):
    """Return the largest difference of what a file and the model keep of a source."""
    source, _ = random_rows()
    encoded = model.encode({name: tf.constant(x) for name, x in _inputs_of(source).items()}, training=False)
    wanted = dict(flat(model.decoder.init_cache(2, LENGTH, **encoded)))
    found = run("encode", source)
    return max(float(np.abs(x.astype("float64") - wanted[name]).max()) for name, x in found.items())


def decode_error(model, run, source_length=SOURCE_LENGTH):
    """Return the largest difference of logits between steps of a file after a source and one call of the model."""
    source, targets = random_rows(source_length)
    whole = logits_of(model, source, targets)
    inputs, worst = {**run.zeros("decode"), **run("encode", source)}, 0.0
    for step in range(LENGTH):
        inputs["token_ids"], inputs["index"] = targets[:, step : step + 1], np.full(2, step, "int32")
        outputs = run("decode", inputs)
        inputs |= {name: outputs["new_" + name] for name in inputs if "new_" + name in outputs}
        worst = max(worst, float(np.abs(outputs["logits"] - whole[:, step]).max()))
    return worst
