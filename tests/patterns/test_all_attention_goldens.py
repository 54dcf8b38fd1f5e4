"""Attention to a window and to persistent vectors, with adaptive spans, equals the published implementation.

The published code sees the window of a longer row of keys; here the queries are padded in front to be as long. A cache
shorter than the window is filled there with zero keys and values that take part, and so they are here. The published
weights are those of a softmax without span, times the span, over their sum plus 1e-8, which shows where a span leaves
next to nothing of a row.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import goldens_of, read_case
from tests.patterns.small_cases import attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns import Window

PLAIN = ["seq_plain", "seq_plain_longblock", "seq_pers8"]
TRIMMED = ["seq_span_trim_cache128", "seq_span_trim_pers", "seq_span_short_cache"]
CORNERS = ["seq_span_kink", "seq_span_pers_kink"]
SPANS = ["seq_span", "seq_span_frac", "seq_span_peaky", "seq_span_pers", *CORNERS, *TRIMMED]
CASES = [*PLAIN, *SPANS]

goldens = goldens_of("torch_peers/all_attention.npz")


class Case:
    """The numbers of a case, its heads apart from its batch."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.window, self.num_heads = self.settings["L"], self.settings["heads"]

    def heads(self, name):
        x = self.arrays[name]
        return x.reshape(-1, self.num_heads, *x.shape[1:])

    @property
    def inputs(self):
        names = ("key_pe", "pers_key", "pers_val", "z")
        weights = {name: self.arrays[name] for name in names if name in self.arrays}
        return {name: self.heads(name) for name in "qkv"} | weights

    def by_distance(self, weights):
        """Return weights (B, N, T, S) of the last T positions as those of the distances L .. 1, as published."""
        weights = ops.convert_to_numpy(weights)
        count, length = weights.shape[2:]
        weights = np.pad(weights, [(0, 0)] * 3 + [(self.window, 0)])
        starts = [length - count + i for i in range(count)]  # of the L keys before a query, the padding counted in
        return np.stack([weights[:, :, i, start : start + self.window] for i, start in enumerate(starts)], axis=2)

    def attend(self, x):
        """Return what our layers compute of these inputs: output and weights of the last positions."""
        size, count = x["q"].shape[-1], x["q"].shape[2]
        missing = max(0, self.window - self.settings.get("trim_len", 0) - (x["k"].shape[2] - count))
        key, value = (ops.pad(x[name], [(0, 0), (0, 0), (missing, 0), (0, 0)]) for name in "kv")
        length = key.shape[2]
        query = ops.pad(x["q"] * size**-0.5, [(0, 0), (0, 0), (length - count, 0), (0, 0)])
        # Of the published table column L - delta is for the key delta positions before; ours has row d + M for key
        # position minus query position d, and M = L.
        table = ops.pad(ops.transpose(x["key_pe"][0]), [(0, self.window + 1), (0, 0)])
        vectors = None
        if "pers_key" in x:
            count_slots = x["pers_val"].shape[1]
            vectors = ops.transpose(x["pers_key"], (0, 2, 1)) * size**0.5, x["pers_val"] * count_slots**0.5
        options = {"causal": True, "hide_self": "always", "position": Relative(table)}
        options |= {"persistent": vectors, "return_weights": True, "return_log_sum_exp": True}
        span = Span(x["z"], self.window, self.settings["ramp"], first=1) if "z" in x else None
        attended = attend_pattern(Window(self.window + 1), query, key, value, span=span, **options)
        results = [attended.output, attended.weights]
        if span is not None:
            whole = attend_pattern(Window(self.window + 1), query, key, value, **options)
            left = ops.exp(attended.log_sum_exp - whole.log_sum_exp)[..., None]
            results = [result * (left / (left + 1e-8)) for result in results]
        return [result[:, :, length - count :] for result in results]


@pytest.mark.parametrize("name", first_of_each(CASES, lambda name: ("span" in name, "pers" in name)))
def test_outputs_and_gradients(name, goldens):
    case = Case(goldens, name)
    (output, weights), gradients = differentiate(case.attend, case.inputs, case.heads("cotangent"))
    np.testing.assert_allclose(output, case.heads("out"), rtol=0, atol=1e-5)
    np.testing.assert_allclose(case.by_distance(weights), case.heads("attn"), rtol=0, atol=2e-6)
    for key, gradient in gradients.items():
        prefix = "grad_closed/" if key == "z" and name in CORNERS else "grad/"
        expected = case.heads(prefix + key) if key in "qkv" else case.arrays[prefix + key]
        np.testing.assert_allclose(gradient, expected, rtol=2e-6, atol=1e-4, err_msg=key)
