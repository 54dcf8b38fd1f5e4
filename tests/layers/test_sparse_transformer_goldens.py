"""The masks, outputs and gradients of strided and fixed attention are those of the published Sparse Transformer.

`tests/golden/sparse_transformer.npz` holds what openai/sparse_attention (commit c53f3bdb) computes for four kinds of
masks, all causal: "local" is a window, "strided" the strides alone, "fixed" the union of block and summaries, "all"
everything. It has neither a union of window and strides nor summaries alone.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from tests.contracts import normal, to_numpy
from tests.draws import first_of_each
from tests.goldens import observe_set
from tests.programs import differentiate
from tf_sparse_attention.layers import FixedAttention, StridedAttention

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "sparse_transformer.npz", allow_pickle=False)
CASES = json.loads(str(GOLDEN["meta_json"]))
WITH_NUMBERS = [name for name in CASES if f"{name}/q" in GOLDEN]
CASES = {name: CASES[name] for name in [*WITH_NUMBERS, *CASES]}  # by default one of a kind with numbers


def layer_of(name):
    """Return the layer of a case, whose projections only cut the features into heads."""
    observe_set("torch_peers/sparse_masks", name)
    settings = CASES[name]
    context, size = settings["local_attn_ctx"], settings["head_dim"]
    arguments = {"num_heads": settings["heads"], "key_dim": size, "use_bias": False}
    if settings["attn_mode"] == "fixed":
        summaries = {"num_summary": settings["vertsize"] * settings["blocksize"], "num_groups": settings["num_verts"]}
        layer = FixedAttention(block_size=context, heads="merged", **summaries, **arguments)
    else:
        far = {"heads": "interleaved", "layer_index": int(settings["attn_mode"] == "strided")}
        layer = StridedAttention(stride=context or settings["n"], **far, **arguments)
    features = settings["heads"] * size
    layer.build((None, None, features))
    unit = np.eye(features)
    cut = unit.reshape(features, settings["heads"], size)
    layer.set_weights([cut, cut, cut, unit.reshape(settings["heads"], size, features)])
    return layer


def published_mask(name):
    settings = CASES[name]
    sizes = (settings["batch"], settings["heads"], settings["n"], settings["n"])
    return np.broadcast_to(GOLDEN[f"{name}/mask"] == 1, sizes)


@pytest.mark.parametrize("name", first_of_each(CASES, lambda name: CASES[name]["attn_mode"]))
def test_masks_outputs_and_gradients_are_the_published_ones(name):
    settings, layer = CASES[name], layer_of(name)
    x = normal(settings["batch"], settings["n"], settings["heads"] * settings["head_dim"])
    _, weights = layer(x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(to_numpy(weights) > 0, published_mask(name))
    np.testing.assert_array_equal(to_numpy(layer.attention_pattern(x, use_causal_mask=True)), published_mask(name))
    if name not in WITH_NUMBERS:
        return

    def attend(x):
        return (layer(x["q"], value=x["v"], key=x["k"], use_causal_mask=True),)

    inputs = {side: GOLDEN[f"{name}/{side}"] for side in "qkv"}
    (output,), gradients = differentiate(attend, inputs, GOLDEN[f"{name}/cotangent"])
    np.testing.assert_allclose(ops.convert_to_numpy(output), GOLDEN[f"{name}/out"], rtol=0, atol=1e-5)
    for side, gradient in gradients.items():
        expected = GOLDEN[f"{name}/grad/{side}"]
        np.testing.assert_allclose(ops.convert_to_numpy(gradient), expected, rtol=0, atol=2e-5, err_msg=side)
