"""A run directory of `tsa-train` with a small untrained model."""

import keras

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, tokenizers, workdir

ATTENTION = [{"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 16, "position": "rotary"}]


def write(folder, **data):
    """Write the run to a folder, with changes of `config.data`, and return the folder."""
    keras.utils.set_random_seed(0)
    config = base.get_config()
    config.data.update(sequence_length=64, batch_size=2, **data)
    config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=32, attention=ATTENTION)
    config.generate.update(prompt="def ", length=4, temperature=0.7, top_p=0.9)
    tokenizer = tokenizers.make_tokenizer(config.data.tokenizer)
    workdir.open_workdir(folder, create=True)
    workdir.save_config(folder, config)
    workdir.save_state(folder, {"tokenizer": tokenizers.describe(tokenizer)})
    if "path" in data:
        workdir.save_source(folder, components.make_text_source(config))
    workdir.save_model(folder, components.make_model(config, tokenizer.vocabulary_size))
    return folder
