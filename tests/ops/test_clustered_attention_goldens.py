"""Clustered attention equals the published implementation: hashes, clusters, outputs and gradients.

The gradient of the improved form is the true one: the published code leaves out the derivative of the sum of the best
keys' weights.
"""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import goldens_of, read_case
from tests.programs import differentiate
from tf_sparse_attention.ops import clustered_attention as clustered
from tf_sparse_attention.ops.hashing import hamming_clusters, hash_bits

PLAIN = ["n32_c4_b63_i10", "n32_c4_b8_i1", "n32_c4_b8_i3", "n32_c8_b8_i1_empty", "n50_c4_b32_i10_padded"]
PLAIN += ["n50_c8_b32_i10", "nobias_temp", "cross_l32_s40_d5_padded"]
IMPROVED = ["n32_c4_b8_i1_top4", "n50_c4_b32_i10_top8_padded", "cross_l32_s40_d5_top4"]
IMPROVED += ["topk_all_keys"]
# Of the last one the published output is wrong, and the numbers are those of the formula.
CASES = [*(f"cl_{name}" for name in PLAIN), *(f"ic_{name}" for name in IMPROVED), "bug_ic_short_keys"]

goldens = goldens_of("torch_peers/clustered.npz")


class Case:
    """The numbers of a case, heads first."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.num_clusters, self.top_k = self.settings["clusters"], self.settings["topk"]
        self.inputs = {name: self.heads(name) for name in "qkv"}
        self.query_mask, self.key_mask = (
            np.arange(self.inputs[name].shape[2]) < np.reshape(self.settings[lengths], (-1, 1))
            for name, lengths in (("q", "query_lengths"), ("k", "key_lengths"))
        )

    def heads(self, name):
        return self.arrays[name].transpose(0, 2, 1, 3)

    @property
    def clusters(self):
        """The published clusters, those of padding numbered C as ours."""
        return np.where(self.query_mask[:, None], self.arrays["clusters"], self.num_clusters).astype("int32")

    def compare_best_keys(self):
        scores = np.einsum("bnch,bnsh->bncs", self.arrays["q_centroids"], self.inputs["k"])
        weights = ops.softmax(scores - scores.max(-1, keepdims=True))
        best = clustered.find_top_keys(weights, ops.convert_to_tensor(self.key_mask)[:, None, None], self.top_k)
        positions, valid = (ops.convert_to_numpy(x) for x in best)
        for place in np.ndindex(positions.shape[:3]):
            expected = self.arrays["topk_idx"][place]
            if self.arrays["counts"][place]:
                assert sorted(positions[place][valid[place]]) == list(expected[expected >= 0])

    def attend(self, x):
        heads = x["q"] * self.settings["softmax_temp"], x["k"], x["v"], ops.convert_to_tensor(self.clusters)
        key_mask = ops.convert_to_tensor(self.key_mask)[:, None, None]
        if self.top_k is None:
            return clustered.clustered_attention(*heads, self.num_clusters, key_mask=key_mask)
        return clustered.improved_clustered_attention(*heads, self.num_clusters, self.top_k, key_mask=key_mask)


@pytest.mark.parametrize("name", first_of_each(CASES, lambda name: (name[:2], "padded" in name)))
def test_hashes_clusters_outputs_and_gradients_are_the_published_ones(name, goldens):
    case = Case(goldens, name)
    bits = hash_bits(case.inputs["q"], ops.convert_to_tensor(case.arrays["planes"]))
    numbers = (ops.convert_to_numpy(bits).astype("int64") << np.arange(case.settings["bits"])).sum(-1)
    valid = np.broadcast_to(case.query_mask[:, None], numbers.shape)
    np.testing.assert_array_equal(numbers[valid], case.arrays["hashes"][valid])
    starts = ops.convert_to_tensor(np.tile(case.arrays["init_positions"].astype("int32"), (len(numbers), 1)))
    settings = case.num_clusters, case.settings["iterations"], starts, ops.convert_to_tensor(case.query_mask)
    np.testing.assert_array_equal(ops.convert_to_numpy(hamming_clusters(bits, *settings)), case.clusters)
    means = clustered.mean_queries(case.inputs["q"], ops.convert_to_tensor(case.clusters), case.num_clusters)
    np.testing.assert_allclose(means, case.arrays["q_centroids"], rtol=0, atol=1e-6)
    if case.top_k is not None:
        case.compare_best_keys()
    (output, *_), gradients = differentiate(case.attend, case.inputs, case.heads("cotangent"))
    np.testing.assert_allclose(output, case.heads("out"), rtol=0, atol=1e-5)
    for key, gradient in gradients.items():
        expected = case.heads(f"{'grad' if case.top_k is None else 'true_grad'}/{key}")
        np.testing.assert_allclose(keras.ops.convert_to_numpy(gradient), expected, rtol=0, atol=2e-5, err_msg=key)
