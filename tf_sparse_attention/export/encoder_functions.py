"""The functions of models with an encoder alone in LiteRT and ONNX files: recognizers of speech, and classifiers."""

import tensorflow as tf

from tf_sparse_attention.export.encoder_tasks import encoder_inputs
from tf_sparse_attention.export.portable_function import PortableFunction, draw_counts, draw_ids, make_function
from tf_sparse_attention.generation.ctc import collapse
from tf_sparse_attention.models import SpeechRecognizer
from tf_sparse_attention.models.encoder_task import EncoderTask


def transcribe_function(model: SpeechRecognizer, batch_size: int, sequence_length: int) -> PortableFunction:
    """Returns the function from features to the log-probabilities of labels in each frame, and the likeliest labels."""
    frames = tf.TensorSpec((batch_size, sequence_length, model.num_features), tf.float32, "features")
    counts = tf.TensorSpec((batch_size,), tf.int32, "num_frames")

    def transcribe(features, num_frames):
        mask = tf.range(sequence_length) < num_frames[:, None]
        log_probs = model({"features": features, "padding_mask": mask}, training=False)
        # As `ctc_greedy`; but Keras's `argmax` looks at signs of zeros, by operations that the runtimes lack.
        ids = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
        return {"log_probs": log_probs, "label_ids": collapse(ids)}

    def draw(random, call):
        features = random.normal(size=frames.shape).astype("float32")
        return {frames.name: features, **draw_counts(random, counts, sequence_length)}

    return make_function(transcribe, [frames, counts], draw)


def classify_function(model: EncoderTask, batch_size: int, sequence_length: int) -> PortableFunction:
    """Returns the function from token ids to the probabilities of classes, of rows or of their tokens."""
    tokens = tf.TensorSpec((batch_size, sequence_length), tf.int32, "token_ids")
    counts = tf.TensorSpec((batch_size,), tf.int32, "num_tokens")

    def classify(token_ids, num_tokens):
        logits = model(encoder_inputs(model, token_ids, num_tokens), training=False)
        return {"probabilities": tf.nn.softmax(logits)}

    def draw(random, call):
        ids = draw_ids(random, tokens, model.vocabulary_size or 2)
        return {**ids, **draw_counts(random, counts, sequence_length)}

    return make_function(classify, [tokens, counts], draw)
