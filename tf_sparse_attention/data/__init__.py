"""Data: tokenizers, sources, stores on disk, and batches of text, pairs, speech, images and audio."""

from tf_sparse_attention.data.array_store import ArrayStore, ArrayWriter, DamagedDataError
from tf_sparse_attention.data.batches.batches import Batches, Rows
from tf_sparse_attention.data.batches.images import image_batches, image_evaluation_batches, pack_images
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.batches.speech import FeatureMasks, SpeechBuckets
from tf_sparse_attention.data.batches.text_buckets import LabeledBuckets, PairBuckets, pack_pairs, pack_prefixes
from tf_sparse_attention.data.batches.windows import (
    evaluation_batches,
    evaluation_segments,
    pack_masked,
    pack_windows,
    segment_batches,
    training_batches,
)
from tf_sparse_attention.data.codecs import AudioCodec, ImageCodec
from tf_sparse_attention.data.sources.json_lines import JsonLinesReader
from tf_sparse_attention.data.sources.log_mel import LogMel
from tf_sparse_attention.data.sources.media_sources import AudioSource, ImageSource, open_audio, open_images
from tf_sparse_attention.data.sources.speech_source import SpeechSource, Utterance, open_speech
from tf_sparse_attention.data.sources.text_source import (
    LabeledSource,
    PairSource,
    TextSource,
    open_labeled,
    open_pairs,
    open_source,
)
from tf_sparse_attention.data.speech_store import SpeechStore, open_speech_store
from tf_sparse_attention.data.token_store import TokenStore, open_token_store
from tf_sparse_attention.data.tokenizers.byte_tokenizer import ByteTokenizer
from tf_sparse_attention.data.tokenizers.subword_tokenizer import SubwordTokenizer
from tf_sparse_attention.data.tokenizers.subword_training import train_subwords
from tf_sparse_attention.data.tokenizers.tensorflow_text_tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer

__all__ = [
    "ArrayStore",
    "ArrayWriter",
    "AudioCodec",
    "AudioSource",
    "Batches",
    "ByteTokenizer",
    "DamagedDataError",
    "FeatureMasks",
    "ImageCodec",
    "ImageSource",
    "JsonLinesReader",
    "LabeledBuckets",
    "LabeledSource",
    "LengthBuckets",
    "LogMel",
    "PairBuckets",
    "PairSource",
    "Rows",
    "SentencePieceTokenizer",
    "SpeechBuckets",
    "SpeechSource",
    "SpeechStore",
    "SubwordTokenizer",
    "TextSource",
    "TokenStore",
    "Tokenizer",
    "Utterance",
    "WordPieceTokenizer",
    "evaluation_batches",
    "evaluation_segments",
    "image_batches",
    "image_evaluation_batches",
    "open_audio",
    "open_images",
    "open_labeled",
    "open_pairs",
    "open_source",
    "open_speech",
    "open_speech_store",
    "open_token_store",
    "pack_images",
    "pack_masked",
    "pack_pairs",
    "pack_prefixes",
    "pack_windows",
    "segment_batches",
    "train_subwords",
    "training_batches",
]
__dir__ = __all__.copy  # without submodules
