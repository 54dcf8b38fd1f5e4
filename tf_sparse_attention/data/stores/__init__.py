"""Prepared data sets on disk: arrays that are written once, checked, and memory-mapped."""

from tf_sparse_attention.data.stores.array_store import ArrayStore
from tf_sparse_attention.data.stores.speech_store import SpeechStore, open_speech_store
from tf_sparse_attention.data.stores.token_store import TokenStore, open_token_store

__all__ = ["ArrayStore", "SpeechStore", "TokenStore", "open_speech_store", "open_token_store"]
