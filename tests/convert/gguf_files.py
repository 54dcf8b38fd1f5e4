"""Small GGUF files with random weights."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.convert.gguf.models import ARCHITECTURES

keras_hub = pytest.importorskip("keras_hub")
gguf = pytest.importorskip("gguf")

BYTES = [chr(code) for code in (*range(33, 127), *range(256, 290))]  # the characters that stand for bytes
MERGES = ["l o", "lo w", "e r", "1 2"]
TOKENS = ["<|end|>", "<|start|>", *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
LLAMA = {"num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 64}
GEMMA3 = {**LLAMA, "head_dim": 16, "image_size": 896, "vision_encoder": None, "use_query_key_norm": True}
GEMMA3 |= {"use_post_ffw_norm": True, "use_post_attention_norm": True, "use_sliding_window_attention": True}
GEMMA3 |= {"sliding_window_size": 8, "num_layers": 6}


def make_backbone(kind, **changes):
    """Return a random KerasHub backbone of an architecture."""
    keras.utils.set_random_seed(0)
    arguments = {"llama": LLAMA, "gemma3": GEMMA3}[kind] | changes
    backbone = getattr(keras_hub.models, f"{ARCHITECTURES[kind].classes}Backbone")(
        vocabulary_size=len(TOKENS), **arguments
    )
    for weight in backbone.weights:
        weight.assign(np.random.default_rng(len(weight.path)).normal(0, 0.2, weight.shape))
    return backbone


def tensors_of(kind, backbone):
    """Return the tensors of a GGUF file with the weights of a backbone, by name."""
    known, tensors = ARCHITECTURES[kind], {}
    for weight in backbone.weights:
        values, path = keras.ops.convert_to_numpy(weight), weight.path
        block, _, inner = path.partition("/")
        if block.startswith(known.block):
            name = f"blk.{block.rpartition('_')[2]}.{known.names[inner]}"
        else:
            name = known.outer_names[path]
        if kind == "gemma3" and values.ndim == 3 and "output" not in path:  # (heads, inputs, size)
            values = values.swapaxes(1, 2).reshape(-1, values.shape[1])
        elif kind == "gemma3" and values.ndim == 1:
            values = values + 1
        elif values.ndim > 1 and not path.endswith("/embeddings"):
            values = values.reshape(-1, values.shape[-1]).T if "output" in inner else values.reshape(len(values), -1).T
        if kind == "llama" and name.endswith(("attn_q", "attn_k")):  # pairs of channels lie next to each other
            pairs = values.reshape(-1, 2, weight.shape[2] // 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        tensors[f"{name}.weight"] = np.ascontiguousarray(values, "float32")
    return tensors


def write_file(path, kind, tensors, settings=None, tokenizer=None):
    """Write a GGUF file; `settings` and `tokenizer` change or, with None, remove entries of the metadata."""
    given = {"block_count": 2, "embedding_length": 32, "feed_forward_length": 64, "context_length": 128}
    given |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6}
    if kind == "gemma3":
        given |= {"attention.key_length": 16, "attention.sliding_window": 8, "block_count": 6}
    given = {f"{kind}.{key}": value for key, value in (given | (settings or {})).items() if value is not None}
    words = {"model": "gpt2", "pre": "smollm", "tokens": TOKENS, "merges": MERGES, "eos_token_id": 0}
    words |= {"token_type": [3, 3, *[1] * (len(TOKENS) - 2)], "padding_token_id": 0}
    given |= {f"tokenizer.ggml.{key}": x for key, x in (words | (tokenizer or {})).items() if x is not None}
    writer = gguf.GGUFWriter(path, kind)
    for key, value in given.items():
        add = {str: "string", int: "uint32", float: "float32", bool: "bool", list: "array"}[type(value)]
        getattr(writer, f"add_{add}")(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
