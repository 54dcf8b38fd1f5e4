"""The shapes of two families of today's small decoders; `docs/models.md` says what differs from them."""


def _attention(layer, num_heads, num_key_value_heads, key_dim, **settings):
    """Returns the attention of a block, one part with rotary positions."""
    common = {"num_heads": num_heads, "num_key_value_heads": num_key_value_heads, "key_dim": key_dim}
    return [{"layer": layer, **common, "position": "rotary", **settings}]


def _gemma_3(source, num_layers, heads, window, **sizes):
    """Returns a preset of Gemma 3: of six layers five have a window and short wavelengths, the sixth sees everything.

    `heads` are (query heads, key-value heads, size of a head).
    """
    common = {"use_bias": False, "use_query_key_norm": True}
    local = _attention("LocalAttention", *heads, window=window, **common)
    whole = _attention("DenseAttention", *heads, rotary_max_wavelength=1e6, **common)
    attention = [whole if index % 6 == 5 else local for index in range(num_layers)]
    return _preset(source, num_layers, attention, norm="pre_and_post_rms", activation="geglu", **sizes)


def _gpt_oss(source, num_layers, heads, window, **sizes):
    """Returns a preset of gpt-oss: every other layer, from the first on, has a window; all have sinks and YaRN."""
    rotary = {"rotary_max_wavelength": 1.5e5, "rotary_type": "yarn", "rotary_scaling_factor": 32.0}
    common = {"use_sink": True, **rotary, "rotary_truncate": False}
    local = _attention("LocalAttention", *heads, window=window, **common)
    whole = _attention("DenseAttention", *heads, **common)
    attention = [whole if index % 2 else local for index in range(num_layers)]
    norm = {"placement": "pre_rms", "epsilon": 1e-5}
    return _preset(source, num_layers, attention, norm=norm, activation="swiglu", **sizes)


def _preset(source, num_layers, attention, sequence_length, **arguments):
    arguments = {"num_layers": num_layers, "attention": attention, **arguments}
    return {"source": source, "sequence_length": sequence_length, "arguments": arguments}


_GEMMA_3 = "Gemma 3 technical report (2025, arXiv 2503.19786)"
_GPT_OSS = "gpt-oss model card (OpenAI 2025, arXiv 2508.10925)"

DECODERS = {
    "gemma3_1b": _gemma_3(
        f"{_GEMMA_3}, the model of one billion weights",
        num_layers=26,
        heads=(4, 1, 256),
        window=512,
        hidden_dim=1152,
        intermediate_dim=6912,
        sequence_length=32768,
    ),
    "gemma3_tiny": _gemma_3(
        f"the shape of gemma3_1b, small enough for a CPU; {_GEMMA_3}",
        num_layers=6,
        heads=(4, 2, 16),
        window=64,
        hidden_dim=64,
        intermediate_dim=192,
        sequence_length=1024,
    ),
    "gpt_oss_20b_dense": _gpt_oss(
        f"{_GPT_OSS}, gpt-oss-20b with one feed-forward in place of 32 experts",
        num_layers=24,
        heads=(64, 8, 64),
        window=128,
        hidden_dim=2880,
        intermediate_dim=2880,
        sequence_length=131072,
    ),
    "gpt_oss_tiny": _gpt_oss(
        f"the shape of gpt_oss_20b_dense, small enough for a CPU; {_GPT_OSS}",
        num_layers=4,
        heads=(8, 2, 16),
        window=32,
        hidden_dim=64,
        intermediate_dim=64,
        sequence_length=1024,
    ),
}
