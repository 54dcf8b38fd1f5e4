"""All settings of the trainer with their defaults; the other configurations start from these.

None stands for the default of the class that the setting is an argument of.
"""

import ml_collections
from ml_collections.config_dict import placeholder

TOKENIZERS = ("bytes", "subword", "sentencepiece", "wordpiece")


def get_config() -> ml_collections.ConfigDict:
    """Returns the defaults, an `ml_collections.ConfigDict`."""
    return ml_collections.ConfigDict(
        {
            "task": "language_model",  # one of trainers/tasks, or a module of your own with a class Task
            "seed": 0,  # of weights, dropout, centroids and the order of the data
            "backend": placeholder(str),  # set by the trainer: the Keras backend of the run
            "data": _data(),
            "model": _model(),
            "optimizer": _optimizer(),
            "train": _train(),
            "generate": _generate(),
        }
    )


def _data():
    return {
        "tfds": placeholder(str),  # name in TFDS; None, without a path: Python's own source
        "path": placeholder(str),  # instead of `tfds`: a file or folder of what the task reads, see docs/tasks.md
        "pattern": "**/*.txt",  # of the files in `path`
        "text_field": placeholder(
            str
        ),  # of a language model: `path` is of JSON lines, this field of each is a document
        "local_dir": placeholder(str),  # what the TFDS builder would download
        "text_feature": placeholder(str),  # None: found automatically; of classify, for JSON lines: "text"
        # Of classify: the field with the label. None: of JSON lines "label", of TFDS the only one of classes.
        "label_feature": placeholder(str),
        "source_field": placeholder(str),  # of translate and answer: the field that is read, of TFDS or JSON lines
        "target_field": placeholder(str),  # the field that is written
        "unit": "document",  # of these tasks, for JSON lines: document, or paragraph where both have as many
        "target_end": placeholder(str),  # of these tasks, for JSON lines: the line with which targets end
        "data_dir": placeholder(str),  # None: ~/tensorflow_datasets
        "tokenizer": "bytes",  # bytes, subword, sentencepiece or wordpiece
        "vocabulary": placeholder(str),  # file of the tokenizer, unless bytes
        "train_split": "train",  # in the syntax of TFDS, as the next one
        "validation_split": "validation",  # scored while training
        # Of image: height, width and channels of each, whose product is sequence_length; empty: those of the data.
        "image_shape": (),
        "image_order": "raster",  # of image: raster, or blocks, one after the other
        "image_block": (),  # of image: rows and columns of a block of the order blocks
        "use_flips": False,  # of image: whether half of the images are mirrored in training
        # Of sound: samples per second of each recording. None: of audio, those of the data; of speech, 16,000.
        "sample_rate": placeholder(int),
        "use_packing": True,  # documents in one window do not attend to each other
        "mask_rate": 0.0,  # fraction of hidden tokens, with model.causal=False; 0: the next token is the target
        "sequence_length": 1024,  # tokens in a window; of image: the bytes of one; of audio: samples
        "overlap": 0,  # tokens that windows of an evaluation share; they are scored in the first of the two
        "batch_size": 8,  # windows in a step, over all replicas
        "num_bands": 40,  # of speech as sound: mel bands of a frame
        "pre_emphasis": 0.97,  # of speech as sound
        "time_masks": 0.0,  # of speech: bands of time hidden in training, in every 1,000 frames
        "time_mask_width": 40,  # frames that such a band hides at most
        "frequency_masks": 0,  # of speech: bands of frequency hidden in training
        "frequency_mask_width": 8,  # features that such a band hides at most
    }


def _model():
    """Arguments of `Backbone` and `LanguageModel`."""
    return {
        # NAME.keras, a model to continue; what else is set in this section has to agree with it
        "start_from": placeholder(str),
        "preset": placeholder(str),  # the other settings then override it
        "reproduce_reference": False,  # whether presets use the published selection, which is not causal
        "num_layers": placeholder(int),  # blocks of attention and feed-forward layer
        "hidden_dim": placeholder(int),  # size of the vectors between blocks
        "embedding_dim": placeholder(int),  # of tokens; None: hidden_dim
        "intermediate_dim": placeholder(int),  # inside of feed-forward layers; None: no such layers
        "activation": placeholder(str),  # of feed-forward layers: relu, gelu, geglu or quick_gelu
        # Parts, each a dictionary with "layer" and its arguments, or a layer of one's own as serialized by
        # keras.saving.serialize_keras_object; a list of such lists if blocks differ.
        "attention": [],
        "cross_attention": [],  # of translate and answer: parts likewise, to what the encoder returns
        "encoder_attention": [],  # parts of the encoder, if any; empty: those of attention
        "num_encoder_layers": placeholder(int),  # of the encoder; None: num_layers
        "pooling": "first",  # of classify: first, the vector of id 0 before the text, or mean, of all tokens
        "share_embeddings": True,  # whether source and target have one table
        "subsampling": 1,  # of speech: as many frames become one before the first block: 1, 2 or 4
        "sinusoidal": False,  # of speech: whether sines of the position are added to the inputs of the first block
        "num_local_layers": placeholder(int),  # first blocks whose heads are all local
        "causal": True,  # whether later tokens are hidden
        "memory_length": 0,  # positions in the segment memory; rows then continue in the next batch
        "grid": [],  # axes of an axial position embedding
        "initialization": placeholder(str),  # "depth": scaled by depth, as in the Sparse Transformer
        "norm": placeholder(str),  # pre or post, before or after the layers of a block, and others of Backbone
        "dropout": placeholder(float),  # after each layer of a block
        "embedding_dropout": placeholder(float),  # of the embedded tokens
        "activation_dropout": placeholder(float),  # inside of feed-forward layers
        "token_dropout": placeholder(float),  # of whole tokens, which become id 0
        "layer_norm_epsilon": placeholder(float),  # added to variances
        "remat": placeholder(bool),  # whether blocks are computed again in the backward pass, to save memory
        "tie_embeddings": False,  # whether logits come from the embedding matrix
        "use_output_bias": True,  # whether logits have a bias
    }


def _optimizer():
    return {
        "name": "adafactor",  # adafactor, adagrad, adam or adamw
        "learning_rate": 0.01,  # the peak; for noam its factor
        "schedule": "constant",  # or rsqrt_normalized_decay, rsqrt_with_linear_warmup, noam, cosine
        "warmup_steps": placeholder(int),  # required by all but constant
        "decay_steps": placeholder(int),  # of cosine, after the warm-up; None: up to the last step
        "beta_1": placeholder(float),  # moving average of gradients
        "beta_2": placeholder(float),  # moving average of their squares; of adam, adamw
        "epsilon": placeholder(float),  # of adam, adamw
        "weight_decay": placeholder(float),  # of adamw
        "clip": placeholder(float),  # of adagrad
        "clipnorm": placeholder(float),  # largest norm of the gradient of a weight
        "global_clipnorm": placeholder(float),  # largest norm of all gradients together
        "gradient_accumulation_steps": placeholder(int),  # steps whose gradients are averaged
    }


def _train():
    return {
        "num_steps": 1000,  # optimizer steps in all
        "log_every": 50,  # steps, as the next two
        "evaluate_every": 500,  # 0: never
        "checkpoint_every": 500,  # 0: only at the end
        "keep_checkpoints": 3,  # the newest ones
        "illustrate": False,  # whether an evaluation also writes a sample and draws routes and spans, for TensorBoard
        "evaluation_windows": 64,  # of the validation split, evenly spread; 0: all
        "generated_targets": 0,  # of translate and answer: targets that tsa-evaluate also generates; -1: all
        "generated_beams": 1,  # beams of these; 1: greedy
        "label_smoothing": 0.0,  # of translate and answer: share of the target that is spread over all ids
        "num_beams": 8,  # of speech: beginnings that a beam search keeps in an evaluation; 0: no such search
        # Of speech: in an evaluation, the variant of trainers/configs/speech.py whose attention replaces the model's.
        "evaluation_attention": placeholder(str),
        "dtype": "float32",  # dtype policy of Keras: mixed_bfloat16, bfloat16, float16 ...
        "jit_compile": placeholder(bool),  # None: depends on the device
        "steps_per_execution": 1,  # steps in one program call
        "num_logical_cpus": 1,  # above 1: this many replicas on one CPU, to try data parallelism
        "model_parallel": 1,  # on JAX, devices that hold a replica of the model together; it divides their number
        "nonfinite": "stop",  # where loss or weights are NaN or infinite; skip: such updates are left out
        "shrink_windows_every": 0,  # steps between updates of the window that adaptive spans compute; 0: never shrunk
        "shrink_windows_margin": 64,  # positions by which spans can grow in between
        "deterministic": True,  # whether runs are reproducible bit for bit, which is slower on a GPU
    }


def _generate():
    return {
        "prompt": "",  # begins a document
        "length": 600,  # tokens
        "temperature": 1.0,  # 0: greedy
        "top_p": 0.95,  # total probability of the tokens to sample from
    }
