"""The operations of attention kernels in a compiled program, of which XLA counts none."""

import math
import re

# Products of a block of queries and one of keys: scores and output; in the gradient the scores again, and those of the
# weights, of queries, keys and values.
PRODUCTS = {
    **{"attend_block": 2, "differentiate_queries": 3, "differentiate_keys": 4},
    **{"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4},  # JAX's own
}
CALL = re.compile(
    rf"%\w*?({'|'.join(PRODUCTS)})_*(?:(\d+)_by_(\d+))?[\w.]* = .*operand_layout_constraints=\{{([^=]*)\}}, frontend"
)
SHAPE = re.compile(r"[a-z]+\d+\[([\d,]*)\]")


def flops(text):
    """Return the floating-point operations of the kernels in an HLO program, those of hidden pairs included.

    Args:
        text: the program. The first operands of a kernel say which block each step takes: two of ours, the second
            (blocks, steps), three of splash attention, the first and third (.., steps on either side). Then come the
            queries, (.., T, H). Ours have the sizes of their blocks in their names.
    """
    return sum(_flops_of(*found) for found in CALL.findall(text))


def _flops_of(name, query_block, key_block, operands):
    shapes = [[int(size) for size in sizes.split(",")] for sizes in SHAPE.findall(operands)]
    *rows, length, size = shapes[2]
    if query_block:
        steps, pairs = shapes[1], int(query_block) * int(key_block)
    else:
        steps = shapes[0][-2:]
        pairs = (length // steps[name == "splash_mha_dkv"]) ** 2
    return PRODUCTS[name] * 2 * size * math.prod(steps) * pairs * math.prod(rows)
