"""Language models of every pattern, and differences of LiteRT and ONNX Runtime from Keras, for tests and the table."""

import contextlib
import io
import sys
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.contracts import nats_of
from tests.pages import DOCS, blocks
from tf_sparse_attention.export import export_litert, export_onnx
from tf_sparse_attention.models import Backbone, LanguageModel, SpeechRecognizer
from tf_sparse_attention.patterns import Dilated, First, Hashed, Nearest, Stride, Successors, Summary, Window

PAGE = DOCS / "portable.md"
LENGTH, ROWS, VOCABULARY = 21, 2, 30
SIZES = {"batch_size": ROWS, "sequence_length": LENGTH, "max_length": LENGTH}
HEADS = {"num_heads": 2, "key_dim": 4}
LOCAL = {"layer": "LocalAttention", **HEADS, "window": 6}
BLOCKS = {"layer": "LocalAttention", **HEADS, "block_size": 4}
ROUTING = {"layer": "RoutingAttention", **HEADS, "num_clusters": 3, "cluster_size": 4}
STRIDED = {"layer": "StridedAttention", **HEADS, "stride": 4}
FIXED = {"layer": "FixedAttention", **HEADS, "block_size": 4, "num_summary": 2}
ALL = {"layer": "AllAttention", **HEADS, "num_persistent": 3, "window": 6}
LSH = {"layer": "LSHAttention", **HEADS, "num_buckets": 4, "bucket_size": 4, "num_rounds": 2}
IMAGE = {"layer": "LocalAttention2D", **HEADS, "width": 5, "block_shape": (2, 2)}
SELECTED = {"block_size": 4, "num_blocks": 2, "position": "rotary"}
MODERN = {"num_key_value_heads": 1, "use_query_key_norm": True, "use_gate": True, "use_sink": True}
MODERN |= {"logit_soft_cap": 2.0, "position": "rotary", "rotary_type": "yarn", "rotary_scaling_factor": 4.0}
POSITIONS = (None, "relative", "rotary", "alibi")


def sparse(pattern):
    """Return heads of a composition of patterns."""
    return {"layer": "SparseAttention", **HEADS, "pattern": pattern}


# The arguments of `Backbone` by what the table calls it.
CASES = {
    **{f"local, window, position {kind}": {"attention": [{**LOCAL, "position": kind}]} for kind in POSITIONS},
    "local, blocks": {"attention": [{**BLOCKS, "position": "relative"}]},
    **{f"routing, nearest, position {kind}": {"attention": [{**ROUTING, "position": kind}]} for kind in POSITIONS},
    "routing, nearest, separate queries and keys": {"attention": [{**ROUTING, "share_qk": False}]},
    "routing, nearest, relative by token": {"attention": [{**ROUTING, "position": "relative", "distance": "token"}]},
    "routing, nearest, successor values": {"attention": [{**ROUTING, "use_successor_values": True}]},
    "local and routing, three blocks": {
        "attention": {"parts": [{**LOCAL, "position": "rotary"}, ROUTING], "num_local_layers": 1},
        "num_layers": 3,
        "activation": "geglu",
        "norm": "post",
        "embedding": {"dim": 12},
    },
    "routing, top_k": {"attention": [{**ROUTING, "selection": "top_k"}]},
    "routing, random": {"attention": [{**ROUTING, "selection": "random"}]},
    "strided, split": {"attention": [STRIDED]},
    "strided, merged": {"attention": [{**STRIDED, "heads": "merged"}]},
    "strided, interleaved, grid embedding": {
        "attention": [{**STRIDED, "heads": "interleaved"}],
        "embedding": {"grid": (5, 5)},
    },
    "fixed, split": {"attention": [FIXED]},
    "fixed, interleaved, sinusoidal embedding": {
        "attention": [{**FIXED, "heads": "interleaved"}],
        "embedding": {"sinusoidal": True},
    },
    "all-attention": {"attention": [ALL], "intermediate_dim": None},
    "adaptive span": {"attention": [{**LOCAL, "adaptive_span": {"ramp": 3}}]},
    "adaptive embedding and softmax": {"attention": [LOCAL], "embedding": {"cutoffs": (9, 20)}},
    "hashing (LSH), band": {"attention": [LSH]},
    "hashing (LSH), chunks": {"attention": [{**LSH, "selection": "chunks"}]},
    "local, two dimensions": {"attention": [IMAGE]},
    "dense": {"attention": [{"layer": "DenseAttention", **HEADS}]},
    "selected blocks": {"attention": [{"layer": "BlockSelectedAttention", **HEADS, **SELECTED}]},
    "selected blocks, convolved keys": {
        "attention": [{"layer": "BlockSelectedAttention", **HEADS, **SELECTED, "key_convolution": 3}]
    },
    "native sparse attention": {"attention": [{"layer": "NativeSparseAttention", **HEADS, **SELECTED, "window": 4}]},
    "grouped-query heads, QK norm, gate, sinks, soft cap": {
        "attention": [{**LOCAL, **MODERN}],
        "norm": "pre_and_post_rms",
    },
    "`Window(4)`": {"attention": [sparse(Window(4))]},
    "`Window(4) \\| First(2)`": {"attention": [sparse(Window(4) | First(2))]},
    "`Dilated(2, 3)`": {"attention": [sparse(Dilated(2, 3))]},
    "`Stride(4) \\| Summary(4, 1)`": {"attention": [sparse(Stride(4) | Summary(4, 1))]},
    "`Window(4) \\| Nearest(3, 4)`": {"attention": [sparse(Window(4) | Nearest(3, 4))]},
    "`Window(4) \\| Hashed(4, 4)`": {"attention": [sparse(Window(4) | Hashed(4, 4))]},
    "`Window(4) \\| Successors(Nearest(3, 4))`": {"attention": [sparse(Window(4) | Successors(Nearest(3, 4)))]},
}


def needs(target):
    """Skip a test where what a target needs is not installed."""
    if target == "ONNX":
        pytest.importorskip("tf2onnx", reason="needs tf2onnx, of the extra `onnx`")
        pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra `onnx`")


def make(num_layers=2, intermediate_dim=24, **settings):
    """Return a `LanguageModel` with weights that are all random."""
    keras.utils.set_random_seed(0)
    arguments = {"intermediate_dim": intermediate_dim, "seed": 0, **settings}
    return randomized(LanguageModel(Backbone(VOCABULARY, num_layers, 16, **arguments)))


def randomized(model, scale=0.2):
    """Return a model with noise on all its weights, so that none of them does nothing."""
    for weight in model.trainable_weights:
        weight.assign(weight + scale * keras.random.normal(weight.shape, seed=1))
    return model


def make_encoder(vocabulary_size, attention=(LOCAL,), **options):
    """Return a bidirectional backbone of one layer."""
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 24, "seed": 0}
    return Backbone(vocabulary_size, attention=list(attention), causal=False, **sizes, **options)


def make_recognizer(embedding=(), **options):
    """Return a `SpeechRecognizer` of 3 labels from 6 features."""
    encoder = make_encoder(None, embedding={"dim": 8, **dict(embedding)}, **options)
    normalized = {"feature_mean": range(6), "feature_std": [2.0] * 6}
    model = SpeechRecognizer(encoder, 3, num_features=6, subsampling=2, **normalized)
    return randomized(model, scale=0.3)  # not all labels are blank


def export(target, model, folder, signatures=None, **sizes):
    """Write a model for a target, "LiteRT" or "ONNX", and return a function of name and inputs that runs it."""
    settings = {**SIZES, **sizes, "signatures": signatures}
    if target == "LiteRT":
        return RunLiteRT(export_litert(model, folder / "model.tflite", **settings))
    return RunONNX(export_onnx(model, folder / "model", **settings))


class RunLiteRT:
    """Runs a file: called with the name of a signature and its inputs it returns the outputs, arrays by name."""

    def __init__(self, path):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"[\s\S]*tf.lite.Interpreter is deprecated")
            interpreter = tf.lite.Interpreter(str(path))
        self.runners = {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}

    def __call__(self, name, inputs):
        return self.runners[name](**inputs)

    def zeros(self, name):
        details = self.runners[name].get_input_details()
        return {key: np.zeros(each["shape"], each["dtype"]) for key, each in details.items()}


class RunONNX:
    """The same of the files in a folder."""

    def __init__(self, folder):
        import onnxruntime

        self.sessions = {path.stem: onnxruntime.InferenceSession(path) for path in folder.iterdir()}

    def __call__(self, name, inputs):
        names = [output.name for output in self.sessions[name].get_outputs()]
        return dict(zip(names, self.sessions[name].run(names, inputs), strict=True))

    def zeros(self, name):
        dtypes = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(bool)": "bool"}
        return {each.name: np.zeros(each.shape, dtypes[each.type]) for each in self.sessions[name].get_inputs()}


def random_ids():
    return np.random.default_rng(0).integers(VOCABULARY, size=(ROWS, LENGTH), dtype="int32")


def score_error(model, run):
    """Return the largest difference of nats between a file and the model's own logits."""
    ids = random_ids()
    return float(np.abs(run("score", {"token_ids": ids})["nats"] - nats_of(model, ids)).max())


def decode_error(model, run, lengths=(0, 0)):
    """Return the largest difference of logits of a file, after `lengths` tokens per row, from one call of the model."""
    ids, lengths, rows = random_ids(), np.array(lengths), np.arange(ROWS)
    whole, cache = numbers(model(ids)), model.init_cache(ROWS, LENGTH)
    if lengths.max():
        mask = np.arange(lengths.max()) < lengths[:, None]
        cache = model.extend(ids[:, : lengths.max()], cache, mask)[1]
    cache, worst = dict(flat(cache)), 0.0
    for step in range(LENGTH - lengths.max()):
        index = lengths + step
        result = run("decode", {"token_ids": ids[rows, index][:, None], "index": index.astype("int32"), **cache})
        worst = max(worst, np.abs(result["logits"] - whole[rows, index]).max())
        cache = {name: result["new_" + name] for name in cache}
    return float(worst)


def flat(cache, before=()):
    """Give the tensors of a cache with the names that they have in a file."""
    for name, inner in cache.items():
        if isinstance(inner, dict):
            yield from flat(inner, (*before, name))
        else:
            yield "_".join((*before, name)), numbers(inner)


def page_blocks():
    return blocks(PAGE.read_text(encoding="utf-8"), "python")


def run_page(text, folder, monkeypatch, **names):
    module = types.ModuleType("ai_edge_litert.interpreter")  # the same class, in a package that may not be here
    module.Interpreter = tf.lite.Interpreter
    monkeypatch.setitem(sys.modules, "ai_edge_litert", types.ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    printed = io.StringIO()
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"[\s\S]*tf.lite.Interpreter is deprecated")
        exec(text, names)
    return printed.getvalue()


def numbers(x):
    return ops.convert_to_numpy(x)
