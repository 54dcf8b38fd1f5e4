"""Training batches that are a pure function of seed and step."""

import hashlib
from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_rate, check_seed
from tf_sparse_attention.data.batches.masking import hidden_positions, pack_masked
from tf_sparse_attention.data.batches.packing import pack_windows
from tf_sparse_attention.data.batches.random_order import shuffled_index
from tf_sparse_attention.data.batches.streams import batch_stream
from tf_sparse_attention.data.batches.token_store import TokenStore, read_windows


class TrainingBatches:
    """Endless random windows of a token store; batch k is a pure function of (seed, k).

    An epoch cuts the whole stream into `num_windows = max(1, num_tokens // sequence_length)` windows from an offset
    that is drawn for each epoch, wrapping around the end, and visits them in an order that is drawn for
    each epoch: every token is seen at most once an epoch, and all but the last num_tokens mod sequence_length are. A
    batch may hold the end of one epoch and the start of the next. A stream shorter than one window is padded.

    The order is that of `shuffled_index`, which computes one element of a permutation without the
    others: starting at step k costs the same for every k. A resumed run therefore gets exactly the batches of an
    uninterrupted one.

    Args:
        store: `TokenStore`.
        batch_size: windows in a batch, over all replicas.
        sequence_length: tokens in a window.
        seed: integer in [0, 2**63). Default 0.
        use_packing: whether documents in a window are separate sequences, see `pack_windows`. Default True.
        mask_rate: fraction of the tokens that is hidden, for bidirectional models; see `pack_masked`. Default 0: the
            next token is the target.

    Attributes:
        num_windows: windows in an epoch.
        steps_per_epoch: batches in an epoch, rounded up.

    Raises:
        ValueError: If a size is not positive or the seed out of range.

    Example:

    >>> batches = TrainingBatches(store, batch_size=8, sequence_length=1024)
    >>> model.fit(batches.dataset(start_step=300), steps_per_epoch=100, shuffle=False)
    """

    def __init__(
        self,
        store: TokenStore,
        batch_size: int,
        sequence_length: int,
        seed: int = 0,
        use_packing: bool = True,
        mask_rate: float = 0.0,
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("sequence_length", sequence_length)
        check_seed(seed)
        self.store, self.batch_size, self.sequence_length = store, batch_size, sequence_length
        check_rate("mask_rate", mask_rate)
        self.seed, self.use_packing, self.mask_rate = seed, use_packing, mask_rate
        self.num_windows = max(1, store.num_tokens // sequence_length)
        self.steps_per_epoch = -(-self.num_windows // batch_size)

    def batch(self, step: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Returns the whole batch of a step as NumPy arrays: `(inputs, targets, weights)`, see `pack_windows`."""
        return self._element(step, 0, self.batch_size)

    def dataset(
        self,
        start_step: int = 0,
        num_steps: int | None = None,
        num_shards: int = 1,
        shard_index: int = 0,
        num_parts: int = 1,
    ) -> Any:
        """Makes the data set of the batches from a step on.

        Args:
            start_step: the first step.
            num_steps: number of steps. None: endless. Default: None.
            num_shards, shard_index, num_parts: see `shard_rows`. An element has batch_size / num_shards / num_parts
                rows, and a step `num_parts` elements.

        Returns:
            `tf.data.Dataset` of `(inputs, targets, weights)` with static shapes; where TensorFlow is not installed, a
            `keras.utils.PyDataset` of the same batches.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        stop = None if num_steps is None else start_step + num_steps
        return batch_stream(self._element, self.batch_size, start_step, stop, num_shards, shard_index, num_parts)

    def _element(self, step, first_row, rows):
        """Returns rows `first_row` to `first_row + rows` of the batch of a step."""
        index = step * self.batch_size + first_row + np.arange(rows, dtype="int64")
        epoch, position = index // self.num_windows, index % self.num_windows
        tokens = self._read(epoch, shuffled_index(position, self.seed, epoch, self.num_windows))
        if self.mask_rate:
            hidden = hidden_positions(index, self.sequence_length, self.mask_rate, self.seed)
            return pack_masked(tokens, hidden, self.store.end_id, self.use_packing)
        # Windows wrap around the end of the stream, so only a stream shorter than a window is padded, and one of
        # recordings, which have padding between them.
        padded = self.store.num_tokens < self.sequence_length or self.store.end_id == 0
        return pack_windows(tokens, self.store.end_id, self.use_packing, padded)

    def _read(self, epoch, window):
        offsets = np.array([self._offset(int(number)) for number in epoch])
        starts = (offsets + window * self.sequence_length) % self.store.num_tokens
        return read_windows(self.store.tokens, starts, self.sequence_length, wrap=True)

    def _offset(self, epoch):
        # A hash, unlike NumPy's or TensorFlow's generators, is the same in every version of every library.
        digest = hashlib.blake2b(f"{self.seed}/{epoch}".encode(), digest_size=16).digest()
        return int.from_bytes(digest, "big") % self.store.num_tokens
