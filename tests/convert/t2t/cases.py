"""Checkpoints to convert: written from arrays, and the published kind of them with its numbers."""

import dataclasses
import json
import pathlib

import numpy as np

from tests.goldens import observe
from tf_sparse_attention.convert.t2t.files import write_checkpoint
from tf_sparse_attention.convert.t2t.layout import Layout
from tf_sparse_attention.convert.t2t.plan import make_plan
from tf_sparse_attention.models.backbone_options import GROUPS, as_options
from tf_sparse_attention.models.blocks import all_parts

CASES = ("pg19_like", "enwik8_like", "pg19_local_like", "eli5_like")
SETTINGS = {"query_shape": [8], "memory_flange": [8], "share_qk": True, "sparsity_cluster_attention_window": 8}
SETTINGS |= {"ffn_layer": "geglu", "hidden_size": 12}
SCOPE = "sparse_transformer/body/"


@dataclasses.dataclass
class Small:
    """A checkpoint small enough to change: 3 layers, of which the last routes."""

    tensors: dict
    settings: dict

    def write(self, folder):
        """Return the prefix of the files."""
        write_checkpoint(folder / "model.ckpt-7", self.tensors)
        (folder / "hparams.json").write_text(json.dumps(self.settings), encoding="utf-8")
        return folder / "model.ckpt-7"


def shapes_of(small):
    return {name: np.shape(value) for name, value in small.tensors.items()}


def plan_of(small):
    return make_plan(shapes_of(small), small.settings)


def small():
    """Return a `Small` of random numbers, hidden size 12, 3 heads of 4, one of them routed in layer 2."""
    numbers = np.random.default_rng(0)
    shapes = {"embeddings/embedding": (20, 8), "emb_dense/kernel": (8, 12), "emb_dense/bias": (12,)}
    shapes |= {"final_dense_1/kernel": (12, 8), "final_dense_1/bias": (8,)}
    shapes |= {"final_dense_2/kernel": (8, 20), "final_dense_2/bias": (20,)}
    for layer in range(3):
        at, heads = f"decoder_layer_{layer}/self_attention/", "self_attention/attention_nd/"
        shapes |= {f"{at}self_attention/{name}/kernel": (12, 12) for name in ("q", "k", "v", "output_transform")}
        shapes[f"{at}{heads}dense/kernel"] = (4, 4)
        shapes |= {f"{at}{heads}local_nd/relative_positions_{side}/embeddings": (11, 4) for side in ("keys", "values")}
        if layer == 2:
            routing = f"{at}{heads}cluster_attention/cluster_attention/"
            shapes |= {f"{routing}relative_positions_{side}/embeddings": (11, 4) for side in ("keys", "values")}
            shapes |= {routing + "means": (1, 4, 4), routing + "ema_means": (1, 4, 4), routing + "ema_count": (1, 4)}
        shapes |= {f"{at}ffn/weight{i}/kernel": (12, 16) if i < 3 else (16, 12) for i in (1, 2, 3)}
        for norm in ("layer_postprocess", "layer_postprocess_1"):
            shapes |= {f"{at}{norm}/layer_norm/layer_norm_{kind}": (12,) for kind in ("scale", "bias")}
    tensors = {SCOPE + name: numbers.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    tensors["global_step"] = np.int64(7)
    return Small(tensors, dict(SETTINGS))


def layout_with_encoder(**sizes):
    """Return the `Layout` of an encoder-decoder, by default with 3 and 2 layers, all but the first of which route."""
    defaults = {"vocabulary_size": 20, "embedding_dim": 8, "hidden_dim": 12, "intermediate_dim": 16, "num_layers": 2}
    defaults |= {"num_heads": 3, "key_dim": 4, "value_dim": 4, "num_routing": 1, "num_clusters": 4, "routed": (1,)}
    defaults |= {"local_distance": 5, "routing_distance": 5, "encoder_layers": 3, "encoder_routed": (1, 2)}
    return Layout(scope=SCOPE, activation="geglu", norm="post", has_averages=True, **{**defaults, **sizes})


def small_encoder_decoder():
    """Return a `Small` with the layout of `layout_with_encoder`."""
    numbers = np.random.default_rng(0)
    layout = layout_with_encoder()
    tensors = {SCOPE + name: numbers.normal(size=shape).astype("float32") for name, shape in layout.shapes.items()}
    tensors |= {name: np.ones_like(x) for name, x in tensors.items() if name.endswith("ema_count")}
    tensors["global_step"] = np.int64(7)
    return Small(tensors, {**SETTINGS, "memory_query_shape": [4]})


def assert_same_backbone(arguments, published):
    """Compare arguments of `Backbone` of a plan with those of a preset; of heads only those that the preset gives."""
    for name, value in published.items():
        if name in ("attention", "cross_attention", "norm"):
            continue
        kind = GROUPS.get(name)
        if kind is None:
            assert arguments[name] == value, name
        else:
            assert as_options(kind, name, arguments[name]) == as_options(kind, name, value)
    attention = [side["attention"] for side in (arguments, published)]
    assert attention[0]["num_local_layers"] == attention[1]["num_local_layers"]
    given = [[side["attention"]["parts"], side.get("cross_attention", [])] for side in (arguments, published)]
    for sides in zip(*given, strict=True):
        for own, part in zip(*map(all_parts, sides), strict=True):
            # Of an encoder's table only the distances that its blocks contain are converted.
            expected = part | ({"max_distance": 511} if own.get("max_distance") == 511 else {})
            assert {key: own[key] for key in expected} == expected


@dataclasses.dataclass
class Published:
    """A trained miniature of a published checkpoint with what the published code makes of it."""

    folder: pathlib.Path

    def __post_init__(self):
        observe(self.folder, self.folder.name)
        with np.load(self.folder / "golden.npz") as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}

    @property
    def prefix(self):
        """The path of the files without their endings."""
        (index,) = self.folder.glob("*.index")
        return index.with_suffix("")

    @property
    def settings(self):
        """The file of settings as a dictionary."""
        return json.loads((self.folder / "hparams.json").read_text(encoding="utf-8"))

    @property
    def inputs(self):
        """The ids that the model reads: the targets moved right, id 0 first."""
        return np.pad(self.arrays["targets"], [(0, 0), (1, 0)])[:, :-1]

    @property
    def routed(self):
        """Numbers of the layers that route."""
        return sorted(int(name.split("/")[0].removeprefix("layer_")) for name in self.arrays if name.endswith("/idx"))
