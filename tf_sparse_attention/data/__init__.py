"""Text data: tokenizers, TFDS sources, token stores and batches."""

from tf_sparse_attention.data.batches import (
    SegmentBatches,
    TokenStore,
    TrainingBatches,
    distribute_batches,
    evaluation_batches,
    evaluation_segments,
    open_token_store,
    pack_masked,
    pack_windows,
    shard_rows,
)
from tf_sparse_attention.data.sources import TextSource, load_documents, open_source
from tf_sparse_attention.data.tokenizers import (
    ByteTokenizer,
    SentencePieceTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    train_subwords,
)

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
__dir__ = __all__.copy  # without the modules inside
