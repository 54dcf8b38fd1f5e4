"""Token stores, and the batches that are cut from them for training and evaluation."""

from tf_sparse_attention.data.batches.evaluation import evaluation_batches
from tf_sparse_attention.data.batches.feature_masking import FeatureMasks
from tf_sparse_attention.data.batches.labeled import LabeledBuckets
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.batches.masking import pack_masked
from tf_sparse_attention.data.batches.packing import pack_windows
from tf_sparse_attention.data.batches.pairs import PairBatches, PairBuckets, pack_pairs
from tf_sparse_attention.data.batches.prefixes import pack_prefixes
from tf_sparse_attention.data.batches.segments import SegmentBatches, evaluation_segments
from tf_sparse_attention.data.batches.sharding import distribute_batches, shard_rows
from tf_sparse_attention.data.batches.speech import SpeechBatches, SpeechBuckets
from tf_sparse_attention.data.batches.speech_store import SpeechStore, open_speech_store
from tf_sparse_attention.data.batches.token_store import TokenStore
from tf_sparse_attention.data.batches.token_writer import open_token_store
from tf_sparse_attention.data.batches.training import TrainingBatches

__all__ = [
    "FeatureMasks",
    "LabeledBuckets",
    "LengthBuckets",
    "PairBatches",
    "PairBuckets",
    "SegmentBatches",
    "SpeechBatches",
    "SpeechBuckets",
    "SpeechStore",
    "TokenStore",
    "TrainingBatches",
    "distribute_batches",
    "evaluation_batches",
    "evaluation_segments",
    "open_speech_store",
    "open_token_store",
    "pack_masked",
    "pack_pairs",
    "pack_prefixes",
    "pack_windows",
    "shard_rows",
]
