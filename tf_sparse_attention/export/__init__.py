"""Models written for others to run, without this library."""

from tf_sparse_attention.export.audio import export_audio
from tf_sparse_attention.export.encoder_decoder import export_sequence_to_sequence
from tf_sparse_attention.export.encoder_tasks import export_classifier
from tf_sparse_attention.export.images import export_images
from tf_sparse_attention.export.language_model import export_saved_model
from tf_sparse_attention.export.litert import export_litert
from tf_sparse_attention.export.onnx import export_onnx
from tf_sparse_attention.export.span_answerer import export_span_answerer
from tf_sparse_attention.export.speech import export_speech

__all__ = [
    "export_audio",
    "export_classifier",
    "export_images",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "export_sequence_to_sequence",
    "export_span_answerer",
    "export_speech",
]
__dir__ = __all__.copy  # without the modules inside
