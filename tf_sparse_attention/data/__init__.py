"""Text data: tokenizers, TFDS sources, token stores and batches."""

from tf_sparse_attention.data.byte_tokenizer import ByteTokenizer
from tf_sparse_attention.data.evaluation_batches import evaluation_batches
from tf_sparse_attention.data.masking import pack_masked
from tf_sparse_attention.data.packing import pack_windows
from tf_sparse_attention.data.segments import SegmentBatches, evaluation_segments
from tf_sparse_attention.data.sentencepiece_tokenizer import SentencePieceTokenizer
from tf_sparse_attention.data.sharding import distribute_batches, shard_rows
from tf_sparse_attention.data.subword_tokenizer import SubwordTokenizer
from tf_sparse_attention.data.subword_training import train_subwords
from tf_sparse_attention.data.text_source import TextSource, load_documents, open_source
from tf_sparse_attention.data.token_store import TokenStore
from tf_sparse_attention.data.token_writer import open_token_store
from tf_sparse_attention.data.tokenizer import Tokenizer
from tf_sparse_attention.data.training_batches import TrainingBatches
from tf_sparse_attention.data.wordpiece_tokenizer import WordPieceTokenizer

__all__ = [
    "ByteTokenizer",
    "SegmentBatches",
    "SentencePieceTokenizer",
    "SubwordTokenizer",
    "TextSource",
    "TokenStore",
    "Tokenizer",
    "TrainingBatches",
    "WordPieceTokenizer",
    "distribute_batches",
    "evaluation_batches",
    "evaluation_segments",
    "load_documents",
    "open_source",
    "open_token_store",
    "pack_masked",
    "pack_windows",
    "shard_rows",
    "train_subwords",
]
