"""The cache of a backbone: `init_cache`, `prefill` and `decode`."""

from typing import Any

from keras import ops

from tf_sparse_attention.layers.attention.attention_checks import check_entries
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.models.input_dictionary import arguments_of_block, unpack
from tf_sparse_attention.models.segment_memory import in_last_document
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Tensor


class BackboneCache:
    """Mixin of `Backbone`: the three methods of decoding with a cache.

    A cache is a dictionary by the names of blocks, each of them one by the names of its layers, down to tensors of
    static shape. The results are those of a call for the whole sequence, without dropout, up to rounding.

    `prefill` starts a sequence, on an empty cache; `decode` adds the next token, whose position is the number of tokens
    in the cache. Anything else raises a `ValueError`, or gives NaN inside of a compiled program, see `AttentionCache`.
    """

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Reason why the model cannot decode with a KV cache, or None."""
        if not self.causal:
            return "it sees later tokens"
        return next((block.cache_unsupported_reason for block in self.blocks if block.cache_unsupported_reason), None)

    def init_cache(
        self,
        batch_size: int | Tensor,
        max_length: int | Tensor | None,
        memory: dict[str, Tensor] | None = None,
        positions_in_cache: bool = False,
        **encoded: Tensor | None,
    ) -> dict[str, Any]:
        """Returns the cache before the first token.

        Args:
            batch_size: B, an integer or a scalar tensor.
            max_length: the most tokens that a sequence can have, an integer, or in a graph a scalar tensor. None: any
                number, of a model all of whose parts have caches that do not grow.
            memory: what `forward_with_memory` returned for the segment before. Each row continues its latest document,
                and positions count from 0 again. None: a new text.
            positions_in_cache: as in `AttentionLayer.init_cache`, for all blocks. Default False.
            **encoded: of a backbone with `cross_attention` "encoder_sequence" and, if some of it is padding,
                "encoder_padding_mask": its keys and values are computed here, once.

        Raises:
            ValueError: if the model cannot decode with a cache, for a memory if `memory_length` is 0, and for no
                `max_length` where a part keeps more the longer a sequence is, which the message names.
        """
        check_has_cache(self)
        if max_length is None and self.max_length is not None:
            raise ValueError(
                f"`max_length` must be given: {self.grid_embedding.name} has {self.max_length} positions. "
                "Received: max_length=None."
            )
        if memory is not None and self.memory_length == 0:
            raise ValueError("`memory` must be None for a backbone whose `memory_length` is 0. Received: a memory.")
        seen = None if memory is None else in_last_document(memory["segment_ids"])
        return {
            block.name: block.init_cache(
                batch_size,
                max_length,
                None if memory is None else memory[block.name],
                seen,
                positions_in_cache=positions_in_cache,
                **arguments_of_block(block, encoded),
            )
            for block in self.blocks
        }

    def prefill(
        self, inputs: Tensor | dict[str, Tensor], cache: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Computes the vectors of a prompt in one pass, as a call does, and fills the cache.

        Args:
            inputs: int (B, T) token ids from the first one on, or a dictionary as in a call, where there is
                `cross_attention` with the same "encoder_sequence" and "encoder_padding_mask" as for `init_cache`.
            cache: what `init_cache` returned; it must hold no tokens yet.
            mask: bool (B, T), False for padding, which must be on the right. None: the "padding_mask", if any.

        Returns:
            Pair of the vectors (B, T, D) and the cache.

        Raises:
            ValueError: for segment ids, since a cache holds one document per row, for a cache that holds tokens, and
                for padding on the left.
        """
        unpacked = unpack(inputs, self.input_names, mask)
        if unpacked.segment_ids is not None or "encoder_segment_ids" in unpacked.further:
            raise ValueError(
                "`inputs` must have no 'segment_ids': a cache holds one document a row. Received: segment ids."
            )
        mask = unpacked.padding_mask
        x = self.embed(self.as_inputs("inputs", unpacked.tokens, mask))
        return self._run_blocks(
            x,
            cache,
            lambda block, x, cache: block.prefill(x, cache, mask, **arguments_of_block(block, unpacked.further)),
        )

    def decode(self, token_ids: Tensor, cache: dict[str, Any], index: int | Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Returns the vectors of the next token and the cache after it.

        Args:
            token_ids: int (B, 1), or features (B, 1, F).
            cache: what `init_cache`, `prefill` or the last `decode` returned.
            index: int32 () or (B,), the position of the token: the number of tokens in the cache.

        Returns:
            Pair of the vectors (B, 1, D) and the cache.

        Raises:
            ValueError: for ids beyond the vocabulary, where they can be seen, and as `AttentionLayer.decode`.
        """
        token_ids = self.as_inputs("token_ids", token_ids)
        positions = ops.broadcast_to(ops.cast(index, "int32"), (shape(token_ids)[0],))[:, None]
        x = self.embed(token_ids, positions=positions)
        return self._run_blocks(x, cache, lambda block, x, cache: block.decode(x, cache, index))

    def _run_blocks(self, x, cache, run):
        check_entries(cache, [block.name for block in self.blocks])
        new = {}
        for block in self.blocks:
            x, new[block.name] = run(block, x, cache[block.name])
        return (x if self.final_norm is None else self.final_norm(x)), new
