"""Operations of attention kernels in a compiled program, which XLA does not count."""

import math
import re

# Matrix products per block of queries and block of keys. Forward: scores and output. Gradient: scores, and the
# gradients of weights, queries, keys and values.
PRODUCTS = {
    **{"attend_block": 2, "differentiate_queries": 3, "differentiate_keys": 4},
    **{"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4},  # kernels of JAX
}
CALL = re.compile(
    rf"%\w*?({'|'.join(PRODUCTS)})_*(?:(\d+)_by_(\d+))?[\w.]* = .*operand_layout_constraints=\{{([^=]*)\}}, frontend"
)
SHAPE = re.compile(r"[a-z]+\d+\[([\d,]*)\]")


def flops(text):
    """Return the floating-point operations of the kernels in an HLO program, including masked pairs.

    Args:
        text: the program. The first operands of a kernel are the block indices of each step: two in this library (the
            second has shape (blocks, steps)), three in splash attention (the last axes of the first and third are
            steps). The queries (.., T, H) follow. Kernels of this library have block sizes in their names.
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
