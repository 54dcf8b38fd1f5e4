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
QWEN_EXPERTS = {**EXPERTS, "moe_intermediate_dim": 16}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 2,
}
# The factors for long sequences apply in sequences of more than 3 tokens.
SU = {"rope_scaling_type": "su", "pretraining_sequence_length": 3, "max_sequence_length": 64}
SU |= {"rope_scaling_short_factor": [1.0] * 4, "rope_scaling_long_factor": [1.0, 1.5, 2.0, 4.0]}
SMOL_LM3 = {
    **SIZES,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "layer_types": ["full_attention"] * 2,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 32,
    "rope_theta": 5e3,
    "partial_rotary_factor": 1.0,
}
GEMMA3N = {
    "text_vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "text_hidden_size": 32,
    "hidden_size_per_layer_input": 8,
    "intermediate_size": [48, 48],
    "hidden_activation": "gelu_approximate",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "altup_num_inputs": 2,
    "laurel_rank": 4,
    "max_position_embeddings": 32,
    "rope_theta": 1e4,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 5,
    "pad_token_id": 0,
}
GEMMA4 = {**GEMMA, "image_size": 16, "sliding_window_pattern": 2, "global_rope_partial_rotary_factor": 0.5}
GEMMA4 |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 16}
ONE_HEAD_SIZE = {**SIZES, "num_layers": 2, "num_heads": 4}
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
    "qwen_moe": ("QwenMoe", {**LAYERS, **QWEN_EXPERTS, "shared_expert_intermediate_dim": 16}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**LAYERS, **QWEN_EXPERTS, "head_dim": 8, "sliding_window_size": 5, "norm_top_k_prob": True},
    ),
    "qwen3_5": ("Qwen3_5", {**LAYERS, **LINEAR, "head_dim": 8, "partial_rotary_factor": 0.5}),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        {**SIZES, **HEADS, **QWEN_EXPERTS, **LINEAR, "num_layers": 2, "head_dim": 8}
        | {"shared_expert_intermediate_size": 16},
    ),
    "phi3": ("Phi3", LAYERS),
    "phi3_su": ("Phi3", {**LAYERS, **SU}),
    "smol_lm3": ("SmolLM3", SMOL_LM3),
    "gpt_neo_x": ("GPTNeoX", {**ONE_HEAD_SIZE, "rotary_percentage": 0.5, "max_sequence_length": 32}),
    "bloom": ("Bloom", ONE_HEAD_SIZE),
    "falcon": ("Falcon", {**SIZES, "num_layers": 2, "num_attention_heads": 4}),
    "gemma3n": ("Gemma3n", GEMMA3N),
    "gemma4": ("Gemma4", GEMMA4),
    "gpt_oss": ("GptOss", {**LAYERS, **EXPERTS, "head_dim": 8, "sliding_window": 4, "rope_scaling_factor": 4.0}),
}


def decoder(family, seed=0, **changes):
    """Return a `CausalLM` of a family, without a preprocessor."""
    name, arguments = FAMILIES[family]
    # Gemma 3n computes logits with the embeddings that its constructor finds.
    backbone = randomized(getattr(keras_hub.models, f"{name}Backbone")(**{**arguments, **changes}), seed)
    return getattr(keras_hub.models, f"{name}CausalLM")(backbone=backbone, preprocessor=None)


def padded(lengths, length, seed=0):
    """Return token ids and their padding mask, as KerasHub's models take them."""
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype("int32")
    return {"token_ids": np.random.default_rng(seed).integers(1, VOCABULARY, mask.shape) * mask, "padding_mask": mask}


def complete(model, inputs):
    """Return inputs with the positions that a model takes, if any."""
    if "position_ids" not in model.input:
        return inputs
    return {
        **inputs,
        "position_ids": np.broadcast_to(np.arange(inputs["token_ids"].shape[1]), inputs["token_ids"].shape),
    }


def assert_greedy(model, text, lengths, **inputs):
    """Fail unless all that follows prompts of some lengths is what a full pass finds best."""
    full = model(complete(model, {**inputs, "token_ids": text, "padding_mask": np.ones_like(text)}))
    best = keras.ops.convert_to_numpy(full).argmax(-1)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(text[row, length:], best[row, length - 1 : -1])


def generated(model, token_ids, lengths, **compiled):
    """Return the token ids that a model goes on with after the first ones of each row, so many of `token_ids`."""
    known = np.arange(token_ids.shape[1]) < np.array(lengths)[:, None]
    prompt = {"token_ids": token_ids * known, "padding_mask": known.astype("int32")}
    if "Gemma3Causal" in type(model).__name__:  # which returns the images that it was given
        prompt["images"] = np.zeros((len(token_ids), 0, 16, 16, 3), "float32")
    model.compile(**{"sampler": "greedy", **compiled})
    return keras.ops.convert_to_numpy(model.generate(prompt, stop_token_ids=None)["token_ids"])
