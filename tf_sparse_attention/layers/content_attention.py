"""What the layers share in which content decides which keys a query sees: clusters of routing, buckets of hashing."""

import random
import warnings

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer


def drawn_seed(seed):
    """Returns `seed`, or a new one for None: what a layer draws with it then is part of its configuration."""
    return random.randrange(2**31) if seed is None else seed


class ContentAttention(AttentionLayer):
    """Base of `RoutingAttention` and `LSHAttention`.

    Args:
        num_heads: as in `AttentionLayer`, like `key_dim` and the keyword arguments.
        selection: how keys are selected; its value is checked by the subclass.
        share_qk: whether queries serve as keys, so that no key projection exists.
        mask_self: whether a token sees itself only when it sees nothing else. None: the subclass decides.

    Raises:
        ValueError: for a wrong argument.
    """

    def __init__(self, num_heads, key_dim, *, selection, share_qk, mask_self, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_switch("share_qk", share_qk)
        if mask_self is not None:
            checks.check_switch("mask_self", mask_self)
        self.selection = selection
        self.share_qk = share_qk
        self.mask_self = mask_self
        self.seed = drawn_seed(self.seed)
        self._has_warned = False

    @property
    def has_keys(self):
        return not self.share_qk

    def warn_of_causal_mask(self, what, instead):
        """Warns, the first time, that a causal mask does not make a selection causal that looks ahead.

        Args:
            what: what depends on the whole sequence, as text.
            instead: the selection to use, as text.
        """
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"{type(self).__name__} with selection={self.selection!r} under a causal mask is not causal: {what} "
            f"depends on the whole sequence. Use selection={instead!r} (the default of causal calls).",
            stacklevel=3,
        )

    def get_config(self):
        names = ("selection", "share_qk", "mask_self")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
