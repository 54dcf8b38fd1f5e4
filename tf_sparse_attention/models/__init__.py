"""Models built from the layers, and presets of published sizes."""

from tf_sparse_attention.models.backbone import Backbone
from tf_sparse_attention.models.backbone_options import (
    AttentionOptions,
    DropoutOptions,
    EmbeddingOptions,
    NormOptions,
)
from tf_sparse_attention.models.chat_session import ChatSession
from tf_sparse_attention.models.encoder import Encoder
from tf_sparse_attention.models.encoder_tasks import SequenceClassifier, SpanAnswerer, TokenClassifier
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.models.language_model import LanguageModel, initialize_by_depth
from tf_sparse_attention.models.metrics import (
    BitsPerByte,
    CTCLoss,
    ErrorRate,
    Perplexity,
    PerplexityPerWord,
    PhoneErrorRate,
    WordErrorRate,
    language_model_loss,
)
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.presets import DECODER_PRESETS, PRESETS, TRANSLATION_PRESETS
from tf_sparse_attention.models.sequence_to_sequence import SequenceToSequence
from tf_sparse_attention.models.speech_recognizer import SpeechRecognizer
from tf_sparse_attention.models.stateful import StatefulModel
from tf_sparse_attention.models.swapped_model import SwappedModel

__all__ = [
    "DECODER_PRESETS",
    "PRESETS",
    "TRANSLATION_PRESETS",
    "AttentionOptions",
    "Backbone",
    "BitsPerByte",
    "CTCLoss",
    "ChatSession",
    "DropoutOptions",
    "EmbeddingOptions",
    "Encoder",
    "ErrorRate",
    "Generator",
    "LanguageModel",
    "Model",
    "NormOptions",
    "Perplexity",
    "PerplexityPerWord",
    "PhoneErrorRate",
    "SequenceClassifier",
    "SequenceToSequence",
    "SpanAnswerer",
    "SpeechRecognizer",
    "StatefulModel",
    "SwappedModel",
    "TokenClassifier",
    "WordErrorRate",
    "initialize_by_depth",
    "language_model_loss",
]
__dir__ = __all__.copy  # without the modules inside
