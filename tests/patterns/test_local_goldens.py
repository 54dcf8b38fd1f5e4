"""Local attention equals the published implementation, outputs and gradients, on its own numbers.

What the published code does otherwise is put in front of ours here: padding found by zero values, queries and memory
with blocks of their own, a bias of tokens, and its faults: a table shifted by the flange where later keys are seen, the
padding of the first row used for all. A row that may see nothing averages everything there; such rows, and the
gradients of the keys they reach, are left out.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import goldens_of, read_case, shifted_position
from tests.oracle import definitions
from tests.patterns.small_cases import attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import Blocks

TABLES_OF_FLANGES = {0: ("norel", "rel24"), 4: ("norel", "rel24"), 8: ("rel24",)}
FORMS = [
    f"{kind}_f{flange}_{table}"
    for kind in ("masked", "full")
    for flange, tables in TABLES_OF_FLANGES.items()
    for table in tables
]
SHORT = [f"{kind}_len14_f4_{table}" for kind in ("masked", "full") for table in ("norel", "rel3")]
PADDED = [f"{kind}_f4_{pad}" for kind in ("masked", "full") for pad in ("padtokens", "padding_bias")]
CROSS = ["encdec_f0", "encdec_f12", "encdec_f12_len15_22", "encdec_f12_pad"]
CASES = [*FORMS, *SHORT, *PADDED, *CROSS, "masked_f4_padtokens_cachedbias", "masked_f4_dv6", "full_f4_token_bias"]
TABLES = "var/attention_nd/local_nd/relative_positions_{}/embeddings"

goldens = goldens_of("routing_transformer/local_1d.npz")


class Case:
    """The numbers of a case, and what the published code makes of them before it attends."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.block, self.query_block = self.settings["memory_query_shape"][0], self.settings["query_shape"][0]
        self.flange = self.settings["memory_flange"][0]

    @property
    def inputs(self):
        names = {"key_table": TABLES.format("keys"), "value_table": TABLES.format("values")}
        inputs = {name: self.arrays[name] for name in "qkv"}
        return inputs | {name: self.arrays[key] for name, key in names.items() if key in self.arrays}

    @property
    def exists(self):
        exists = (self.arrays["v"] != 0).any((1, 3))
        if self.settings["cache_padding_bias"]:
            exists = np.repeat(exists[:1], len(exists), axis=0)
        return exists & (self.arrays["padding_bias"] == 0) if "padding_bias" in self.arrays else exists

    def position(self, x):
        return shifted_position(x, 0 if self.settings["masked"] else self.flange)

    def attend(self, x):
        query, key = x["q"], x["k"]
        if "token_bias" in self.arrays:  # q . k + w b, as a further dimension of 1 in q and w b in k
            bias = self.arrays["var/attention_nd/token_bias_weight"] * self.arrays["token_bias"]
            bias = np.broadcast_to(bias[:, None, :, None], (*key.shape[:3], 1))
            query, key = ops.concatenate([query, np.ones_like(bias)], -1), ops.concatenate([key, bias], -1)
        blocks = self.flange // self.block
        attended = attend_pattern(
            Blocks(self.query_block, blocks, blocks, self.block),
            query,
            key,
            x["v"],
            causal=self.settings["masked"],
            masks=TokenMasks(key_mask=ops.convert_to_tensor(self.exists)),
            position=self.position(x),
        )
        return (attended.output,)

    def trusted(self):
        """Return the queries that see something, bool (B, T), and the keys that no other query reaches, (B, S)."""
        if "padding_bias" not in self.arrays or self.query_block != self.block:
            return np.ones(self.arrays["q"].shape[::2], bool), np.ones(self.arrays["k"].shape[::2], bool)
        lengths, blocks = (self.arrays["q"].shape[2], self.arrays["k"].shape[2]), self.flange // self.block
        seen = (
            definitions.local_blocks(*lengths, self.block, blocks, blocks, self.settings["masked"])
            & self.exists[:, None]
        )
        queries = seen.any(-1)
        reached = definitions.local_blocks(*lengths, self.block, blocks, blocks, causal=False) & ~queries[..., None]
        return queries, ~reached.any(1)


@pytest.mark.parametrize("name", first_of_each(CASES, lambda name: (name.split("_")[0], "pad" in name)))
def test_outputs_and_gradients_are_the_published_ones(goldens, name):
    case = Case(goldens, name)
    (output,), gradients = differentiate(case.attend, case.inputs, case.arrays["cotangent"])
    queries, keys = case.trusted()
    assert queries.mean() > 0.7

    def close(actual, expected, tolerance, rows=None):
        actual, expected = ops.convert_to_numpy(actual), case.arrays[expected]
        if rows is not None:
            actual, expected = (np.swapaxes(x, 1, 2)[rows] for x in (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)

    close(output, "out", 1e-5, queries)
    close(gradients["q"], "grad/q", 5e-5, queries)
    close(gradients["k"], "grad/k", 5e-5, keys)
    close(gradients["v"], "grad/v", 5e-5, keys)
    for side in ("key", "value"):
        if side + "_table" in gradients:
            close(gradients[side + "_table"], "grad/" + TABLES.format(side + "s"), 5e-5)
