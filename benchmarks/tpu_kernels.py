"""The operations of splash attention's kernels in a compiled program, of which XLA counts none."""

import math
import re

# Products of a block of queries and one of keys: scores and output; in the gradient the scores again, and those of the
# weights, of queries, keys and values.
PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
CALL = re.compile(r"%splash_mha_(fwd|dq|dkv)[\w.]* = .*operand_layout_constraints=\{([^=]*)\}, frontend")
SHAPE = re.compile(r"[a-z]+\d+\[([\d,]*)\]")


def flops(text):
    """Returns the floating-point operations of the kernels in an HLO program, those of hidden pairs included.

    Args:
        text: the program. A kernel's first operand says which block each step takes, (.., steps on either side), the
            third are its queries (.., T, H).
    """
    return sum(_flops_of(*found) for found in CALL.findall(text))


def _flops_of(name, operands):
    steps, _, queries, *_ = ([int(size) for size in sizes.split(",")] for sizes in SHAPE.findall(operands))
    *rows, length, size = queries
    block = length // steps[-1 if name == "dkv" else -2]
    pairs = math.prod(steps[-2:]) * block * block
    return PRODUCTS[name] * 2 * size * pairs * math.prod(rows)
