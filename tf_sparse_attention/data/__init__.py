"""Text data: tokenizers, TFDS sources, token stores and batches."""

from tf_sparse_attention.data.batches import (
    LengthBuckets,
    PairBatches,
    PairBuckets,
    SegmentBatches,
    TokenStore,
    TrainingBatches,
    distribute_batches,
    evaluation_batches,
    evaluation_segments,
    open_token_store,
    pack_masked,
    pack_pairs,
    pack_prefixes,
    pack_windows,
    shard_rows,
)
from tf_sparse_attention.data.sources import PairSource, TextSource, load_documents, open_pairs, open_source
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
    "LengthBuckets",
    "PairBatches",
    "PairBuckets",
    "PairSource",
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
    "open_pairs",
    "open_source",
    "open_token_store",
    "pack_masked",
    "pack_pairs",
    "pack_prefixes",
    "pack_windows",
    "shard_rows",
    "train_subwords",
]
__dir__ = __all__.copy  # without the modules inside
