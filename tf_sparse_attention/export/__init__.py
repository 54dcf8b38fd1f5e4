"""Export of models to files that run without this library: SavedModels, LiteRT and ONNX."""

from tf_sparse_attention.export.encoder_tasks import export_classifier, export_span_answerer
from tf_sparse_attention.export.media import export_audio, export_images
from tf_sparse_attention.export.portable import export_litert, export_onnx
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.speech import export_speech
from tf_sparse_attention.export.text_generation import export_language_model, export_sequence_to_sequence

__all__ = [
    "Input",
    "Signature",
    "export_audio",
    "export_classifier",
    "export_images",
    "export_language_model",
    "export_litert",
    "export_onnx",
    "export_sequence_to_sequence",
    "export_span_answerer",
    "export_speech",
    "write_saved_model",
]
__dir__ = __all__.copy  # without the modules inside
