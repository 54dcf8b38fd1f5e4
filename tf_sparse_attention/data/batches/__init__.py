"""Batches for training and evaluation, each a pure function of its number."""

from tf_sparse_attention.data.batches.batches import Batches, Rows
from tf_sparse_attention.data.batches.images import image_batches, image_evaluation_batches, pack_images
from tf_sparse_attention.data.batches.labeled import LabeledBuckets
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.batches.pairs import PairBuckets, pack_pairs, pack_prefixes
from tf_sparse_attention.data.batches.segments import evaluation_segments, segment_batches
from tf_sparse_attention.data.batches.speech import FeatureMasks, SpeechBuckets
from tf_sparse_attention.data.batches.windows import evaluation_batches, pack_masked, pack_windows, training_batches

__all__ = [
    "Batches",
    "FeatureMasks",
    "LabeledBuckets",
    "LengthBuckets",
    "PairBuckets",
    "Rows",
    "SpeechBuckets",
    "evaluation_batches",
    "evaluation_segments",
    "image_batches",
    "image_evaluation_batches",
    "pack_images",
    "pack_masked",
    "pack_pairs",
    "pack_prefixes",
    "pack_windows",
    "segment_batches",
    "training_batches",
]
