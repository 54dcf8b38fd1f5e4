"""What words of a text look at through routed heads: their clusters, and the earlier words they attend to."""

import dataclasses
import re
from typing import Any

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.attention_rows import record_attentions
from tf_sparse_attention.analysis.causality.comparison import to_numpy
from tf_sparse_attention.analysis.pictures import COLORS, import_pyplot
from tf_sparse_attention.layers import RoutingAttention
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.patterns.group_band import GroupSelector

SMALLEST_SHARE = 1e-4  # that is listed; less is rounding and prints as 0.00


@dataclasses.dataclass(frozen=True)
class WordRoute:
    """What one word looks at through one head.

    Attributes:
        word: number of the word in the text, from 0.
        layer: number of the attention in the model, from 0.
        head: number of the head among all heads of that attention, from 0.
        cluster: of the word's last token.
        seen: pairs of an earlier word's number and the share of attention that it gets, from 0 to 1, the largest first;
            what is missing to 1 goes to the word itself, the start and words that are not listed.
    """

    word: int
    layer: int
    head: int
    cluster: int
    seen: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class WordRoutes:
    """The routes of a text; as text, a table.

    Attributes:
        words: list of `str`.
        routes: list of `WordRoute`.
    """

    words: list[str]
    routes: list[WordRoute]

    def table(self) -> str:
        """Return a Markdown table, a row a word and head."""
        lines = ["| word | layer | head | cluster | looks at |", "|---|---|---|---|---|"]
        for route in self.routes:
            seen = ", ".join(f"{_cell(self.words[word])} {share:.2f}" for word, share in route.seen)
            cells = (_cell(self.words[route.word]), route.layer, route.head, route.cluster, seen or "-")
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def draw(self, layer: int, head: int, line_length: int = 64, axes: Any = None) -> Any:
        """Draw the text with each word in the color of its cluster, and lines to what it looks at most.

        Args:
            layer, head: which, as in the routes.
            line_length: characters of a line. Default 64.
            axes: matplotlib axes. None: a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: if there are no routes of this layer and head.
            ImportError: where matplotlib is not installed (extra `plot`).
        """
        routes = {route.word: route for route in self.routes if (route.layer, route.head) == (layer, head)}
        if not routes:
            raise ValueError(f"`layer` and `head` must be among the routes. Received: layer={layer}, head={head}.")
        positions = _layout_words(self.words, line_length)
        if axes is None:
            _, axes = import_pyplot().subplots(figsize=(0.12 * line_length, 0.5 * (positions[-1][1] + 1)))
        for number, (column, line) in enumerate(positions):
            route = routes.get(number)
            color = "#888888" if route is None else COLORS[route.cluster % len(COLORS)]
            axes.text(column, -line, self.words[number], color=color, family="monospace", fontsize=9)
            if route is not None and route.seen:
                other, share = route.seen[0]
                ends = [(*positions[at], self.words[at]) for at in (number, other)]
                middles = [(column + len(word) / 2, 0.3 - line) for column, line, word in ends]
                axes.plot(*zip(*middles, strict=True), color=color, linewidth=2 * share, alpha=0.5)
        axes.set(xlim=(0, line_length), ylim=(-positions[-1][1] - 0.5, 1))
        axes.axis("off")
        return axes.figure


def word_routes(model: keras.layers.Layer, tokenizer: Any, text: str, top_k: int = 3) -> WordRoutes:
    """Return which earlier words each word of a text looks at through the routed heads of a model.

    A word is what stands between spaces; the attention of its tokens is averaged, what they give to the tokens of
    another word is added up. Exact, from the model's own weights of attention (see `head_divergence` for the cost; the
    text is detokenized once for each of its tokens, so this is for passages, not for books).

    Args:
        model: `LanguageModel` or another model of token ids with `RoutingAttention` that has centroids.
        tokenizer: the tokenizer it was trained with.
        text: `str`, for instance what the model generated.
        top_k: maximal number of earlier words to list, those with a share of 0.0001 or more. Default: 3.

    Returns:
        A `WordRoutes`; `print` shows the table, `draw` a picture.

    Raises:
        ValueError: if the text has no words, or the model no head that routes by centroids.

    Example:
        >>> part = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 8, "num_clusters": 4, "cluster_size": 32}
        >>> model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 16, [part], intermediate_dim=32))
        >>> routes = word_routes(model, tsa.data.ByteTokenizer(), "words that look at words")
        >>> print(routes)  # doctest: +ELLIPSIS
        | word | layer | head | cluster | looks at |...
    """
    checks.check_count("top_k", top_k)
    ids = np.asarray(tokenizer.tokenize(text))
    words, word_of_token = _words(tokenizer, ids)
    if not words:
        raise ValueError(f"`text` must have words. Received: text={text!r}.")
    inputs = np.concatenate([[tokenizer.start_id], ids])[None].astype("int32")
    routes = []
    for number, attention in enumerate(record_attentions(model, inputs)):
        clusters = _clusters(attention)
        if clusters:
            shares = _shares(attention, word_of_token, len(words))
            routes += _routes(number, clusters, shares, word_of_token, top_k)
    if not routes:
        raise ValueError(f"`model` must have routed heads with centroids. Received: {model.name} without.")
    return WordRoutes(words, sorted(routes, key=lambda route: (route.word, route.layer, route.head)))


def _words(tokenizer, ids):
    """Return the words of a text, and the word of each input, -1 for the start and for spaces: int (T + 1,)."""
    text = tokenizer.detokenize(ids)
    found = list(re.finditer(r"\S+", text))
    word_at = np.full(len(text), -1)
    for number, match in enumerate(found):
        word_at[match.start() : match.end()] = number
    word_of_token, begin = [-1], 0
    for count in range(1, len(ids) + 1):
        end = min(len(tokenizer.detokenize(ids[:count])), len(text))
        inside = word_at[max(min(begin, end - 1), 0) : end]  # a byte that ends a character adds none to the text
        word_of_token.append(int(inside.max(initial=-1)))
        begin = end
    return [match[0] for match in found], np.array(word_of_token)


def _clusters(attention):
    """Return the clusters of the tokens by the number of each routed head, {head: int (T,)}."""
    clusters: dict[int, np.ndarray] = {}
    first = 0
    for part in attention.parts:
        layer = part.layer
        selector = layer.selectors[0] if isinstance(layer, RoutingAttention) else None
        if isinstance(selector, GroupSelector) and isinstance(selector.grouper, Centroids):
            groups = selector.grouper.assign(part.heads[0])
            clusters |= {first + head: row for head, row in enumerate(to_numpy(groups)[0])}
        first += layer.num_heads
    return clusters


def _shares(attention, word_of_token, num_words):
    """Return the attention of words to words, float (N, W, W): means over queries, sums over keys."""
    belongs = (word_of_token[:, None] == np.arange(num_words)).astype("float64")  # (T, W)
    total = 0.0
    for queries, weights in attention.rows():
        total = total + np.einsum("qw,nqk,kv->nwv", belongs[queries], weights[0].astype("float64"), belongs)
    return total / np.maximum(belongs.sum(0), 1)[None, :, None]


def _routes(number, clusters, shares, word_of_token, top_k):
    """Return a list of `WordRoute` for one attention."""
    routes = []
    last = {word: position for position, word in enumerate(word_of_token) if word >= 0}
    for head, groups in clusters.items():
        for word, position in last.items():
            own = shares[head, word].copy()
            own[word] = 0
            best = [other for other in np.argsort(-own, kind="stable")[:top_k] if own[other] > SMALLEST_SHARE]
            seen = tuple((int(other), float(own[other])) for other in best)
            routes.append(WordRoute(word, number, head, int(groups[position]), seen))
    return routes


def _layout_words(words, line_length):
    """Return the column and the line of each word."""
    positions, column, line = [], 0, 0
    for word in words:
        if column and column + len(word) > line_length:
            column, line = 0, line + 1
        positions.append((column, line))
        column += len(word) + 1
    return positions


def _cell(word):
    return word.replace("|", "\\|")
