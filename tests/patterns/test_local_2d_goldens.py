"""Local attention on images equals the published implementation, outputs and gradients, on its own numbers.

The published code takes images (H, W), which are put into the order of blocks here. Its table of distances is shifted:
it counts as if the own block were the last of those computed, also where that one is masked.
"""

import numpy as np
import pytest

from tests.goldens import goldens_of, read_case, shifted_position
from tests.oracle import definitions
from tests.patterns.small_cases import attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.ops.image_positions import Image
from tf_sparse_attention.patterns import ImageBlocks

FORMS = ["7x6_q2x4_f2x4", "8x8_q4x2_f4x0", "8x8_q4x4_f4x4_rel5"]
CASES = [f"{kind}_{form}" for kind in ("masked", "full") for form in FORMS]
TABLES = "var/attention_nd/local_nd/relative_positions_{}/embeddings"

goldens = goldens_of("routing_transformer/local_2d.npz")


class Case:
    """The numbers of a case with its images in the order of blocks."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        (height, width), block_shape = self.settings["shape_q"], tuple(self.settings["query_shape"])
        self.image = Image(width, block_shape, "blocks", height)
        pixels = definitions.pixels(height * width, width, block_shape, "blocks", height)
        self.pixels = tuple(np.array(pixels).T)
        self.blocks = tuple(
            flange // size for flange, size in zip(self.settings["memory_flange"], block_shape, strict=True)
        )

    def sequence(self, name):
        """Return an array (B, N, H, W, D) as (B, N, H W, D)."""
        return self.arrays[name][:, :, *self.pixels]

    @property
    def inputs(self):
        names = {"key_table": TABLES.format("keys"), "value_table": TABLES.format("values")}
        inputs = {name: self.sequence(name) for name in "qkv"}
        return inputs | {name: self.arrays[key] for name, key in names.items() if key in self.arrays}

    def position(self, x):
        below = 0 if self.settings["masked"] else self.blocks[0]
        return shifted_position(x, (below * self.image.num_columns + self.blocks[1]) * self.image.block_size)

    def attend(self, x):
        pattern = ImageBlocks(self.image.width, self.image.block_shape, self.blocks, self.blocks, self.image.order)
        options = {"causal": self.settings["masked"], "position": self.position(x)}
        return (attend_pattern(pattern, x["q"], x["k"], x["v"], **options).output,)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_published_ones(goldens, name):
    case = Case(goldens, name)
    (output,), gradients = differentiate(case.attend, case.inputs, case.sequence("cotangent"))
    np.testing.assert_allclose(output, case.sequence("out"), rtol=0, atol=1e-5)
    for side in "qkv":
        np.testing.assert_allclose(gradients[side], case.sequence(f"grad/{side}"), rtol=0, atol=5e-5)
    for side in ("key", "value"):
        if side + "_table" in gradients:
            expected = case.arrays["grad/" + TABLES.format(side + "s")]
            np.testing.assert_allclose(gradients[side + "_table"], expected, rtol=0, atol=5e-5)
