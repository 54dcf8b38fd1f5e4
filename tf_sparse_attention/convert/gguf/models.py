"""Decoders in GGUF files as models of KerasHub: metadata and tensors of the file, constructor arguments and weights.

Names and layouts of tensors are those that llama.cpp writes. The rows of query and key kernels of the architecture
"llama" are in the order of interleaved rotary channels, and are put back into the order of two halves.
"""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_sparse_attention.models.rebuilding import initialize_with_zeros
from tf_sparse_attention.types import DType

LLAMA3_ROTARY = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "pretraining_sequence_length": 8192}


class GgufFile(NamedTuple):
    """Content of a GGUF file.

    Attributes:
        path: of the file.
        metadata: by key, a number, a text or a list.
        tensors: by name, a `gguf.ReaderTensor`.
    """

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """Name of the architecture, such as "llama"."""
        return self.metadata.get("general.architecture", "")

    def setting(self, key: str, default: Any = None, kind: Any = int) -> Any:
        """Return a setting of the architecture, such as "block_count": a positive number of a type.

        Raises:
            ValueError: If the file has another value, or no value and there is no default.
        """
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, kind) or value <= 0:
            raise ValueError(
                f"`path` must be a complete GGUF file, with a positive number {key}. "
                f"Received: {self.path} with {key}={value!r}."
            )
        return value

    def values(self, name: str) -> np.ndarray:
        """Return the values of a tensor in float32, as (outputs, inputs) for kernels.

        Raises:
            ValueError: If the file does not have the tensor, or if its quantization is unknown.
        """
        import gguf

        if name not in self.tensors:
            raise ValueError(f"`path` must be a complete GGUF file. Received: {self.path} without tensor {name!r}.")
        tensor = self.tensors[name]
        try:
            return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                "`path` must have tensors in types that the package gguf can dequantize. "
                f"Received: {self.path} with {name!r} of type {tensor.tensor_type.name}: {error}"
            ) from error


class Architecture(NamedTuple):
    """How the files of one architecture become a KerasHub model.

    Attributes:
        classes: prefix of the class names in `keras_hub.models`, such as "Llama" in "LlamaBackbone".
        block: prefix of the weight paths of a block, before its index.
        names: by weight path in a block, the tensor name after "blk.0.".
        outer_names: by path of other weights, the tensor name.
        arguments: function of the file that returns the arguments of the backbone.
        prepare: function of the tensor name, values (outputs, inputs) and weight shape that returns the weight.
    """

    classes: str
    block: str
    names: Mapping[str, str]
    outer_names: Mapping[str, str]
    arguments: Callable[[GgufFile], dict[str, Any]]
    prepare: Callable[[str, np.ndarray, tuple[int, ...]], np.ndarray]


def _common_arguments(file: GgufFile) -> dict[str, Any]:
    heads = file.setting("attention.head_count")
    return {
        "vocabulary_size": len(file.metadata["tokenizer.ggml.tokens"]),
        "num_layers": file.setting("block_count"),
        "num_query_heads": heads,
        "num_key_value_heads": file.setting("attention.head_count_kv", heads),
        "hidden_dim": file.setting("embedding_length"),
        "intermediate_dim": file.setting("feed_forward_length"),
        "layer_norm_epsilon": file.setting("attention.layer_norm_rms_epsilon", kind=float),
    }


def _llama_arguments(file: GgufFile) -> dict[str, Any]:
    arguments = _common_arguments(file)
    width = arguments["hidden_dim"] / arguments["num_query_heads"]
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    sizes = {key: file.metadata.get(f"llama.{key}", int(width)) for key in keys}
    if any(size != width for size in sizes.values()):
        raise ValueError(
            "`path` must have heads of `embedding_length / head_count` channels, all of them rotated. "
            f"Received: {file.path} with {sizes} instead of {width:g}."
        )
    if file.metadata.get("llama.expert_count"):
        raise ValueError(f"`path` must be a model without experts. Received: {file.path} with experts.")
    return arguments | {
        "rope_max_wavelength": file.setting("rope.freq_base", 10000.0, float),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_llama_scaling(file, int(width)),
    }


def _llama_scaling(file: GgufFile, width: int) -> dict[str, Any]:
    """Return the arguments of scaled rotary positions: linear, or those of Llama 3, which the file has as factors."""
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_position_scaling_factor": file.setting("rope.scaling.factor", kind=float)}
    if kind != "none":
        raise ValueError(
            "`path` must have rotary positions without scaling, or with linear scaling or that of Llama 3. "
            f"Received: {file.path} with {kind!r}."
        )
    if "rope_freqs.weight" not in file.tensors:
        return {}
    given = file.values("rope_freqs.weight")
    factor = float(given.max())
    wavelengths = 2 * np.pi * file.setting("rope.freq_base", kind=float) ** (np.arange(0, width, 2) / width)
    low, high, length = LLAMA3_ROTARY.values()
    share = np.clip((length / wavelengths - low) / (high - low), 0, 1)
    if given.shape != share.shape or not np.allclose(given, 1 / ((1 - share) / factor + share), rtol=1e-3):
        raise ValueError(f"`path` must have the rotary factors of Llama 3. Received: {file.path} with others.")
    return {"rope_frequency_adjustment_factor": factor} | {f"rope_{key}": x for key, x in LLAMA3_ROTARY.items()}


def _prepare_llama(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(("attn_q.weight", "attn_k.weight")):
        inputs, heads, size = shape
        values = values.reshape(heads, size // 2, 2, inputs).swapaxes(1, 2)
    return values.reshape(-1, values.shape[-1]).T.reshape(shape)


def _gemma3_arguments(file: GgufFile) -> dict[str, Any]:
    size = file.setting("attention.key_length")
    wavelengths = (file.setting("rope.freq_base", 1e6, float), file.setting("rope.freq_base_swa", 1e4, float))
    if wavelengths != (1e6, 1e4):
        raise ValueError(
            "`path` must have rotary wavelengths of 1e6 in global and 1e4 in local layers, as KerasHub's Gemma 3 has. "
            f"Received: {file.path} with {wavelengths}."
        )
    return _common_arguments(file) | {
        "image_size": 896,
        "head_dim": size,
        "use_query_key_norm": True,
        "use_post_ffw_norm": True,
        "use_post_attention_norm": True,
        "use_sliding_window_attention": True,
        "sliding_window_size": file.setting("attention.sliding_window"),
        "global_rope_scaling_factor": file.setting("rope.scaling.factor", 1.0, float),
        "vision_encoder": None,
    }


def _prepare_gemma3(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if values.ndim == 1:
        return values - 1  # KerasHub adds 1 to the scale of a norm
    if len(shape) == 3 and "output" not in name:
        return values.reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2)
    return values.T.reshape(shape)


ARCHITECTURES = {
    "llama": Architecture(
        classes="Llama",
        block="transformer_layer_",
        names={
            "self_attention/query/kernel": "attn_q",
            "self_attention/key/kernel": "attn_k",
            "self_attention/value/kernel": "attn_v",
            "self_attention/attention_output/kernel": "attn_output",
            "self_attention_layernorm/scale": "attn_norm",
            "feedforward_gate_dense/kernel": "ffn_gate",
            "feedforward_intermediate_dense/kernel": "ffn_up",
            "feedforward_output_dense/kernel": "ffn_down",
            "feedforward_layernorm/scale": "ffn_norm",
        },
        outer_names={
            "token_embedding/embeddings": "token_embd",
            "token_embedding/reverse_embeddings": "output",
            "sequence_output_layernorm/scale": "output_norm",
        },
        arguments=_llama_arguments,
        prepare=_prepare_llama,
    ),
    "gemma3": Architecture(
        classes="Gemma3",
        block="decoder_block_",
        names={
            "pre_attention_norm/scale": "attn_norm",
            "post_attention_norm/scale": "post_attention_norm",
            "attention/query/kernel": "attn_q",
            "attention/key/kernel": "attn_k",
            "attention/value/kernel": "attn_v",
            "attention/query_norm/scale": "attn_q_norm",
            "attention/key_norm/scale": "attn_k_norm",
            "attention/attention_output/kernel": "attn_output",
            "pre_ffw_norm/scale": "ffn_norm",
            "post_ffw_norm/scale": "post_ffw_norm",
            "ffw_gating/kernel": "ffn_gate",
            "ffw_gating_2/kernel": "ffn_up",
            "ffw_linear/kernel": "ffn_down",
        },
        outer_names={"token_embedding/embeddings": "token_embd", "final_normalization/scale": "output_norm"},
        arguments=_gemma3_arguments,
        prepare=_prepare_gemma3,
    ),
}


def from_gguf(path: str | os.PathLike, dtype: DType | None = None) -> keras.Model:
    """Return the decoder in a GGUF file as a KerasHub model with tokenizer.

    Supports the architectures "llama" (Llama 1 to 3, SmolLM2, TinyLlama, Mistral without window) and "gemma3" (text).
    Quantized tensors become float weights. `replace_attention` then makes the attention sparse. Save the sparse model:
    KerasHub 0.32 does not save in a dense Llama that input and output embeddings are tied.

    Args:
        path: of the file. The weights of a model split into several files must be merged first.
        dtype: dtype policy of the model. None for Keras's global policy. Default: None.

    Returns:
        A `keras_hub.models.CausalLM` whose preprocessor has the tokenizer of the file. `generate` takes and returns
        text. `preprocessor.sequence_length` is the context length of the model.

    Raises:
        ValueError: If the file is damaged or incomplete, or has an architecture, a setting, a quantization or a
            tokenizer that is not supported.
        ImportError: If `gguf` or `keras_hub` is not installed.

    Example:
        >>> model = tsa.convert.from_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
        >>> model.generate("The capital of France is", max_length=32)
    """
    try:
        import gguf  # noqa: F401
        import keras_hub

        from tf_sparse_attention.convert.gguf.tokenizer import GgufTokenizer
    except ImportError as error:
        raise ImportError("`from_gguf` needs gguf and KerasHub: pip install 'tf_sparse_attention[gguf]'") from error
    file = _read(path)
    kind = ARCHITECTURES.get(file.architecture)
    if kind is None:
        raise ValueError(
            f"`path` must have an architecture among {sorted(ARCHITECTURES)}. "
            f"Received: {file.path} with {file.architecture!r}."
        )
    try:
        tokenizer = GgufTokenizer.from_metadata(file.metadata)
    except Exception as error:  # entries may be missing or have any type
        raise ValueError(
            "`path` must have a complete tokenizer of a supported type. "
            f"Received: {file.path}: {type(error).__name__}: {error}"
        ) from error
    with initialize_with_zeros():
        backbone = getattr(keras_hub.models, f"{kind.classes}Backbone")(**kind.arguments(file), dtype=dtype)
    _copy_weights(file, kind, backbone)
    preprocessor = keras_hub.models.CausalLMPreprocessor(
        tokenizer, sequence_length=file.setting("context_length"), add_end_token=False
    )
    return getattr(keras_hub.models, f"{kind.classes}CausalLM")(backbone=backbone, preprocessor=preprocessor)


def _read(path: str | os.PathLike) -> GgufFile:
    import gguf

    if not pathlib.Path(path).is_file():
        raise ValueError(f"`path` must be a GGUF file. Received: {os.fspath(path)!r}, which is not a file.")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader raises any exception for damaged files
        raise ValueError(
            f"`path` must be a complete GGUF file. Received: {os.fspath(path)!r}: {type(error).__name__}: {error}"
        ) from error
    return GgufFile(os.fspath(path), metadata, {tensor.name: tensor for tensor in reader.tensors})


def _copy_weights(file: GgufFile, kind: Architecture, backbone: keras.Model) -> None:
    used = {"rope_freqs.weight"}
    for weight in backbone.weights:
        name = f"{_tensor_name(kind, weight.path)}.weight"
        used.add(name)
        values = file.values(name)
        if values.size != np.prod(weight.shape):
            raise ValueError(
                "`path` must have tensors that fit its settings. "
                f"Received: {file.path} with {name!r} of shape {values.shape} for weights of {tuple(weight.shape)}."
            )
        is_embedding = weight.path.endswith("/embeddings")
        weight.assign(values if is_embedding else kind.prepare(name, values, tuple(weight.shape)))
    if unknown := sorted(set(file.tensors) - used):
        raise ValueError(
            f"`path` must have the tensors of a {kind.classes}Backbone and no others. "
            f"Received: {file.path} with {unknown}."
        )


def _tensor_name(kind: Architecture, path: str) -> str:
    block, _, inner = path.partition("/")
    if block.startswith(kind.block):
        return f"blk.{block.removeprefix(kind.block)}.{kind.names[inner]}"
    return kind.outer_names[path]
