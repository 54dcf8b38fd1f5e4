"""Data sets of text, pairs, labels, speech, images and audio: TFDS, folders and files."""

from tf_sparse_attention.data.sources.audio_source import AudioSource, open_audio
from tf_sparse_attention.data.sources.image_source import ImageSource, open_images
from tf_sparse_attention.data.sources.labeled_source import LabeledSource, open_labeled
from tf_sparse_attention.data.sources.log_mel import LogMel
from tf_sparse_attention.data.sources.pair_source import PairSource, open_pairs
from tf_sparse_attention.data.sources.speech_source import SpeechSource, Utterance, open_speech
from tf_sparse_attention.data.sources.text_source import TextSource, load_documents, open_source

__all__ = [
    "AudioSource",
    "ImageSource",
    "LabeledSource",
    "LogMel",
    "PairSource",
    "SpeechSource",
    "TextSource",
    "Utterance",
    "load_documents",
    "open_audio",
    "open_images",
    "open_labeled",
    "open_pairs",
    "open_source",
    "open_speech",
]
