"""The table pattern x feature of docs/patterns.md, made by trying: `python -m docs.tables.features` prints it.

LiteRT and ONNX are read from the tables of docs/portable.md, which separate tests make from conversions.
"""

import re
import warnings

import keras
import numpy as np

from docs.tables import conversion
from tests.cases import Case
from tests.contracts import SIZE, built, normal, to_numpy
from tf_sparse_attention import layers
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal
from tf_sparse_attention.layers.parts.segment_memory import supports_memory
from tf_sparse_attention.patterns import Dilated, First, Hashed, Nearest, Stride, Successors, Summary, TopKeys, Window

HEADS = {"num_heads": 2, "key_dim": 4}
POSITIONS = ("relative", "rotary", "alibi", "relative_2d", "rotary_2d")
COLUMNS = ("pattern", "causal", "both sides", "cross", "packed", "memory", "cache", "cross cache", "positions")
COLUMNS += ("grouped heads", "LiteRT", "ONNX")
# What a signature of docs/portable.md says that heads do, by its table.
WORDS = {
    ("conversions", "score"): "scores",
    ("conversions", "decode"): "decodes",
    ("sources", "encode"): "encodes",
    ("sources", "decode"): "crosses",
}
ACROSS = ("encodes", "crosses")  # of encoder-decoders


def sparse(pattern):
    return lambda **common: layers.SparseAttention(**HEADS, pattern=pattern, **common)


def layer(name, **own):
    return lambda **common: getattr(layers, name)(**{**HEADS, **own}, **common)


OF_KIND = {"relative": {"max_distance": 4}}  # an argument that dense attention needs
ROUTED = {"num_clusters": 3, "cluster_size": 4, "seed": 0}
HASHED = {"num_buckets": 4, "bucket_size": 4, "seed": 0}
# Name, pattern, and whether it is causal alone (True), never (False) or as the call says (None).
COMPOSITIONS = [
    ("`Window(4)`", Window(4), None),
    ("`Window(4) \\| First(2)`", Window(4) | First(2), None),
    ("`Dilated(2, 3)`", Dilated(2, 3), None),
    ("`Stride(4) \\| Summary(4, 1)`", Stride(4) | Summary(4, 1), None),
    ("`Window(4) \\| Nearest(3, 4)`", Window(4) | Nearest(3, 4), None),
    ("`Window(4) \\| Hashed(4, 4)`", Window(4) | Hashed(4, 4), None),
    ("`Window(4) \\| TopKeys(3, 4)`", Window(4) | TopKeys(3, 4), False),
    ("`Window(4) \\| Successors(Nearest(3, 4))`", Window(4) | Successors(Nearest(3, 4)), True),
]
# Name, how to make it, and the lines of the two tables of docs/portable.md that tell of its conversion.
ROWS = [
    ("`LocalAttention`, window", layer("LocalAttention", window=4), "local, window, position None", "local, window"),
    ("`LocalAttention`, blocks", layer("LocalAttention", block_size=4), "local, blocks", "local, blocks"),
    ("`LocalAttention2D`", layer("LocalAttention2D", width=4, block_shape=(2, 2)), "local, two dimensions",
     "local, two dimensions"),
    ("`DenseAttention`", layer("DenseAttention"), "dense", "dense"),
    ("`StridedAttention`", layer("StridedAttention", stride=4), "strided, split", "strided"),
    ("`FixedAttention`", layer("FixedAttention", block_size=4, num_summary=1), "fixed, split", "fixed"),
    ("`RoutingAttention`, nearest", layer("RoutingAttention", **ROUTED, selection="nearest", share_qk=False),
     "routing, nearest, separate queries and keys", "routing, nearest"),
    ("`RoutingAttention`, nearest, shared", layer("RoutingAttention", **ROUTED, selection="nearest"),
     "routing, nearest, position None", "routing, nearest, shared"),
    ("`RoutingAttention`, successor values", layer("RoutingAttention", **ROUTED, use_successor_values=True),
     "routing, nearest, successor values", None),
    ("`RoutingAttention`, top_k", layer("RoutingAttention", **ROUTED, selection="top_k", share_qk=False),
     "routing, top_k", "routing, top_k"),
    ("`RoutingAttention`, top_keys", layer("RoutingAttention", **ROUTED, selection="top_keys", share_qk=False), None,
     "routing, top_keys"),
    ("`LSHAttention`, band", layer("LSHAttention", **HASHED, share_qk=False), "hashing (LSH), band",
     "hashing (LSH), band"),
    ("`LSHAttention`, chunks", layer("LSHAttention", **HASHED, share_qk=False, selection="chunks"),
     "hashing (LSH), chunks", "hashing (LSH), chunks"),
    ("`BlockSelectedAttention`", layer("BlockSelectedAttention", block_size=4), "selected blocks", None),
    ("`NativeSparseAttention`", layer("NativeSparseAttention", block_size=4, num_blocks=2, window=4),
     "native sparse attention", None),
    ("`AllAttention`", layer("AllAttention", num_persistent=3, window=4), "all-attention", "all-attention"),
    ("`GlobalLocalAttention`", layer("GlobalLocalAttention", window=4, num_first_global=1), None, "global tokens"),
    ("`ClusteredAttention`", layer("ClusteredAttention", num_clusters=3, seed=0), None, "clustered"),
    *((name, sparse(pattern), None if causal is False else name, None if causal else name)
      for name, pattern, causal in COMPOSITIONS),
]  # fmt: skip


def works(function):
    """Whether a call raises no `ValueError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
    except ValueError:
        return False
    return True


def is_causal(attention, x):
    return hides_later(attention) and works(lambda: attention(x, use_causal_mask=True))


def hides_later(attention):
    return can_be_causal(attention) and attention.pattern.causal_selection


def is_packed(make):
    """Whether a packed document gets what it gets alone, where that is promised and found."""
    keras.utils.set_random_seed(0)
    attention = built(Case(make))
    causal = hides_later(attention)
    x = normal(1, 41, SIZE)
    segments = np.array([[0] * 18 + [1] * 23], "int32")
    if not works(lambda: attention(x, segment_ids=segments, use_causal_mask=causal)):
        return False
    packed = to_numpy(attention(x, segment_ids=segments, use_causal_mask=causal))
    alone = [to_numpy(attention(part, use_causal_mask=causal)) for part in (x[:, :18], x[:, 18:])]
    return np.abs(packed - np.concatenate(alone, axis=1)).max() < 1e-5


def conversions(page):
    """Return what converts by the tables of docs/portable.md: a set of (line, target, word of `WORDS`)."""
    found = set()
    for table in conversion.TABLES:
        for name, *cells in conversion.lines_of(table, page):
            for (target, signature), cell in zip(table.columns, cells, strict=True):
                if re.fullmatch(r"\d+(\.\d+)?e-\d+", cell):
                    found.add((name, target, WORDS[table.name, signature]))
    return found


def converted(target, able, lines, known):
    """Return "yes" if a runtime has all that heads are able to do, otherwise what it has, or "no".

    Args:
        target: the runtime.
        able: some of the `WORDS`.
        lines: the names of the lines that tell, None for a table that has none.
        known: of `conversions`.
    """
    able = [word for word in able if lines[word in ACROSS] is not None]
    works = [word for word in able if (lines[word in ACROSS], target, word) in known]
    return "yes" if works == able else ", ".join(works) or "no"


def row(name, make, line, source_line, known):
    attention, x = built(Case(make)), normal(2, 11, SIZE)
    other = normal(2, 11, SIZE, seed=5)
    causal, both = is_causal(attention, x), works(lambda: attention(x))
    able = {"scores": True, "decodes": attention.cache_unsupported_reason is None}
    able |= {"encodes": both, "crosses": attention.cross_cache_unsupported_reason is None}
    able = [word for word, can in able.items() if can]
    return [
        name,
        _yes(causal),
        _yes(both),
        _yes(works(lambda: built(Case(make))(x, other))),
        _yes(is_packed(make)),
        _yes(supports_memory(attention) and works(lambda: attention(x, memory=other, use_causal_mask=causal))),
        _yes(attention.cache_unsupported_reason is None),
        _yes(attention.cross_cache_unsupported_reason is None),
        ", ".join(kind for kind in POSITIONS if works(lambda kind=kind: make(position=kind, **OF_KIND.get(kind, {}))))
        or "no",
        _yes(works(lambda: built(Case(make), num_key_value_heads=1)(x, use_causal_mask=causal))),
        *(converted(target, able, (line, source_line), known) for target in conversion.TARGETS),
    ]


def _yes(flag):
    return "yes" if flag else "no"


def table(page):
    """Return the table as Markdown, given the text of docs/portable.md."""
    known = conversions(page)
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row(*each, known) for each in ROWS)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    from tests.pages import ROOT

    print(table((ROOT / "docs" / "portable.md").read_text(encoding="utf-8")))
