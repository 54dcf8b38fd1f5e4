"""The other heads of the published Routing Transformer, on its own numbers: strided clusters, hash buckets, strides.

Members, outputs, losses and gradients. What the published code does otherwise is put in front of ours: clusters divide
by a hundredth more (`extra_count`) and hide members by rank; strided clusters weigh their commitment by 1e-4 whatever
was asked for; strides show the zeros that fill the last block, and from the first block on in which some row has
padding, all queries of all rows there average all blocks, later ones too.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import block_by_block, read_case
from tests.patterns.small_cases import attend_members, attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.members import best_members, hash_scores, strided_members
from tf_sparse_attention.ops.positions import NoPosition, Relative
from tf_sparse_attention.patterns import Stride

STRIDED_CLUSTERS = [
    f"{kind}_{form}" for kind in ("masked", "full") for form in ("len32_norel", "len32_rel3", "len36_norel")
]
BUCKETS = [f"{share}_{kind}" for share in ("shareqk", "qk") for kind in ("masked", "full")]
STRIDES = [f"{kind}_{form}" for kind in ("masked", "full") for form in ("len16_b4", "len14_b4", "len16_b4_rel2")]
STRIDES += ["masked_4x8_b2x2", "masked_len16_b4_padtokens"]
FILES = {"clustered_strided": STRIDED_CLUSTERS, "clustered_lsh": BUCKETS, "strided": STRIDES}
VARIABLES = "var/attention_nd/{0}_attention/{0}_attention/"
TABLES = "relative_positions_{}s/embeddings"


class Case:
    """The numbers of a case, heads first, (B, N, T, D)."""

    def __init__(self, folder, file, name):
        self.settings, self.arrays = read_case(np.load(folder / "routing_transformer" / f"{file}.npz"), name)
        self.causal = self.settings["masked"]
        self.inputs = {side: self.flat(self.arrays[side]) for side in "qkv"}
        if self.settings.get("share_qk", False):
            del self.inputs["k"]
        for side in ("key", "value"):
            if self.table(side) in self.arrays:
                self.inputs[side + "_table"] = self.arrays[self.table(side)]

    def flat(self, x):
        return x

    def table(self, side):
        return VARIABLES.format(self.kind) + TABLES.format(side)

    def position(self, x):
        return Relative(x["key_table"], x["value_table"]) if "key_table" in x else NoPosition()

    def sides(self, x):
        """Return normalised queries and keys."""
        query = kmeans.normalize(x["q"])
        return query, kmeans.normalize(x["k"]) if "k" in x else query

    def compare_choice(self):
        """Compare the members of clusters with the published ones."""
        for probe, members in enumerate(self.members(*self.sides(self.inputs))):
            for side, found in zip("qk", members, strict=True):
                expected = self.arrays[f"probe{probe}/idx_{side}"][..., 2]
                np.testing.assert_array_equal(ops.convert_to_numpy(found.positions), expected)

    def clusters(self, query, key, value, members, position=NoPosition()):
        options = {"causal": "rank" if self.causal else None, "position": position, "extra_count": 0.01}
        return attend_members(query, key, value, *members, **options)[0]


class StridedClusters(Case):
    """Head 0 routes by the best tokens of a centroid, head 1 by strides over them; only that one has positions."""

    kind = "cluster_strided"

    def members(self, query, key):
        """Return for each head the members among queries and among keys."""
        found, window = [], self.settings["sparsity_cluster_attention_window"]
        for head, (kind, choose) in enumerate((("cluster", best_members), ("cluster_strided", strided_members))):
            centroids = self.arrays[VARIABLES.format(kind) + "means"]
            scores = [kmeans.scores(x[:, head : head + 1], centroids) for x in (query, key)]
            found.append([choose(x, window) for x in scores])
        return found

    def attend(self, x):
        query, key = self.sides(x)
        places = [NoPosition(), self.position(x)]
        parts = [
            self.clusters(*(y[:, head : head + 1] for y in (query, key, x["v"])), members, places[head])
            for head, members in enumerate(self.members(query, key))
        ]
        return (ops.concatenate(parts, axis=1),)

    def loss(self, x):
        total, weights = 0.0, {"cluster": self.settings["beta"], "cluster_strided": 1e-4}
        for side in self.sides(x):
            for head, (kind, weight) in enumerate(weights.items()):
                centroids = self.arrays[VARIABLES.format(kind) + "means"]
                own = side[:, head : head + 1]
                total = total + weight * kmeans.commitment(own, kmeans.nearest(own, centroids), centroids)
        return (total,)


class Buckets(Case):
    """All heads have hash buckets."""

    kind = "cluster"

    def scores(self, x):
        return hash_scores(x, self.arrays[VARIABLES.format(self.kind) + "projection_tensors"])

    def compare_choice(self):
        super().compare_choice()
        for side, x in zip("qk", self.sides(self.inputs), strict=True):
            np.testing.assert_array_equal(np.argmax(self.scores(x), axis=-1), self.arrays[f"probe0/bucket_{side}"])

    def members(self, query, key):
        window = self.settings["sparsity_cluster_attention_window"]
        return [[best_members(self.scores(x), window) for x in (query, key)]]

    def attend(self, x):
        query, key = self.sides(x)
        return (self.clusters(query, key, x["v"], *self.members(query, key)),)


class Strides(Case):
    """Position p of every block sees position p of the blocks up to its own: a stride as long as a block.

    Positions go by block, where ours go by token.
    """

    kind = "strided"

    def compare_choice(self):
        """There is no choice."""

    def flat(self, x):
        """Return (B, N, T, D): two axes of positions are read block by block."""
        return x if x.ndim == 4 else block_by_block(x, self.settings["query_shape"])

    @property
    def stride(self):
        return int(np.prod(self.settings["query_shape"]))

    def position(self, x):
        if "key_table" not in x:
            return NoPosition()
        reach = (x["key_table"].shape[0] - 1) // 2
        rows = np.arange(-reach * self.stride, reach * self.stride + 1) // self.stride + reach
        return Relative(*(ops.take(x[side + "_table"], rows, axis=0) for side in ("key", "value")))

    def attend(self, x):
        length = x["q"].shape[2]
        filled = [ops.pad(x[side], [(0, 0), (0, 0), (0, -length % self.stride), (0, 0)]) for side in "qkv"]
        options = {"causal": self.causal, "position": self.position(x)}
        output = attend_pattern(Stride(self.stride), *filled, **options).output
        padding = (self.flat(self.arrays["v"]) == 0).all((1, 3)).any(0)
        if padding.any():
            lost = np.arange(output.shape[2]) // self.stride >= np.argmax(padding) // self.stride
            output = ops.where(lost[:, None], self.means(*filled), output)
        return (output[:, :, :length],)

    def means(self, *heads):
        """Return means over all blocks: -1e9 leaves nothing of a logit but its gradient."""
        query, key, value = (ops.reshape(x, (*x.shape[:2], -1, self.stride, x.shape[-1])) for x in heads)
        logits = ops.einsum("bnqph,bnkph->bnpqk", query, key)
        weights = ops.softmax(logits - ops.stop_gradient(logits))
        return ops.reshape(ops.einsum("bnpqk,bnkph->bnqph", weights, value), heads[2].shape)


KINDS = {"clustered_strided": StridedClusters, "clustered_lsh": Buckets, "strided": Strides}


EVERYTHING = [(file, name) for file, names in FILES.items() for name in names]


@pytest.mark.parametrize(("file", "name"), first_of_each(EVERYTHING, lambda case: (case[0], "masked" in case[1])))
def test_outputs_and_gradients_are_the_published_ones(references, file, name):
    case = KINDS[file](references, file, name)
    case.compare_choice()
    (output,), gradients = differentiate(case.attend, case.inputs, case.flat(case.arrays["cotangent"]))
    np.testing.assert_allclose(output, case.flat(case.arrays["out"]), rtol=0, atol=1e-5)
    for side, gradient in gradients.items():
        golden = "grad/" + (case.table(side.removesuffix("_table")) if side.endswith("table") else side)
        expected = case.flat(case.arrays[golden]) if len(side) == 1 else case.arrays[golden]
        tolerance = 5e-5 if file == "strided" else 1e-4
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance, err_msg=side)
    if file == "clustered_strided":
        inputs = {side: case.inputs[side] for side in "qk"}
        (loss,), gradients = differentiate(case.loss, inputs, np.float32(1))
        np.testing.assert_allclose(loss, case.arrays["loss"], rtol=0, atol=1e-5)
        for side, gradient in gradients.items():
            np.testing.assert_allclose(gradient, case.arrays[f"grad_loss/{side}"], rtol=0, atol=1e-4)
