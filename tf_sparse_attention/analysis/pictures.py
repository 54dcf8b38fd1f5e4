"""Pictures of attention: which keys each query sees."""

import numpy as np
from keras import ops


def draw_pattern(layer, length, use_causal_mask=True, features=32, seed=0, axes=None):
    """Draws the pattern of an attention layer, one panel a head: black where a query (row) sees a key (column).

    The picture is `layer.attention_pattern`, the dense twin that the tests compare the fast computation with. O(T^2)
    memory.

    Args:
        layer: an attention layer of this library, built or not.
        length: T, positions to draw.
        use_causal_mask: whether later positions are hidden. Default True.
        features: channels of the random input that a layer not yet built is built for; ignored if it is built.
        seed: integer of the random input, which decides the clusters of routed heads.
        axes: matplotlib axes to draw into, one a head. None: a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is not installed (extra `plot`).
        ValueError: if `axes` are not as many as the heads.

    Example:
        >>> draw_pattern(LocalAttention(2, 16, window=8), length=48).savefig("local.png")
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'tf_sparse_attention[plot]'.") from error

    shape = (1, length, layer.num_features if layer.built else features)
    inputs = np.random.default_rng(seed).normal(size=shape).astype("float32")
    pattern = layer.attention_pattern(ops.convert_to_tensor(inputs), use_causal_mask=use_causal_mask)
    pattern = ops.convert_to_numpy(pattern)[0]  # (N, T, T)
    if axes is None:
        _, axes = pyplot.subplots(1, len(pattern), squeeze=False, figsize=(2.6 * len(pattern), 2.6))
    axes = np.asarray(axes).reshape(-1)
    if len(axes) != len(pattern):
        raise ValueError(f"`axes` must be one for each head. Received: {len(axes)} axes, {len(pattern)} heads.")
    for panel, seen in zip(axes, pattern, strict=True):
        panel.imshow(seen, cmap="Greys", vmin=0, vmax=1, interpolation="none")
        panel.set(xticks=[], yticks=[])
    return axes[0].figure
