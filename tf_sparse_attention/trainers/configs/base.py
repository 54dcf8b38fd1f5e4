"""All settings with their defaults. The other configurations start from these.

Settings that are None are not passed on: the class uses its default.
"""

from collections.abc import Collection

import ml_collections
from ml_collections.config_dict import placeholder

from tf_sparse_attention.checks import check_choice

TOKENIZERS = ("bytes", "subword", "sentencepiece", "wordpiece")
# Settings of `config.optimizer` as published. The Sparse Transformer is Child et al. 2019, section 7.
ROUTING_TRANSFORMER = {
    "name": "adafactor",
    "learning_rate": 0.01,
    "schedule": "rsqrt_normalized_decay",
    "warmup_steps": 10_000,
}
SPARSE_TRANSFORMER = {
    "name": "adamw",
    "learning_rate": 3.5e-4,
    "schedule": "cosine",
    "warmup_steps": 5000,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
}
# Settings of `config.train` for the published models.
LONG_TRAINING = {"log_every": 100, "checkpoint_every": 1_000, "dtype": "mixed_bfloat16"}
SOURCE_SETTINGS = ("tfds", "path", "pattern", "text_field", "local_dir", "text_feature", "data_dir")
WINDOW_SETTINGS = ("batch_size", "sequence_length", "use_packing", "mask_rate", "overlap")
EXECUTION_SETTINGS = ("jit_compile", "steps_per_execution", "num_logical_cpus", "model_parallel")
# Settings that `tsa-evaluate` can override: all settings that it reads, except those of the trained model.
OVERRIDABLE = {
    "data": (*SOURCE_SETTINGS, *WINDOW_SETTINGS),
    "train": (*EXECUTION_SETTINGS, "generated_targets", "generated_beams", "num_beams", "evaluation_attention"),
    "generate": ("length",),
}


def get_config() -> ml_collections.ConfigDict:
    """Return the defaults."""
    return ml_collections.ConfigDict(
        {
            "task": "language_model",  # a module of trainers/tasks, or another module with a class Task
            "seed": 0,  # for weights, dropout, centroids and the order of the data
            "data": _data(),
            "model": _model(),
            "optimizer": _optimizer(),
            "train": _train(),
            "generate": _generate(),
        }
    )


def make_config(variant: str, variants: Collection[str], task: str = "language_model") -> ml_collections.ConfigDict:
    """Return the defaults for a task. Raise a `ValueError` if a configuration does not have the variant."""
    check_choice("variant", variant, variants)
    config = get_config()
    config.task = task
    return config


def overridable_settings() -> ml_collections.ConfigDict:
    """Return a locked `ml_collections.ConfigDict` of the settings in `OVERRIDABLE`, all None."""
    defaults = get_config()
    settings = {
        section: {name: placeholder(defaults[section].get_type(name)) for name in names}
        for section, names in OVERRIDABLE.items()
    }
    return ml_collections.ConfigDict(settings).lock()


def _data():
    return {
        "tfds": placeholder(str),  # data set of TFDS; if tfds and path are None: the Python standard library
        "path": placeholder(str),  # file or folder, instead of tfds; see docs/tasks.md
        "pattern": "**/*.txt",  # text files in the folder path
        # language_model: path is a file of JSON lines, and this field of each line is a document.
        "text_field": placeholder(str),
        "local_dir": placeholder(str),  # local copy of the files that TFDS would download
        # Feature with the text. None: the only text feature of TFDS, or for classify "text" of JSON lines.
        "text_feature": placeholder(str),
        # classify: field with the label. None: "label" of JSON lines, or the only class feature of TFDS.
        "label_feature": placeholder(str),
        "source_field": placeholder(str),  # translate, answer: input field of JSON lines or TFDS
        "target_field": placeholder(str),  # translate, answer: output field
        "unit": "document",  # pairs of JSON lines: document, or paragraph if both texts have equally many paragraphs
        "target_end": placeholder(str),  # pairs of JSON lines: targets end before this line
        "data_dir": placeholder(str),  # prepared data; None: ~/tensorflow_datasets
        "tokenizer": "bytes",  # bytes, subword, sentencepiece or wordpiece
        "vocabulary": placeholder(str),  # vocabulary file, except for bytes
        "train_split": "train",  # in the syntax of TFDS
        "validation_split": "validation",  # evaluated during training
        # image: (height, width, channels), with product sequence_length; empty: the shape of the data.
        "image_shape": (),
        "image_order": "raster",  # image: raster or blocks
        "image_block": (),  # image: rows and columns of a block, for the order blocks
        "use_flips": False,  # image: whether training mirrors half of the images
        # audio, speech: samples per second. None: the rate of the data for audio, 16,000 for speech.
        "sample_rate": placeholder(int),
        "use_packing": True,  # whether documents in a window are separate sequences
        "mask_rate": 0.0,  # fraction of masked tokens, with model.causal=False; 0: predict the next token
        "sequence_length": 1024,  # tokens per window; image: bytes per image; audio: samples; speech: maximum frames
        "overlap": 0,  # tokens shared by consecutive evaluation windows; only the earlier one scores them
        "batch_size": 8,  # windows per step, over all replicas
        "num_bands": 40,  # speech from audio: mel bands per frame
        "pre_emphasis": 0.97,  # speech from audio: coefficient of the pre-emphasis filter
        "time_masks": 0.0,  # speech: masked time bands per 1,000 frames in training
        "time_mask_width": 40,  # maximum number of frames of a time band
        "frequency_masks": 0,  # speech: masked frequency bands in training
        "frequency_mask_width": 8,  # maximum number of features of a frequency band
    }


def _model():
    """Return the arguments of `Backbone` and of the model."""
    return {
        # Model NAME.keras with the initial weights. Other settings of this section must match it.
        "start_from": placeholder(str),
        "preset": placeholder(str),  # name of a published size; other settings override it
        "reproduce_reference": False,  # whether presets use the published selection, which is not causal
        "num_layers": placeholder(int),  # blocks
        "hidden_dim": placeholder(int),  # size of the hidden states between blocks
        "embedding_dim": placeholder(int),  # size of token embeddings; None: hidden_dim
        "intermediate_dim": placeholder(int),  # hidden size of feed-forward layers; None: no feed-forward layers
        "activation": placeholder(str),  # feed-forward layers: relu, gelu, geglu or quick_gelu
        # Parts: dictionaries with "layer" and its arguments, or layers from keras.saving.serialize_keras_object. A list
        # of lists has the parts of each block.
        "attention": [],
        "cross_attention": [],  # translate, answer: parts with attention to the encoder outputs
        "encoder_attention": [],  # translate, answer: parts of the encoder; empty: those of attention
        "num_encoder_layers": placeholder(int),  # None: num_layers
        "pooling": "first",  # classify: output at id 0 before the text (first), or mean over all tokens (mean)
        "share_embeddings": True,  # whether encoder and decoder share an embedding
        "subsampling": 1,  # speech: frames per encoder position: 1, 2 or 4
        "sinusoidal": False,  # whether sinusoidal positions are added to the inputs of the first block
        "num_local_layers": placeholder(int),  # initial blocks with only local heads
        "causal": True,  # whether later tokens are masked
        "memory_length": 0,  # positions of the segment memory; batches are then consecutive segments
        "grid": [],  # axes of an axial position embedding
        "initialization": placeholder(str),  # "depth": scaled by depth, as in the Sparse Transformer
        "norm": placeholder(str),  # pre, post or pre_and_post; for RMS norms with the suffix _rms
        "dropout": placeholder(float),  # rate on the output of each sublayer
        "embedding_dropout": placeholder(float),  # rate on the embedded tokens
        "activation_dropout": placeholder(float),  # inside feed-forward layers
        "token_dropout": placeholder(float),  # fraction of tokens that training replaces by id 0
        "layer_norm_epsilon": placeholder(float),
        "remat": placeholder(bool),  # whether the backward pass recomputes blocks, to save memory
        "tie_embeddings": False,  # whether logits use the embedding matrix
        "use_output_bias": True,  # whether logits have a bias
    }


def _optimizer():
    return {
        "name": "adafactor",  # adafactor, adagrad, adam or adamw
        "learning_rate": 0.01,  # peak learning rate; noam: scale
        "schedule": "constant",  # constant, rsqrt_normalized_decay, rsqrt_with_linear_warmup, noam or cosine
        "warmup_steps": placeholder(int),  # required except for constant
        "decay_steps": placeholder(int),  # cosine: steps after the warmup; None: until the last step
        "beta_1": placeholder(float),  # decay of the first moment
        "beta_2": placeholder(float),  # adam, adamw: decay of the second moment
        "epsilon": placeholder(float),  # adam, adamw
        "weight_decay": placeholder(float),  # adamw
        "clip": placeholder(float),  # adagrad: maximum norm of the gradient of each weight, see its class
        "clipnorm": placeholder(float),  # maximum norm of the gradient of each weight
        "global_clipnorm": placeholder(float),  # maximum norm of the gradients of all weights together
        "gradient_accumulation_steps": placeholder(int),  # steps over which gradients are averaged
    }


def _train():
    return {
        "num_steps": 1000,  # total number of optimizer steps
        "log_every": 50,  # steps
        "evaluate_every": 500,  # steps; 0: never
        "checkpoint_every": 500,  # steps; 0: only at the end
        "keep_checkpoints": 3,  # number of newest checkpoints to keep
        "illustrate": False,  # whether evaluations also write samples, routes and spans to TensorBoard
        "evaluation_windows": 64,  # evenly spaced windows of the validation split; 0: all
        "generated_targets": 0,  # translate, answer: targets that tsa-evaluate generates and scores; -1: all
        "generated_beams": 1,  # translate, answer: beam width for generated targets; 1: greedy decoding
        "label_smoothing": 0.0,  # translate, answer: target probability spread over all ids
        "num_beams": 8,  # speech: beam width of evaluations; 0: no beam search
        # speech: variant of trainers/configs/speech.py with the attention to evaluate instead of the model's attention.
        "evaluation_attention": placeholder(str),
        "dtype": "float32",  # Keras dtype policy: mixed_bfloat16, bfloat16, float16, ...
        "jit_compile": placeholder(bool),  # None: depends on the device
        "steps_per_execution": 1,  # steps per call of the compiled program
        "num_logical_cpus": 1,  # replicas on one CPU, to try data parallelism
        "model_parallel": 1,  # JAX: devices per model replica; must divide the number of devices
        "nonfinite": "stop",  # on NaN or infinite loss or weights: stop, or skip such updates
        "shrink_windows_every": 0,  # steps between updates of the windows of adaptive spans; 0: never
        "shrink_windows_margin": 64,  # maximum growth of spans between updates, in positions
        "deterministic": True,  # whether runs are reproducible bit for bit; slower on a GPU
    }


def _generate():
    return {
        "prompt": "",  # empty: start of a document
        "length": 600,  # tokens
        "temperature": 1.0,  # 0: greedy decoding
        "top_p": 0.95,  # total probability of the tokens to sample from
    }
