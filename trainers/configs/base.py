"""Every setting of the trainer with its default; the other configurations start from these.

A setting of None is left to the library: the default of the class it is an argument of.
"""

import ml_collections
from ml_collections.config_dict import placeholder

from tf_sparse_attention.deprecation import renamed

# Old names of settings in each section, which are accepted for one more release.
RENAMED = {
    "model": {"skip_first": "num_local_layers", "epsilon": "layer_norm_epsilon"},
    "train": {"fit_windows_every": "shrink_windows_every", "fit_windows_margin": "shrink_windows_margin"},
}


def get_config():
    """Returns the defaults, an `ml_collections.ConfigDict`."""
    return ml_collections.ConfigDict(
        {
            "seed": 0,  # of weights, dropout, centroids and the order of the data
            "backend": placeholder(str),  # written by the trainer: the Keras backend of the run
            "data": _data(),
            "model": _model(),
            "optimizer": _optimizer(),
            "train": _train(),
            "generate": _generate(),
        }
    )


def with_new_names(settings, warn=False):
    """Returns the settings of a run without old names, as plain data.

    Args:
        settings: Dictionary of sections, perhaps with settings under old names.
        warn: Whether an old name is worth a `DeprecationWarning`: not in files of earlier runs. Defaults to `False`.
    """
    settings = dict(settings)
    for section in set(RENAMED) & set(settings):
        settings[section] = dict(settings[section])
        for old, new in RENAMED[section].items():
            value = settings[section].pop(old, None)
            if value is None:
                continue
            if warn:
                renamed(f"config.{section}.{old}", f"config.{section}.{new}")
            settings[section][new] = value
    return settings


def _data():
    return {
        "tfds": placeholder(str),  # name in TFDS; None, without a path: Python's own source
        "path": placeholder(str),  # folder of text files, or one text file, in place of `tfds`
        "pattern": "**/*.txt",  # of the files in `path`
        "local_dir": placeholder(str),  # what the TFDS builder would download
        "text_feature": placeholder(str),  # None: found
        "data_dir": placeholder(str),  # None: ~/tensorflow_datasets
        "tokenizer": "bytes",  # or subword, sentencepiece, wordpiece
        "vocabulary": placeholder(str),  # file of the tokenizer, unless bytes
        "train_split": "train",
        "validation_split": "validation",
        "packed": True,  # documents in one window do not see each other
        "mask_rate": 0.0,  # share of hidden tokens to guess, with model.causal=False; 0: the next token is the target
        "sequence_length": 1024,  # tokens in a window
        "overlap": 0,  # tokens that windows of an evaluation share, which are scored in the first of them
        "batch_size": 8,  # windows in a step, over all replicas
    }


def _model():
    """Arguments of `Backbone` and `LanguageModel`."""
    return {
        "start_from": placeholder(
            str
        ),  # NAME.keras, a model to train on; of the others only causal, memory_length count
        "preset": placeholder(str),  # the others then replace what they name
        "reproduce_reference": False,  # presets with the published, not causal, selection
        "num_layers": placeholder(int),
        "hidden_dim": placeholder(int),
        "embedding_dim": placeholder(int),
        "intermediate_dim": placeholder(int),
        "activation": placeholder(str),
        # Parts, each a dictionary with "layer" and its arguments, or what keras.saving.serialize_keras_object makes of
        # a layer, so of one of your own; a list of such lists where blocks differ.
        "attention": [],
        "num_local_layers": placeholder(int),
        "causal": True,
        "memory_length": 0,  # positions of earlier segments that are seen; rows then go on in the next batch
        "grid": [],  # axes of an embedding of positions that is added
        "initialization": placeholder(str),  # "depth": that of the Sparse Transformer
        "norm": placeholder(str),
        "dropout": placeholder(float),
        "embedding_dropout": placeholder(float),
        "activation_dropout": placeholder(float),
        "token_dropout": placeholder(float),
        "layer_norm_epsilon": placeholder(float),
        "remat": placeholder(bool),
        "tie_embeddings": False,
        "use_output_bias": True,
        "skip_first": placeholder(int),  # old name of num_local_layers
        "epsilon": placeholder(float),  # old name of layer_norm_epsilon
    }


def _optimizer():
    return {
        "name": "adafactor",  # adafactor, adagrad, adam or adamw
        "learning_rate": 0.01,  # the highest; for noam its factor
        "schedule": "constant",  # or rsqrt_normalized_decay, rsqrt_with_linear_warmup, noam, cosine
        "warmup_steps": placeholder(int),  # for all; constant may do without
        "decay_steps": placeholder(int),  # for cosine, after the warm-up; None: to the last step
        "beta_1": placeholder(float),
        "beta_2": placeholder(float),
        "epsilon": placeholder(float),
        "weight_decay": placeholder(float),
        "clip": placeholder(float),  # of adagrad
        "clipnorm": placeholder(float),
        "global_clipnorm": placeholder(float),
        "gradient_accumulation_steps": placeholder(int),
    }


def _train():
    return {
        "num_steps": 1000,
        "log_every": 50,  # steps; so are the next two
        "evaluate_every": 500,  # 0: never
        "checkpoint_every": 500,  # 0: at the end alone
        "keep_checkpoints": 3,
        "evaluation_windows": 64,  # of the validation split, evenly spread; 0: all
        "dtype": "float32",  # dtype policy of Keras: mixed_bfloat16, bfloat16, float16 ...
        "jit_compile": placeholder(bool),  # None: as the device wants it
        "steps_per_execution": 1,
        "num_logical_cpus": 1,  # more: as many replicas on one CPU, to try what several devices do
        "shrink_windows_every": 0,  # steps after which windows shrink to the adaptive spans; 0: never
        "shrink_windows_margin": 64,  # positions by which spans can grow until the next time
        "deterministic": True,  # whether two runs agree bit for bit, which costs time on a GPU
        "fit_windows_every": placeholder(int),  # old name of shrink_windows_every
        "fit_windows_margin": placeholder(int),  # old name of shrink_windows_margin
    }


def _generate():
    return {
        "prompt": "",
        "length": 600,  # tokens
        "temperature": 1.0,
        "top_p": 0.95,
    }
