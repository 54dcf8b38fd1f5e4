"""Top-k routing equals the published implementation, members, outputs, losses and gradients, on its own numbers.

The published code divides by a hundredth more (`extra_count`), hides members by rank, recognises padding by zero
values, which it hides from queries but lets compete for places, and fills short sequences with zero tokens.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import block_by_block, goldens_of, read_case
from tests.patterns.small_cases import attend_members
from tests.programs import differentiate
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import best_members
from tf_sparse_attention.ops.positions import NoPosition, Relative

SHARED = [f"shareqk_{kind}_{table}" for kind in ("masked", "full") for table in ("norel", "rel3", "rel12")]
OWN = [f"qk_{kind}_{table}" for kind in ("masked", "full") for table in ("norel", "rel12")]
FORMS = [f"shareqk_masked_{form}" for form in ("len30", "padtokens", "window20", "2d_8x8_q4x4")]
CROSS = ["encdec_q48_m32", "encdec_q32_m48_pad"]
CASES = [*SHARED, *OWN, *FORMS, *CROSS, "qk_masked_noema", "qk_full_padding_bias"]
VARIABLES = "var/attention_nd/cluster_attention/cluster_attention/"
TABLES = VARIABLES + "relative_positions_{}/embeddings"

goldens = goldens_of("routing_transformer/clustered.npz")


class Case:
    """The numbers of a case on one axis of positions, filled up to a multiple of the block."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.window = self.settings["sparsity_cluster_attention_window"]
        self.centroids = self.arrays[VARIABLES + "means"]

    def flat(self, x):
        """Return (B, N, T, D): two axes of positions are read block by block, and the end is filled with zeros."""
        shape = self.settings["query_shape"]
        if x.ndim == 5:
            return block_by_block(x, shape)
        return np.pad(x, [(0, 0), (0, 0), (0, -x.shape[2] % shape[0]), (0, 0)])

    @property
    def inputs(self):
        names = {"key_table": TABLES.format("keys"), "value_table": TABLES.format("values")}
        inputs = {name: self.flat(self.arrays[name]) for name in "qkv"}
        if self.settings["share_qk"]:
            del inputs["k"]
        return inputs | {name: self.arrays[key] for name, key in names.items() if key in self.arrays}

    @property
    def visible(self):
        """Keys that are no padding, as an attention mask (B, 1, 1, S)."""
        visible = (self.flat(self.arrays["v"]) != 0).any((1, 3))
        if "padding_bias" in self.arrays:
            visible = visible & (self.arrays["padding_bias"] == 0)
        return ops.convert_to_tensor(visible[:, None, None])

    def members(self, x):
        return best_members(kmeans.scores(x, self.centroids), self.window)

    def attend(self, x):
        query = kmeans.normalize(x["q"])
        key = kmeans.normalize(x["k"]) if "k" in x else query
        output, _ = attend_members(
            query,
            key,
            x["v"],
            self.members(query),
            self.members(key),
            causal="rank" if self.settings["masked"] else None,
            masks=TokenMasks(attention_mask=self.visible),
            position=Relative(x["key_table"], x["value_table"]) if "key_table" in x else NoPosition(),
            extra_count=0.01,
        )
        return (output,)

    def loss(self, x):
        """Return the commitment of queries and keys; shared ones count twice."""
        total = 0.0
        for side in (x["q"], x.get("k", x["q"])):
            side = kmeans.normalize(side)
            total = total + kmeans.commitment(side, kmeans.nearest(side, self.centroids), self.centroids)
        return (self.settings["beta"] * total,)

    def length(self, side):
        return int(np.prod(self.arrays[side].shape[2:-1]))

    def compare_gradient(self, gradient, side, prefix):
        """Compare a gradient up to the end. A normalized zero token has a slope of 1000."""
        scale = np.where(np.abs(self.inputs[side]).sum(-1, keepdims=True) == 0, 1000, 1)
        found, expected = (ops.convert_to_numpy(x) / scale for x in (gradient, self.flat(self.arrays[prefix + side])))
        close(found[:, :, : self.length(side)], expected[:, :, : self.length(side)], 1e-4, prefix + side)


def close(actual, expected, tolerance, message=""):
    np.testing.assert_allclose(ops.convert_to_numpy(actual), expected, rtol=0, atol=tolerance, err_msg=message)


# By default one case each of shared and of separate keys, with and without later ones, and of another sequence.
every_case = pytest.mark.parametrize("name", first_of_each(CASES, lambda name: name.split("_")[:2]))


@every_case
def test_members_outputs_and_gradients_are_the_published_ones(goldens, name):
    case = Case(goldens, name)
    for side in "qk":
        members = case.members(kmeans.normalize(case.inputs.get(side, case.inputs["q"])))
        published = case.arrays[f"probe0/idx_{side}"][..., 2]
        np.testing.assert_array_equal(ops.convert_to_numpy(members.positions), published)
    (output,), gradients = differentiate(case.attend, case.inputs, case.flat(case.arrays["cotangent"]))
    length = case.length("q")  # what stands beyond the end is cut off
    close(output[:, :, :length], case.flat(case.arrays["out"])[:, :, :length], 1e-5, "output")
    for side in case.inputs:
        if side.endswith("table"):
            close(gradients[side], case.arrays["grad/" + TABLES.format(side.replace("_table", "s"))], 1e-4, side)
        else:
            case.compare_gradient(gradients[side], side, "grad/")
    # Without a moving average the published loss trains the centroids, which ours never does.
    if name.endswith("noema"):
        return
    inputs = {side: x for side, x in case.inputs.items() if side in "qk"}
    (loss,), gradients = differentiate(case.loss, inputs, np.float32(1))
    close(loss, case.arrays["loss"], 1e-5)
    for side in inputs:
        case.compare_gradient(gradients[side], side, "grad_loss/")
