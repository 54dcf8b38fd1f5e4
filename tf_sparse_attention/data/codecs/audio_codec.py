"""Samples of sound as bytes, and back."""

import functools
from typing import Self

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tensors import is_tensor
from tf_sparse_attention.types import Config, Tensor

NUM_SPECIAL = 1
NUM_BYTES = 256
MU = 255
SCALE = 32768  # of 16-bit samples


class AudioCodec:
    """Maps 16-bit samples to ids of 8 bits, and ids to samples: byte b is id b + 1.

    The companding of ITU-T G.711 with mu = 255: of a sample x in [-1, 1),

    F(x) = sign(x) ln(1 + mu |x|) / ln(1 + mu), which is rounded to one of 256 values from -1 to 1,

    so that steps are 6 of 32,768 near silence, and 1,400 where sound is loudest. A byte comes back exactly:
    `encode(decode(ids))` is `ids`; a sample comes back within 5 % of its size, or within 5 of 32,768 below 100.

    Id 0 is padding and also the start id that a model reads before the first sample; the vocabulary has 257 ids. A
    token store of recordings (`open_token_store(source, codec, split)`, of an `AudioSource`) has id 0 between them,
    which is never scored: recordings have no end that a model would learn.

    Note: G.711 itself puts the formula on straight lines, and has two bytes for silence, one of which would not come
    back. The formula alone has none: silence is +3 of 32,768.

    Args:
        sample_rate: samples per second, for the files that are written. No effect on ids.

    Raises:
        ValueError: if it is not a positive integer.

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
        """Returns the ids of samples.

        Args:
            samples: int16 of any shape, an array or, in a graph of TensorFlow too, a tensor.

        Returns:
            int32 of that shape, an array for an array and a tensor for a tensor.

        Raises:
            ValueError: for another dtype.
        """
        if not is_tensor(samples):
            samples = np.asarray(samples)
        dtype = getattr(samples.dtype, "name", samples.dtype)
        if dtype != "int16":
            raise ValueError(f"`samples` must be int16. Received: {dtype} of shape {tuple(samples.shape)}.")
        table = _bytes_of_samples()
        if not is_tensor(samples):
            return table[samples.astype(np.int32) + SCALE].astype(np.int32) + NUM_SPECIAL
        import tensorflow as tf

        return tf.cast(tf.gather(table, tf.cast(samples, tf.int32) + SCALE), tf.int32) + NUM_SPECIAL

    def decode(self, ids: Tensor) -> Tensor:
        """Returns the samples of ids.

        Args:
            ids: integers of any shape: a sequence, an array or a tensor.

        Returns:
            int16 of that shape, an array, or a tensor for a tensor. In a tensor an id that is no byte gives byte 0 or
            255, since a graph cannot raise cheaply.

        Raises:
            ValueError: for ids that are no bytes in anything but a tensor.
        """
        table = _samples_of_bytes()
        if is_tensor(ids):
            import tensorflow as tf

            return tf.gather(table, tf.clip_by_value(tf.cast(ids, tf.int32) - NUM_SPECIAL, 0, NUM_BYTES - 1))
        ids = np.asarray(ids)
        wrong = ids[(ids < NUM_SPECIAL) | (ids >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(f"`ids` must be in [1, 257), those of bytes. Received: {wrong[0]} among them.")
        return table[ids.astype(np.int32) - NUM_SPECIAL]

    def tokenize(self, content: bytes) -> np.ndarray:
        """Returns the ids of bytes, int32 (T,); see `AudioSource.documents`."""
        return np.frombuffer(content, np.uint8).astype(np.int32) + NUM_SPECIAL

    def get_config(self) -> Config:
        """Returns the arguments of the constructor."""
        return {"sample_rate": self.sample_rate}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Returns the codec of a `get_config`."""
        return cls(**config)


@functools.cache
def _bytes_of_samples() -> np.ndarray:
    """Returns the byte of each sample from -32768 to 32767, uint8 (65536,).

    A table, since a logarithm would be rounded in another way by NumPy than in a graph.
    """
    x = np.arange(-SCALE, SCALE) / SCALE
    companded = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
    return np.floor((companded + 1) / 2 * MU + 0.5).astype(np.uint8)


@functools.cache
def _samples_of_bytes() -> np.ndarray:
    """Returns the sample of each byte, int16 (256,)."""
    companded = 2 * np.arange(NUM_BYTES) / MU - 1
    x = np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(MU)) / MU
    return np.clip(np.round(x * SCALE), -SCALE, SCALE - 1).astype(np.int16)
