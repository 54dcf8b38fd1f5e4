"""What strided and fixed attention share: how the heads divide two patterns among them."""

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.blocks import shape, slice_axis
from tf_sparse_attention.ops.decoding import attend_kept
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

    reason_against_cache = None

    def new_places(self, part, batch_size, num_heads, max_length):
        """Returns the empty places of one kind of a part's keys, "local" or "far", as `ops.decoding` has them."""
        raise NotImplementedError(f"{type(self).__name__} must define `new_places`.")

    def fill_places(self, part, places, key, value, lengths):
        """Returns these places with the keys and values (B, n, T, H) of a prompt of `lengths` int32 (B,) tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define `fill_places`.")

    def keep_next(self, part, places, key, value, index):
        """Returns these places with the key and value (B, n, 1, H) of the token at `index` int32 (B,)."""
        raise NotImplementedError(f"{type(self).__name__} must define `keep_next`.")

    def kept(self, part, places, index, merged):
        """Returns the `Kept` keys that queries at `index` see; if `merged`, "far" leaves out what "local" sees too."""
        raise NotImplementedError(f"{type(self).__name__} must define `kept`.")

    def new_cache(self, batch_size, max_length):
        return {
            kind: self.new_places(kind, batch_size, heads.stop - heads.start, max_length)
            for part, heads in self.parts_of_heads()
            for kind in _kinds(part)
        }

    def fill_cache(self, cache, query, key, value, lengths):
        key = rotate_key(self.position_of_heads, key)
        return {
            kind: self.fill_places(kind, cache[kind], *(_of_heads(x, heads) for x in (key, value)), lengths)
            for part, heads in self.parts_of_heads()
            for kind in _kinds(part)
        }

    def decode_heads(self, query, key, value, cache, index):
        query, key = query * self.key_dim**-0.5, rotate_key(self.position_of_heads, key, index)
        cache, outputs = dict(cache), []
        for part, heads in self.parts_of_heads():
            position, results = self.position_of_heads.of_heads(heads), []
            for kind in _kinds(part):
                cache[kind] = self.keep_next(kind, cache[kind], *(_of_heads(x, heads) for x in (key, value)), index)
                kept = self.kept(kind, cache[kind], index, merged=part == "merged")
                results.append(attend_kept(_of_heads(query, heads), kept, index, position, return_log_sum_exp=True))
            outputs.append(combine_attended(results).output)
        return join_heads(outputs), cache

    def pattern(self, query, key, masks, causal):
        lengths = shape(query)[2], shape(key)[2]
        parts = []
        for part, heads in self.parts_of_heads():
            pattern = self.pattern_of_part(part, *lengths, causal)
            parts.append(ops.broadcast_to(pattern, (heads.stop - heads.start, *lengths)))
        return ops.concatenate(parts, axis=0)

    def get_config(self):
        return {**super().get_config(), "heads": self.heads, "layer_index": self.layer_index}


def _kinds(part):
    """Returns the kinds of places that a part keeps keys in."""
    return PARTS if part == "merged" else (part,)


def _of_heads(x, heads):
    return slice_axis(x, -3, heads.start, heads.stop)


def join_heads(parts):
    """Returns heads one after the other, None where the parts are None."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return ops.concatenate(parts, axis=1)
