"""Mu-law codec of audio samples."""

import functools
from typing import Self

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import is_tensor
from tf_sparse_attention.types import Config, Tensor

NUM_SPECIAL = 1
NUM_BYTES = 256
MU = 255
SCALE = 32768  # 16-bit samples are in [-SCALE, SCALE)


class AudioCodec:
    """Mu-law codec: each 16-bit sample is one byte, and byte b has the id b + 1.

    The companding function of ITU-T G.711 with mu = 255, for a sample x in [-1, 1), is

    F(x) = sign(x) ln(1 + mu |x|) / ln(1 + mu).

    F(x) is rounded to one of 256 values from -1 to 1. Steps are 6 units (of 32,768) near silence and 1,400 at full
    scale. `encode(decode(ids))` equals `ids`. `decode(encode(samples))` is within 5 % of each sample, or within 5 units
    for samples below 100.

    Id 0 is padding and the start id before the first sample; the vocabulary has 257 ids. In the token store of an
    `AudioSource`, id 0 separates recordings and is never scored: a model does not learn where a recording ends.

    Note: differs from G.711, which approximates F by line segments and has two bytes for silence. Here silence is
    decoded as 3 units.

    Args:
        sample_rate: samples per second of written files. Ids are independent of the rate.

    Raises:
        ValueError: If `sample_rate` is not a positive integer.

    Example:

    >>> codec = AudioCodec(sample_rate=8000)
    >>> codec.encode(np.array([-32768, 0, 1000, 32767], np.int16))
    array([  1, 129, 178, 256], dtype=int32)
    >>> codec.decode([1, 129, 178, 256])
    array([-32768,      3,    978,  32767], dtype=int16)
    """

    pad_id = start_id = end_id = 0
    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    def __init__(self, sample_rate: int) -> None:
        checks.check_count("sample_rate", sample_rate)
        self.sample_rate = sample_rate

    def encode(self, samples: Tensor) -> Tensor:
        """Convert samples to ids.

        Args:
            samples: int16 array or tensor of any shape.

        Returns:
            int32 array or tensor of the same shape.

        Raises:
            ValueError: If `samples` has another dtype.
        """
        if not is_tensor(samples):
            samples = np.asarray(samples)
        dtype = getattr(samples.dtype, "name", samples.dtype)
        if dtype != "int16":
            raise ValueError(f"`samples` must be int16. Received: {dtype} of shape {tuple(samples.shape)}.")
        table = _encoding_table()
        if not is_tensor(samples):
            return table[samples.astype(np.int32) + SCALE].astype(np.int32) + NUM_SPECIAL
        import tensorflow as tf

        return tf.cast(tf.gather(table, tf.cast(samples, tf.int32) + SCALE), tf.int32) + NUM_SPECIAL

    def decode(self, ids: Tensor) -> Tensor:
        """Convert ids to samples.

        Args:
            ids: integers of any shape: sequence, array or tensor.

        Returns:
            int16 array or tensor of the same shape. Ids in tensors are clipped to [1, 257), because a check would slow
            down the graph.

        Raises:
            ValueError: If an id of a sequence or array is not in [1, 257).
        """
        table = _decoding_table()
        if is_tensor(ids):
            import tensorflow as tf

            return tf.gather(table, tf.clip_by_value(tf.cast(ids, tf.int32) - NUM_SPECIAL, 0, NUM_BYTES - 1))
        ids = np.asarray(ids)
        wrong = ids[(ids < NUM_SPECIAL) | (ids >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(f"`ids` must be in [1, 257). Received: id {wrong[0]}.")
        return table[ids.astype(np.int32) - NUM_SPECIAL]

    def tokenize(self, content: bytes) -> np.ndarray:
        """Convert bytes to ids, int32 (T,); see `AudioSource.documents`."""
        return np.frombuffer(content, np.uint8).astype(np.int32) + NUM_SPECIAL

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"sample_rate": self.sample_rate}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create a codec from its config."""
        return cls(**config)


@functools.cache
def _encoding_table() -> np.ndarray:
    """Return the byte of each sample from -32768 to 32767, uint8 (65536,).

    A table gives equal results in NumPy and TensorFlow, which round logarithms differently.
    """
    x = np.arange(-SCALE, SCALE) / SCALE
    companded = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
    return np.floor((companded + 1) / 2 * MU + 0.5).astype(np.uint8)


@functools.cache
def _decoding_table() -> np.ndarray:
    """Return the sample of each byte, int16 (256,)."""
    companded = 2 * np.arange(NUM_BYTES) / MU - 1
    x = np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(MU)) / MU
    return np.clip(np.round(x * SCALE), -SCALE, SCALE - 1).astype(np.int16)
