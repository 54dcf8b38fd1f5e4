"""Sound: where it comes from, and its samples as bytes."""

from tf_sparse_attention.data.audio.codec import AudioCodec
from tf_sparse_attention.data.audio.source import AudioSource, open_audio

__all__ = ["AudioCodec", "AudioSource", "open_audio"]
