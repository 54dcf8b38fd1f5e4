"""What strided and fixed attention share: how the heads divide two patterns among them."""

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.blocks import shape, slice_axis
from tf_sparse_attention.ops.decoding import (
    at_most,
    attend_kept,
    empty_places,
    keep_last,
    keep_next,
    kept_last,
)
from tf_sparse_attention.ops.positions import rotate_key

HEADS = ("split", "merged", "interleaved")
PARTS = ("local", "far")


class FactorizedAttention(AttentionLayer):
    """Base of attention with two patterns, "local" and "far", that together reach everything (Child et al. 2019).

    A subclass gives `attend_part`, which computes one of them or both "merged" in one softmax, and `pattern_of_part`.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        heads: "split": the first half of the heads (of an odd number the larger half) has the local pattern, the others
            the far one (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads
            have one of them, the local one in layers of an even `layer_index` (equation 6). Default "split".
        layer_index: the number of the layer from 0, for "interleaved" alone; `Backbone` fills it in.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: for a wrong argument, one head to be split, and "interleaved" without `layer_index`.
    """

    def __init__(self, num_heads, key_dim, *, heads="split", layer_index=None, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_choice("heads", heads, HEADS)
        checks.check_optional_count("layer_index", layer_index, minimum=0)
        if heads == "split" and num_heads == 1:
            raise ValueError(
                "`heads` must be 'merged' or 'interleaved' for a single head, which cannot be split. "
                f"Received: heads={heads!r}, num_heads={num_heads}."
            )
        if (heads == "interleaved") != (layer_index is not None):
            raise ValueError(
                "`layer_index` must be given where `heads` is 'interleaved', and only there. "
                f"Received: layer_index={layer_index}, heads={heads!r}."
            )
        self.heads = heads
        self.layer_index = layer_index

    def attend_part(self, part, query, key, value, **options):
        """Computes attention of heads that all have one part of the pattern.

        Args:
            part: "local", "far" or "merged".
            query: scaled queries (B, n, T, H).
            key: keys (B, n, S, H).
            value: values (B, n, S, Hv).
            **options: `causal`, `masks`, `position`, `dropout` and `return_weights` of the functions in `ops`.

        Returns:
            An `Attended`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `attend_part`.")

    def pattern_of_part(self, part, query_length, key_length, causal):
        """Returns which keys a part of the pattern lets a query see: bool (T, S), or (n, T, S) for each head."""
        raise NotImplementedError(f"{type(self).__name__} must define `pattern_of_part`.")

    def parts_of_heads(self):
        """Returns [(part, slice of the heads that have it)]."""
        if self.heads == "split":
            near = (self.num_heads + 1) // 2
            return [("local", slice(0, near)), ("far", slice(near, self.num_heads))]
        part = "merged" if self.heads == "merged" else PARTS[self.layer_index % 2]
        return [(part, slice(0, self.num_heads))]

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        query = query * self.key_dim**-0.5
        options = {"causal": causal, "return_weights": return_weights}
        results = [
            self.attend_part(
                part,
                *(_of_heads(x, heads) for x in (query, key, value)),
                masks=masks.of_heads(heads),
                position=self.position_of_heads.of_heads(heads),
                dropout=self.dropout_of_weights(training),
                **options,
            )
            for part, heads in self.parts_of_heads()
        ]
        return join_heads([x.output for x in results]), join_heads([x.weights for x in results])

    # Decoding: a ring for the local part, which reaches `reach` positions, and what a subclass keeps for the far one.

    reason_against_cache = None

    def first_near(self, index):
        """Returns the first position that the local part sees from `index` int32 (B,); None: all that a ring holds."""
        return None

    def new_far(self, batch_size, num_heads, max_length):
        """Returns the empty places of the far part's keys, of `ops.decoding.empty_places`."""
        raise NotImplementedError(f"{type(self).__name__} must define `new_far`.")

    def fill_far(self, places, key, value):
        """Returns these places with the keys and values (B, n, T, H) of a prompt; those of padding are never seen."""
        raise NotImplementedError(f"{type(self).__name__} must define `fill_far`.")

    def keep_far(self, places, key, value, index):
        """Returns these places with the key and value (B, n, 1, H) of the token at `index` int32 (B,)."""
        raise NotImplementedError(f"{type(self).__name__} must define `keep_far`.")

    def kept_far(self, places, index, merged):
        """Returns the `Kept` keys that queries at `index` see; if `merged`, without those the local part sees too."""
        raise NotImplementedError(f"{type(self).__name__} must define `kept_far`.")

    def new_cache(self, batch_size, max_length):
        cache = {}
        for kind, heads in self._kinds_of_heads():
            num_heads = heads.stop - heads.start
            if kind == "local":
                sizes = at_most(self.reach, max_length), self.key_dim, self.value_dim
                cache[kind] = empty_places(batch_size, num_heads, *sizes, self.compute_dtype)
            else:
                cache[kind] = self.new_far(batch_size, num_heads, max_length)
        return cache

    def fill_cache(self, cache, query, key, value, lengths):
        key = rotate_key(self.position_of_heads, key)
        new = {}
        for kind, heads in self._kinds_of_heads():
            own = cache[kind], *(_of_heads(x, heads) for x in (key, value))
            new[kind] = keep_last(*own, lengths) if kind == "local" else self.fill_far(*own)
        return new

    def decode_heads(self, query, key, value, cache, index):
        query, key = query * self.key_dim**-0.5, rotate_key(self.position_of_heads, key, index)
        new, results = {}, {}
        for kind, heads in self._kinds_of_heads():
            keep = keep_next if kind == "local" else self.keep_far
            new[kind] = keep(cache[kind], *(_of_heads(x, heads) for x in (key, value)), index)
            if kind == "local":
                kept = kept_last(new[kind], index, self.first_near(index))
            else:
                kept = self.kept_far(new[kind], index, merged=self.heads == "merged")
            position = self.position_of_heads.of_heads(heads)
            results[kind] = attend_kept(_of_heads(query, heads), kept, index, position, return_log_sum_exp=True)
        if self.heads == "merged":
            return combine_attended(list(results.values())).output, new
        return join_heads([attended.output for attended in results.values()]), new

    def _kinds_of_heads(self):
        """Returns [("local" or "far", slice of the heads that see that)]; all heads see both if they are merged."""
        return [
            (kind, heads) for part, heads in self.parts_of_heads() for kind in (PARTS if part == "merged" else (part,))
        ]

    def pattern(self, query, key, masks, causal):
        lengths = shape(query)[2], shape(key)[2]
        parts = []
        for part, heads in self.parts_of_heads():
            pattern = self.pattern_of_part(part, *lengths, causal)
            parts.append(ops.broadcast_to(pattern, (heads.stop - heads.start, *lengths)))
        return ops.concatenate(parts, axis=0)

    def get_config(self):
        return {**super().get_config(), "heads": self.heads, "layer_index": self.layer_index}


def _of_heads(x, heads):
    return slice_axis(x, -3, heads.start, heads.stop)


def join_heads(parts):
    """Returns heads one after the other, None where the parts are None."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return ops.concatenate(parts, axis=1)
