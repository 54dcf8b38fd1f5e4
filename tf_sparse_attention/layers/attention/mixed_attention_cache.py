"""Decoding of a mixture: the caches of its parts by their names."""

from collections.abc import Callable

from tf_sparse_attention.layers.attention.attention_cache import check_has_cache
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.cache_checks import check_entries
from tf_sparse_attention.layers.attention.cross_attention_cache import check_has_cross_cache
from tf_sparse_attention.patterns.engine.slots import Cache
from tf_sparse_attention.types import Size, Tensor


class MixedAttentionCache:
    """What decodes in a layer that has `parts` and adds their outputs up (`_sum`)."""

    parts: list[AttentionLayer]

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Why a part cannot decode with a cache, as text; None if all can."""
        return next((part.cache_unsupported_reason for part in self.parts if part.cache_unsupported_reason), None)

    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions_in_cache: bool = False,
    ) -> dict[str, Cache]:
        """Returns the caches of the parts by their names, before the first token.

        The arguments and errors are those of `AttentionLayer.init_cache`.
        """
        check_has_cache(self)
        given = batch_size, max_length, memory, memory_mask, positions_in_cache
        return {name: part.init_cache(*given) for name, part in self._named_parts()}

    def prefill(
        self, x: Tensor, cache: dict[str, Cache], mask: Tensor | None = None, kept: Size | None = None
    ) -> tuple[Tensor, dict[str, Cache]]:
        """Returns the results (B, T, D) for a prompt, and the caches after it.

        The caches must hold no tokens, and padding must be on the right. The arguments and errors are those of
        `AttentionLayer.prefill`.
        """
        return self._sum_of_cached(cache, lambda part, own: part.prefill(x, own, mask, kept))

    def decode(self, x: Tensor, cache: dict[str, Cache], index: Size) -> tuple[Tensor, dict[str, Cache]]:
        """Returns the result (B, 1, D) for the next token, and the caches after it.

        `index` must be the number of tokens in the caches. The arguments and errors are those of
        `AttentionLayer.decode`.
        """
        return self._sum_of_cached(cache, lambda part, own: part.decode(x, own, index))

    @property
    def cross_cache_unsupported_reason(self) -> str | None:
        """Why a part cannot decode with a cross-attention cache, as text; None if all can."""
        return next(
            (part.cross_cache_unsupported_reason for part in self.parts if part.cross_cache_unsupported_reason), None
        )

    def init_cross_cache(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> dict[str, Cache]:
        """Returns what the parts keep of the other sequence; see `AttentionLayer.init_cross_cache`, likewise below."""
        check_has_cross_cache(self)
        given = value, key, value_mask, key_mask
        return {name: part.init_cross_cache(*given) for name, part in self._named_parts()}

    def decode_cross(self, x: Tensor, cache: dict[str, Cache], index: Size) -> Tensor:
        """Returns the result (B, 1, D) for one query a row."""
        return self._sum([part.decode_cross(x, own, index) for _, part, own in self._parts_with(cache)])

    def _named_parts(self) -> list[tuple[str, AttentionLayer]]:
        names = [part.name for part in self.parts]
        return [
            (name if names.count(name) == 1 else f"{name}_{number}", part)
            for number, (name, part) in enumerate(zip(names, self.parts, strict=True))
        ]

    def _parts_with(self, cache: dict[str, Cache]) -> list[tuple[str, AttentionLayer, Cache]]:
        """Returns name, part and cache of all parts."""
        named = self._named_parts()
        check_entries(cache, [name for name, _ in named])
        return [(name, part, cache[name]) for name, part in named]

    def _sum_of_cached(
        self, cache: dict[str, Cache], run: Callable[[AttentionLayer, Cache], tuple[Tensor, Cache]]
    ) -> tuple[Tensor, dict[str, Cache]]:
        """Returns the sum of what the parts compute with their caches, and the caches after it."""
        results = {name: run(part, own) for name, part, own in self._parts_with(cache)}
        return self._sum([output for output, _ in results.values()]), {name: new for name, (_, new) in results.items()}
