"""Local attention equals the published implementation on sequences and images, outputs and gradients, on its numbers.

What the published code does otherwise is put in front of ours here: padding found by zero values, queries and memory
with blocks of their own, a bias of tokens, images (H, W) in the order of blocks, and its faults: a table of distances
that counts as if the own block were the last of those computed, the padding of the first row used for all. A row that
may see nothing averages everything there; such rows, and the gradients of the keys they reach, are left out.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first_of_each
from tests.goldens import read_case, shifted_position
from tests.oracle import definitions
from tests.patterns.small_cases import attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.ops.image_positions import Image
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import Blocks, ImageBlocks

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
SEQUENCES = [*FORMS, *SHORT, *PADDED, *CROSS, "masked_f4_padtokens_cachedbias", "masked_f4_dv6", "full_f4_token_bias"]
IMAGES = [
    f"{kind}_{form}" for kind in ("masked", "full") for form in ("7x6_q2x4_f2x4", "8x8_q4x2_f4x0", "8x8_q4x4_f4x4_rel5")
]
TABLES = "var/attention_nd/local_nd/relative_positions_{}/embeddings"


class Case:
    """The numbers of a case, and what the published code makes of them before it attends."""

    def __init__(self, settings, arrays):
        self.settings, self.arrays = settings, arrays
        (self.query_block, *_), (self.flange, *_) = settings["query_shape"], settings["memory_flange"]
        self.block = settings["memory_query_shape"][0]

    def sequence(self, name):
        """Return an array as (B, N, T, D)."""
        return self.arrays[name]

    @property
    def inputs(self):
        names = {"key_table": TABLES.format("keys"), "value_table": TABLES.format("values")}
        inputs = {name: self.sequence(name) for name in "qkv"}
        return inputs | {name: self.arrays[key] for name, key in names.items() if key in self.arrays}

    @property
    def exists(self):
        exists = (self.arrays["v"] != 0).any((1, 3))
        if self.settings["cache_padding_bias"]:
            exists = np.repeat(exists[:1], len(exists), axis=0)
        return exists & (self.arrays["padding_bias"] == 0) if "padding_bias" in self.arrays else exists

    def attend(self, x):
        query, key, blocks = x["q"], x["k"], self.flange // self.block
        if "token_bias" in self.arrays:  # q . k + w b, as a further dimension of 1 in q and w b in k
            bias = self.arrays["var/attention_nd/token_bias_weight"] * self.arrays["token_bias"]
            bias = np.broadcast_to(bias[:, None, :, None], (*key.shape[:3], 1))
            query, key = ops.concatenate([query, np.ones_like(bias)], -1), ops.concatenate([key, bias], -1)
        pattern = Blocks(self.query_block, blocks, blocks, self.block)
        options = {"causal": self.settings["masked"], "masks": TokenMasks(key_mask=ops.convert_to_tensor(self.exists))}
        position = shifted_position(x, 0 if self.settings["masked"] else self.flange)
        return (attend_pattern(pattern, query, key, x["v"], position=position, **options).output,)

    def trusted(self):
        """Return the queries that see something, bool (B, T), and the keys that no other query reaches, (B, S)."""
        if "padding_bias" not in self.arrays or self.query_block != self.block:
            return [np.ones(self.sequence(name).shape[::2], bool) for name in "qk"]
        lengths, blocks = (self.arrays["q"].shape[2], self.arrays["k"].shape[2]), self.flange // self.block
        seen = definitions.local_blocks(*lengths, self.block, blocks, blocks, self.settings["masked"])
        queries = (seen & self.exists[:, None]).any(-1)
        reached = definitions.local_blocks(*lengths, self.block, blocks, blocks, causal=False) & ~queries[..., None]
        return queries, ~reached.any(1)


class ImageCase(Case):
    """The numbers of a case with its images in the order of blocks."""

    def __init__(self, settings, arrays):
        super().__init__(settings, arrays)
        (height, width), block_shape = settings["shape_q"], tuple(settings["query_shape"])
        self.image = Image(width, block_shape, "blocks", height)
        self.pixels = tuple(np.transpose(definitions.pixels(height * width, width, block_shape, "blocks", height)))
        self.blocks = tuple(np.floor_divide(settings["memory_flange"], block_shape).tolist())

    def sequence(self, name):
        return self.arrays[name][:, :, *self.pixels]

    def attend(self, x):
        pattern = ImageBlocks(self.image.width, self.image.block_shape, self.blocks, self.blocks, self.image.order)
        below = 0 if self.settings["masked"] else self.blocks[0]
        shift = (below * self.image.num_columns + self.blocks[1]) * self.image.block_size
        options = {"causal": self.settings["masked"], "position": shifted_position(x, shift)}
        return (attend_pattern(pattern, x["q"], x["k"], x["v"], **options).output,)


EVERYTHING = [("local_1d", name) for name in SEQUENCES] + [("local_2d", name) for name in IMAGES]
KINDS = {"local_1d": Case, "local_2d": ImageCase}


def kind_of(case):
    """Return what a case has in common with those that run in the full run alone; images are few and run all."""
    return case if case[0] == "local_2d" else (case[1].split("_")[0], "pad" in case[1])


@pytest.mark.parametrize(("file", "name"), first_of_each(EVERYTHING, kind_of))
def test_outputs_and_gradients_are_the_published_ones(references, file, name):
    case = KINDS[file](*read_case(np.load(references / "routing_transformer" / f"{file}.npz"), name))
    (output,), gradients = differentiate(case.attend, case.inputs, case.sequence("cotangent"))
    queries, keys = case.trusted()
    assert queries.mean() > 0.7

    def close(actual, expected, tolerance, rows):
        actual, expected = (np.swapaxes(x, 1, 2)[rows] for x in (ops.convert_to_numpy(actual), expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)

    close(output, case.sequence("out"), 1e-5, queries)
    for side, rows in (("q", queries), ("k", keys), ("v", keys)):
        close(gradients[side], case.sequence(f"grad/{side}"), 5e-5, rows)
    for side in ("key", "value"):
        if side + "_table" in gradients:
            expected = case.arrays["grad/" + TABLES.format(side + "s")]
            np.testing.assert_allclose(gradients[side + "_table"], expected, rtol=0, atol=5e-5)
