"""Plots of attention patterns and attention weights."""

from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.patterns import InTurn, Pattern
from tf_sparse_attention.types import Tensor

COLORS = ("#2a6f97", "#e07a1f", "#3a9d6e", "#b5446e", "#7a5ea8", "#c9a227", "#4fb3bf", "#8a5a44")
FUTURE_COLOR = "#f1f1ee"  # the keys after the query


def draw_pattern(
    layer: keras.layers.Layer | Pattern,
    length: int,
    use_causal_mask: bool = True,
    inputs: Tensor | None = None,
    hidden_dim: int = 32,
    seed: int = 0,
    overlay: bool = False,
    show_groups: bool = True,
    axes: Any = None,
) -> Any:
    """Draw the pattern of an attention layer, one panel per head: filled where a query (row) sees a key (column).

    The plot shows `layer.attention_pattern`, the dense reference mask that tests compare the computation with. Tokens
    that see each other, directly or through other tokens, have the same color, so clusters of a routed head without
    common tokens have different colors. With a causal mask, keys after the query are shaded. Needs O(T^2) memory.

    Args:
        layer: an attention layer of this library, built or not, or a pattern, which is drawn once per distinct head.
        length: T, number of positions.
        use_causal_mask: whether later positions are masked. Default: True.
        inputs: float (1, T, D), which determines the clusters of routed heads. None: random numbers.
        hidden_dim: D of the random inputs for a layer that is not built; ignored for a built layer. Default: 32.
        seed: integer, seed of the random inputs. Default: 0.
        overlay: whether to draw all heads into one panel, with one color per head; the first head that sees a key
            determines the color. Default: False.
        show_groups: whether clusters have different colors. Default: True.
        axes: matplotlib axes to draw into, one per head, or one for `overlay`. None: a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is not installed (extra `plot`).
        ValueError: If the number of `axes` differs from the number of panels, or `layer` has another type.

    Example:
        >>> draw_pattern(LocalAttention(2, 16, window=8), length=48).savefig("local.png")
    """
    layer = _layer_of(layer)
    inputs = _inputs(layer, length, inputs, hidden_dim, seed)
    pattern = layer.attention_pattern(inputs, use_causal_mask=use_causal_mask)
    pattern = ops.convert_to_numpy(pattern)[0]  # (N, T, T)
    panels = [one_color_a_head(pattern)] if overlay else [_colored(seen, show_groups) for seen in pattern]
    axes = _axes(axes, len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        _draw(axis, panel, use_causal_mask)
    return axes[0].figure


def draw_weights(
    layer: keras.layers.Layer,
    length: int,
    use_causal_mask: bool = True,
    inputs: Tensor | None = None,
    hidden_dim: int = 32,
    seed: int = 0,
    axes: Any = None,
) -> Any:
    """Draw the attention weights of a layer, one panel per head: darker for larger weights of a key (column).

    For layers that approximate dense attention, such as `ClusteredAttention`, where every query (row) sees every key.
    The darkest color of a panel is its largest weight. Needs O(T^2) memory.

    Args:
        layer: an attention layer of this library, built or not.
        length: T, number of positions.
        use_causal_mask: whether later positions are masked. Default: True.
        inputs: float (1, T, D). None: random numbers.
        hidden_dim: D of the random inputs for a layer that is not built; ignored for a built layer. Default: 32.
        seed: integer, seed of the random inputs. Default: 0.
        axes: matplotlib axes to draw into, one per head. None: a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is not installed (extra `plot`).
        ValueError: If the number of `axes` differs from the number of heads.

    Example:
        >>> figure = draw_weights(ClusteredAttention(2, 16, num_clusters=4), length=48, use_causal_mask=False)
        >>> figure.savefig("clustered.png")
    """
    inputs = _inputs(layer, length, inputs, hidden_dim, seed)
    weights = layer(inputs, use_causal_mask=use_causal_mask, return_attention_scores=True)[1]
    weights = ops.convert_to_numpy(ops.cast(weights, "float32"))[0]  # (N, T, T)
    axes = _axes(axes, len(weights))
    for axis, panel in zip(axes, weights, strict=True):
        _finish(axis, axis.imshow(panel, cmap="Blues", vmin=0, interpolation="none"))
    return axes[0].figure


def _layer_of(target):
    """Return the given attention layer, or a new layer with the given pattern."""
    if isinstance(target, Pattern):
        num_heads = len(target.parts) if isinstance(target, InTurn) else getattr(target, "num_heads", 1)
        return SparseAttention(num_heads, key_dim=16, pattern=target, seed=0)
    if not hasattr(target, "attention_pattern"):
        raise ValueError(
            "`layer` must be an attention layer of this library or a pattern of `tsa.patterns`. "
            f"Received: a {type(target).__name__}."
        )
    return target


def _inputs(layer, length, inputs, hidden_dim, seed):
    """Return the inputs of a layer as a tensor; random numbers for None."""
    if inputs is None:
        checks.check_count("length", length)
        shape = (1, length, layer.num_features if layer.built else hidden_dim)
        inputs = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return ops.convert_to_tensor(inputs)


def _axes(axes, count):
    """Return the given axes, or new axes, one per panel."""
    pyplot = import_pyplot()
    if axes is None:
        _, axes = pyplot.subplots(1, count, squeeze=False, figsize=(2.6 * count, 2.6))
    axes = np.asarray(axes).reshape(-1)
    if len(axes) != count:
        raise ValueError(f"`axes` must have one item per panel. Received: {len(axes)} axes, {count} panels.")
    return axes


def import_pyplot() -> ModuleType:
    """Return `matplotlib.pyplot`.

    Raises:
        ImportError: If matplotlib is not installed, with an installation command.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'tf_sparse_attention[plot]'.") from error
    return pyplot


def _colored(seen, show_groups):
    groups = groups_of(seen) if show_groups else np.zeros(len(seen), int)
    return np.where(seen, groups[:, None] % len(COLORS) + 1, 0)


def groups_of(seen: np.ndarray) -> np.ndarray:
    """Return the group of each token, a connected component of the attention pattern.

    Args:
        seen: bool (T, T), whether a query (row) sees a key (column).

    Returns:
        Int (T,): group numbers from 0, in the order of their first tokens.
    """
    near = seen | seen.T | np.eye(len(seen), dtype=bool)
    groups = np.full(len(seen), -1)
    for first in range(len(seen)):
        if groups[first] >= 0:
            continue
        reached = near[first]
        while not np.array_equal(grown := near[reached].any(axis=0), reached):
            reached = grown
        groups[reached] = groups.max() + 1
    return groups


def one_color_a_head(pattern: np.ndarray) -> np.ndarray:
    """Combine patterns of heads, bool (N, T, S), into color numbers of the first head that sees a key, int (T, S).

    Color numbers start at 1; 0 means that no head sees the key.
    """
    return np.where(pattern.any(axis=0), np.argmax(pattern, axis=0) % len(COLORS) + 1, 0)


def _draw(axis, panel, shade_future):
    """Draw a panel of color numbers, 0 for keys not seen."""
    from matplotlib.colors import ListedColormap

    length = len(panel)
    if shade_future:
        corner = np.array([(0, 0), (length, 0), (length, length)]) - 0.5
        axis.fill(*corner.T, color=FUTURE_COLOR, linewidth=0, zorder=0)
    colors = ListedColormap([(1, 1, 1, 0), *COLORS])
    _finish(axis, axis.imshow(panel, cmap=colors, vmin=0, vmax=len(COLORS), interpolation="none", zorder=1))


def _finish(axis, image):
    """Set the frame of a panel without ticks, with the first query at the top."""
    rows, columns = image.get_array().shape
    axis.set(xticks=[], yticks=[], xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    for side in axis.spines.values():
        side.set_color("#888888")
