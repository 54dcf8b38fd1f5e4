"""Tiny decoders of KerasHub with random weights, one of each family whose attention is a class of its own."""

import keras
import keras_hub
import numpy as np

from tests.convert.swap.swap_models import randomized

VOCABULARY = 50
SIZES = {"vocabulary_size": VOCABULARY, "hidden_dim": 32, "intermediate_dim": 48}
HEADS = {"num_query_heads": 4, "num_key_value_heads": 2}
LAYERS = {**SIZES, **HEADS, "num_layers": 2}
GEMMA = {**LAYERS, "head_dim": 8, "sliding_window_size": 5, "use_sliding_window_attention": True}
LLAMA3 = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 64,
}
EXPERTS = {"num_experts": 2, "top_k": 2}
# By family the names of its classes and the arguments of its backbone.
FAMILIES = {
    "llama": ("Llama", LAYERS),
    "llama3": ("Llama3", {**LAYERS, **LLAMA3}),
    "mistral": ("Mistral", {**LAYERS, "sliding_window": 5}),
    "mixtral": ("Mixtral", {**LAYERS, **EXPERTS, "sliding_window": 5}),
    "gemma": ("Gemma", {**LAYERS, "head_dim": 8}),
    "gemma2": (
        "Gemma",
        {**GEMMA, "attention_logit_soft_cap": 5.0, "final_logit_soft_cap": 30.0, "query_head_dim_normalize": False}
        | {"use_post_ffw_norm": True, "use_post_attention_norm": True},
    ),
    "gemma3": (
        "Gemma3",
        {**GEMMA, "num_layers": 7, "image_size": 16, "use_query_key_norm": True, "vision_encoder": None}
        | {"use_post_ffw_norm": True, "use_post_attention_norm": True, "global_rope_scaling_factor": 8.0},
    ),
    "qwen2": ("Qwen", {**LAYERS, "use_sliding_window_attention": True, "sliding_window_size": 5}),
    "qwen3": ("Qwen3", {**LAYERS, "head_dim": 8, "sliding_window_size": 5}),
    "phi3": ("Phi3", LAYERS),
    "gpt_oss": ("GptOss", {**LAYERS, **EXPERTS, "head_dim": 8, "sliding_window": 4, "rope_scaling_factor": 4.0}),
}


def decoder(family, seed=0, **changes):
    """Return a `CausalLM` of a family, without a preprocessor."""
    name, arguments = FAMILIES[family]
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**{**arguments, **changes})
    return randomized(getattr(keras_hub.models, f"{name}CausalLM")(backbone=backbone, preprocessor=None), seed)


def padded(lengths, length, seed=0):
    """Return token ids and their padding mask, as KerasHub's models take them."""
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype("int32")
    return {"token_ids": np.random.default_rng(seed).integers(1, VOCABULARY, mask.shape) * mask, "padding_mask": mask}


def assert_greedy(model, text, lengths, **inputs):
    """Fail unless all that follows prompts of some lengths is what a full pass finds best."""
    full = model({**inputs, "token_ids": text, "padding_mask": np.ones_like(text)})
    best = keras.ops.convert_to_numpy(full).argmax(-1)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(text[row, length:], best[row, length - 1 : -1])


def generated(model, token_ids, lengths, **compiled):
    """Return the token ids that a model goes on with after the first ones of each row, so many of `token_ids`."""
    known = np.arange(token_ids.shape[1]) < np.array(lengths)[:, None]
    prompt = {"token_ids": token_ids * known, "padding_mask": known.astype("int32")}
    if "Gemma3" in type(model).__name__:  # which returns the images that it was given
        prompt["images"] = np.zeros((len(token_ids), 0, 16, 16, 3), "float32")
    model.compile(**{"sampler": "greedy", **compiled})
    return keras.ops.convert_to_numpy(model.generate(prompt, stop_token_ids=None)["token_ids"])
