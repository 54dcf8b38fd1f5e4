"""Tokenizers for Python text and for string tensors of TensorFlow."""

from tf_sparse_attention.data.tokenizers.byte_tokenizer import ByteTokenizer
from tf_sparse_attention.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from tf_sparse_attention.data.tokenizers.subword_tokenizer import SubwordTokenizer
from tf_sparse_attention.data.tokenizers.subword_training import train_subwords
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.data.tokenizers.wordpiece_tokenizer import WordPieceTokenizer

__all__ = [
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "train_subwords",
]
