"""Hypothesis draws plans: every shape, switch and kind of mask, with a seed for the numbers."""

from hypothesis import strategies as st

from tests.ops.plans import Plan
from tf_sparse_attention.ops.images import ORDERS, Image

LENGTH = st.integers(1, 300)
PART = st.sampled_from(["local", "far", "merged"])
SEED = st.integers(0, 2**32 - 1)
POSITION = st.sampled_from([None, "relative", "relative_key", "rotary", "alibi"])
ROUTED_POSITION = st.sampled_from([None, "relative", "relative_key", "relative_token", "rotary", "alibi"])


@st.composite
def attention_mask_shapes(draw, plan):
    """Draws None or one of the shapes an attention mask may have: rank 2 to 4, each axis whole or 1."""
    whole = (plan.batch, plan.heads, plan.num_queries, plan.num_keys)
    rank = draw(st.sampled_from([0, 2, 3, 4]))
    if rank == 0:
        return None
    sizes = {2: whole[2:], 3: (whole[0], *whole[2:]), 4: whole}[rank]
    return tuple(size if draw(st.booleans()) else 1 for size in sizes)


@st.composite
def _common(draw, op, positions, **fixed):
    """Draws what all patterns share."""
    position = draw(positions)
    # Angles and slopes are constants in float32, so float64 would compare their rounding.
    dtypes = ["float32"] if position in ("rotary", "alibi") else ["float32", "float64"]
    num_queries = draw(LENGTH)
    shared = fixed.pop("shared", False)
    plan = Plan(
        op,
        batch=draw(st.integers(1, 2)),
        heads=draw(st.integers(1, 3)),
        num_queries=num_queries,
        num_keys=num_queries if shared or draw(st.booleans()) else draw(LENGTH),
        size=2 * draw(st.integers(1, 4)),
        value_size=draw(st.integers(1, 7)),
        shared=shared,
        position=position,
        reach=draw(st.integers(0, 40)),
        key_mask=draw(st.booleans()),
        segments=draw(st.booleans()),
        return_weights=draw(st.integers(0, 3)) == 0,
        dtype=draw(st.sampled_from(dtypes)),
        **fixed,
    )
    return plan._replace(attention_mask=draw(attention_mask_shapes(plan)))


@st.composite
def local_plans(draw):
    plan = draw(_common("local", POSITION))
    window = draw(st.none() | st.integers(1, 320))
    if window is not None:
        return plan._replace(causal=draw(st.booleans()), window=window)
    return plan._replace(
        causal=draw(st.booleans()),
        block_size=draw(st.integers(1, 90)),
        before=draw(st.integers(0, 3)),
        after=draw(st.integers(0, 3)),
    )


@st.composite
def local_2d_plans(draw):
    plan = draw(_common("local_2d", POSITION))
    width = draw(st.integers(1, 20))
    rows = -(-max(plan.num_queries, plan.num_keys) // width)
    image = Image(
        width,
        block_shape=(draw(st.integers(1, 7)), draw(st.integers(1, 7))),
        order=draw(st.sampled_from(ORDERS)),
        height=draw(st.none() | st.integers(rows, rows + 3)),
    )
    steps = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return plan._replace(causal=draw(st.booleans()), image=image, before=draw(steps), after=draw(steps))


@st.composite
def strided_plans(draw):
    plan = draw(_common("strided", POSITION))
    stride = draw(st.integers(1, 20) | st.integers(21, 320))
    return plan._replace(causal=draw(st.booleans()), stride=stride, part=draw(PART))


@st.composite
def fixed_plans(draw):
    plan = draw(_common("fixed", POSITION))
    block_size = draw(st.integers(1, 20) | st.integers(21, 320))
    num_summary = draw(st.integers(1, block_size))
    return plan._replace(
        causal=draw(st.booleans()),
        block_size=block_size,
        num_summary=num_summary,
        group=draw(st.integers(0, block_size // num_summary - 1)),
        part=draw(PART),
    )


@st.composite
def nearest_plans(draw, op="nearest", shared=True):
    plan = draw(_common(op, ROUTED_POSITION, shared=shared))
    return plan._replace(
        causal=draw(st.booleans()),
        num_clusters=draw(st.integers(1, 12)),
        cluster_size=draw(st.integers(1, 12) | st.integers(13, 320)),
        mask_self=draw(st.booleans()),
    )


@st.composite
def random_plans(draw):
    return draw(nearest_plans(op="random", shared=draw(st.booleans())))


@st.composite
def top_k_plans(draw):
    plan = draw(_common("top_k", ROUTED_POSITION, shared=draw(st.booleans())))
    return plan._replace(
        causal=draw(st.sampled_from([None, "position", "rank"])),
        num_clusters=draw(st.integers(1, 6)),
        cluster_size=draw(st.integers(1, 12) | st.integers(13, 80)),
        mask_self=draw(st.booleans()),
    )


@st.composite
def chunk_plans(draw):
    plan = draw(_common("chunks", POSITION, shared=draw(st.booleans())))
    shape = plan.attention_mask
    if shape is not None and shape[-1] == plan.num_keys:
        shape = (*shape[:-1], plan.num_queries)
    return plan._replace(
        num_keys=plan.num_queries,
        attention_mask=shape,
        causal=draw(st.booleans()),
        num_rounds=draw(st.integers(1, 4)),
        num_clusters=draw(st.integers(1, 12)),
        cluster_size=draw(st.integers(1, 12) | st.integers(13, 320)),
        mask_self=draw(st.booleans()),
    )
