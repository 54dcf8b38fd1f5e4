"""Encoder-decoder: an encoder of the source, and a language model of the target with cross-attention."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.generation import bucket_length
from tf_sparse_attention.generation.strategies import Strategy
from tf_sparse_attention.models.backbone import Backbone
from tf_sparse_attention.models.generation import format_results
from tf_sparse_attention.models.generator import END_ID, Generator, pad_prompts
from tf_sparse_attention.models.inputs import as_token_ids
from tf_sparse_attention.models.language_model import LanguageModel
from tf_sparse_attention.models.model import Model, TargetsAsInputs, split_targets
from tf_sparse_attention.models.presets import translation_arguments
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.models.prompts import Prompts, iterate_pieces, parse_prompts
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Tensor

SOURCES = ("encoder_token_ids", "encoder_features")
ENCODER_MASKS = ("encoder_padding_mask", "encoder_segment_ids")
DECODER_MASKS = ("decoder_padding_mask", "decoder_segment_ids")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SequenceToSequence(TargetsAsInputs, Model):
    """Encoder-decoder: logits of the next target token, given a source and the previous target tokens.

    Encoder and decoder are `Backbone`s with any patterns. The encoder is bidirectional; the decoder is causal and has
    `cross_attention`. Sources: Vaswani et al. 2017, "Attention is all you need"; Roy et al. 2021.

    Source and target embeddings are separate by default. If the encoder has no vocabulary and as many features as the
    decoder's embedding, the decoder's embedding also embeds source ids. With `tie_embeddings`, the output weights are
    this embedding, too.

    Args:
        encoder: a `Backbone` with `causal=False`.
        decoder: a `LanguageModel` whose backbone is causal, and has `cross_attention` and the `hidden_dim` of the
            encoder.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: dictionary with the keys of KerasHub. "encoder_token_ids", int (B, S), or, for an encoder without a
            vocabulary, "encoder_features", float (B, S, F). "decoder_token_ids", int (B, T): the targets shifted right
            by one after id 0. "encoder_padding_mask", bool (B, S), and "decoder_padding_mask", bool (B, T): optional,
            False for padding. "encoder_segment_ids", int (B, S), and "decoder_segment_ids", int (B, T): optional, both
            or neither; a target attends to the source with the same id. "targets", int (B, T): optional.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, T, V); with "targets", their -log p in nats, (B, T).

    Raises:
        ValueError: if encoder and decoder do not match, or `inputs` has missing or unknown keys.

    Example:
        >>> part = {"num_heads": 2, "key_dim": 8}
        >>> local, dense = [{"layer": "LocalAttention", "window": 16, **part}], [{"layer": "DenseAttention", **part}]
        >>> encoder = Backbone(100, 2, 16, local, intermediate_dim=32, causal=False)
        >>> decoder = LanguageModel(Backbone(100, 2, 16, local, intermediate_dim=32, cross_attention=dense))
        >>> model = SequenceToSequence(encoder, decoder)
        >>> ids = {"encoder_token_ids": ops.ones((1, 20), "int32"), "decoder_token_ids": ops.ones((1, 9), "int32")}
        >>> tuple(model(ids).shape)
        (1, 9, 100)
    """

    _model_arguments = ("encoder", "decoder")

    def __init__(self, encoder: Backbone, decoder: LanguageModel, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        _check_models(encoder, decoder)
        self.encoder = encoder
        self.decoder = decoder
        self.loss_from_targets = decoder.loss_from_targets
        self._programs = Programs(self)
        self.built = True

    @classmethod
    def from_preset(
        cls,
        name: str,
        vocabulary_size: int,
        source_vocabulary_size: int | None = None,
        reproduce_reference: bool = False,
        tie_embeddings: bool = False,
        use_output_bias: bool = True,
        **overrides: Any,
    ) -> "SequenceToSequence":
        """Create a model of a published size with random weights.

        Args:
            name: one of `tf_sparse_attention.models.TRANSLATION_PRESETS`.
            vocabulary_size: V, number of token ids of the targets.
            source_vocabulary_size: vocabulary size of the encoder's embedding. None: no such embedding; the encoder
                takes features, or ids embedded by the decoder.
            reproduce_reference: whether routed heads and padding work as published, which is not causal. Default False:
                routed heads select "nearest" in the decoder, "top_keys" in cross-attention, "top_k" in the encoder.
            tie_embeddings, use_output_bias: as for `LanguageModel`.
            **overrides: replacements for arguments of both `Backbone`s. A dictionary for `attention`, `embedding`,
                `norm` or `dropout` changes only the options that it names. `cross_attention`, `dim` of `embedding` and
                `tokens` of `dropout` only change the decoder.

        Raises:
            ValueError: if `name` is unknown, or `num_layers` is not greater than `num_local_layers` of `attention`.
        """
        encoder_arguments, decoder_arguments = translation_arguments(name, reproduce_reference, **overrides)
        dtype = overrides.get("dtype")
        backbone = Backbone(vocabulary_size, **decoder_arguments)
        decoder = LanguageModel(backbone, tie_embeddings, use_output_bias, dtype=dtype)
        return cls(Backbone(source_vocabulary_size, **encoder_arguments), decoder, dtype=dtype)

    @property
    def backbone(self) -> Backbone:
        """Backbone of the decoder."""
        return self.decoder.backbone

    @property
    def vocabulary_size(self) -> int:
        """V, number of token ids of the targets."""
        return self.decoder.vocabulary_size

    @property
    def source_vocabulary_size(self) -> int:
        """Number of token ids of the source; V if the decoder's embedding embeds source ids."""
        size = self.encoder.vocabulary_size
        return self.vocabulary_size if size is None else size

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        inputs, targets = split_targets(inputs)
        _check_inputs(inputs)
        decoder_inputs = {"token_ids": inputs["decoder_token_ids"], "targets": targets}
        decoder_inputs |= self.encode(inputs, training)
        decoder_inputs |= {name.removeprefix("decoder_"): inputs.get(name) for name in DECODER_MASKS}
        return self.decoder({name: x for name, x in decoder_inputs.items() if x is not None}, training=training)

    @without_autograph
    def encode(self, inputs: dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Return the encoder inputs of the decoder: "encoder_sequence", float (B, S, D), and optional masks.

        Args:
            inputs: as in a call; only keys of the encoder are used.
            training: as in a call.
        """
        masks = {name: inputs[name] for name in ENCODER_MASKS if inputs.get(name) is not None}
        encoder_masks = {name.removeprefix("encoder_"): x for name, x in masks.items()}
        source = {self.encoder.input_names[0]: self._source(inputs)}
        return {"encoder_sequence": self.encoder({**source, **encoder_masks}, training=training), **masks}

    @without_autograph
    def init_cache(self, inputs: dict[str, Tensor], max_length: int | Tensor, **options: Any) -> dict[str, Any]:
        """Encode the sources, and create the cache of empty targets with the keys and values of the sources.

        Args:
            inputs: as in a call; only keys of the encoder are used.
            max_length: maximum number of tokens of a target.
            **options: further arguments of `Backbone.init_cache`.
        """
        encoded = self.encode(inputs, training=False)
        return self.decoder.init_cache(shape(encoded["encoder_sequence"])[0], max_length, **options, **encoded)

    @without_autograph
    def extend(
        self,
        decoder_token_ids: Tensor,
        cache: dict[str, Any],
        mask: Tensor | None = None,
        index: int | Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the logits (B, q, V) for the next target tokens, and add them to the cache; see `Backbone.extend`."""
        return self.decoder.extend(decoder_token_ids, cache, mask, index)

    @without_autograph
    def rewind(self, cache: dict[str, Any], lengths: int | Tensor) -> dict[str, Any]:
        """Remove the last target tokens of each row from the cache; see `Backbone.rewind`."""
        return self.decoder.rewind(cache, lengths)

    @property
    def generator(self) -> Generator:
        """The `Generator` of the decoder, with its compiled programs."""
        return self.decoder.generator

    def compile_stats(self) -> dict[str, int]:
        """Return the number of compiled programs by name, with "encode"; see `LanguageModel.compile_stats`."""
        return {**self.generator.compile_stats(), **self._programs.counts}

    def generate(
        self,
        sources: Any,
        max_length: int,
        strategy: Strategy = "greedy",
        tokenizer: Any = None,
        source_tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        return_log_probs: bool = False,
    ) -> Any:
        """Generate a target for each source.

        Args:
            sources: `str`, `bytes`, or a sequence of ids; or a list, array or tensor of these, like the prompts of
                `LanguageModel.generate`. No end id is added. Append the end id if sources in training had one.
            max_length: maximum number of tokens in a target.
            strategy: see `LanguageModel.generate`. Default "greedy"; "beam" is usual for translation.
            tokenizer: tokenizer of the targets. Only its ids are sampled, and the results are text. Default None: the
                results are ids.
            source_tokenizer: tokenizer for text sources. None: `tokenizer`.
            seed, stop_token_ids, return_log_probs: as for `LanguageModel.generate`.

        Returns:
            As for `LanguageModel.generate`: the target of one source, or a list of targets.

        Raises:
            ValueError: if a source is empty or has ids outside the vocabulary, and as for `LanguageModel.generate`.

        Example:
            >>> tokenizer = tsa.data.ByteTokenizer()
            >>> translator.generate(["Der Hund bellt."], max_length=100, strategy="beam", tokenizer=tokenizer)
        """
        checks.check_switch("return_log_probs", return_log_probs)
        parsed = self._parse(sources, source_tokenizer, tokenizer)
        rows = self.generator.generate(
            **self.generation_request(parsed, max_length, strategy, seed, stop_token_ids, tokenizer)
        )
        return format_results(parsed, rows, tokenizer, return_log_probs)

    def stream(
        self,
        source: Any,
        max_length: int,
        strategy: Strategy = "greedy",
        tokenizer: Any = None,
        source_tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        chunk_size: int = 1,
    ) -> Iterator[Any]:
        """Iterate over pieces of the target of one source during generation; see `LanguageModel.stream`."""
        checks.check_count("chunk_size", chunk_size)
        parsed = self._parse(source, source_tokenizer, tokenizer)
        if len(parsed.rows) > 1:
            raise ValueError(f"`source` must be one source. Received: {len(parsed.rows)}.")
        request = self.generation_request(parsed, max_length, strategy, seed, stop_token_ids, tokenizer)
        row_lists = self.generator.iterate(**request, chunk_size=chunk_size)
        return iterate_pieces((row.token_ids for (row,) in row_lists), tokenizer)

    def _parse(self, sources: Any, source_tokenizer: Any, tokenizer: Any) -> Prompts:
        tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
        parsed = parse_prompts(sources, self.source_vocabulary_size, tokenizer, name="sources", remove_start_id=False)
        if not all(len(row) for row in parsed.rows):
            raise ValueError("`sources` must have at least one token each. Received: an empty source.")
        return parsed

    def generation_request(
        self,
        parsed: Prompts,
        max_length: int,
        strategy: Strategy,
        seed: int | Sequence[int] | Tensor,
        stop_token_ids: int | Sequence[int] | Tensor | None,
        tokenizer: Any,
    ) -> dict[str, Any]:
        """Encode the sources and return the arguments of `Generator.iterate`; arguments as in `generate`."""
        settings = {"max_length": max_length, "strategy": strategy, "seed": seed, "stop_token_ids": stop_token_ids}
        return {
            **settings,
            "prompts": [np.zeros(0, "int32")] * len(parsed.rows),
            "num_ids": None if tokenizer is None else tokenizer.vocabulary_size,
            "encoded": self._encoded(parsed.rows),
        }

    def _encoded(self, rows):
        """Encode sources, padded to one of a few lengths."""
        longest = max(map(len, rows))
        limit = self.encoder.max_length
        size = bucket_length(longest) if limit is None else min(bucket_length(longest), limit)
        if longest > size:
            raise ValueError(f"`sources` must have at most {limit} tokens each. Received: {longest} tokens.")
        mask = np.arange(size) < np.array([len(row) for row in rows])[:, None]
        encode = self._programs.get(("encode",), self.encode)
        return encode({"encoder_token_ids": pad_prompts(rows, size), "encoder_padding_mask": mask})

    def _source(self, inputs):
        """Return the inputs of the encoder: token ids, features, or ids embedded by the decoder."""
        if "encoder_features" in inputs:
            return inputs["encoder_features"]
        ids = as_token_ids("encoder_token_ids", inputs["encoder_token_ids"], self.source_vocabulary_size)
        return ids if self.encoder.vocabulary_size is not None else self.decoder.backbone.embedding(ids)

    def compute_output_shape(self, input_shape: Any) -> Any:
        sizes = input_shape["decoder_token_ids"]
        return sizes if "targets" in input_shape else (*sizes, self.vocabulary_size)

    def get_config(self) -> Config:
        return self.base_config()


def _check_models(encoder, decoder):
    """Raise a `ValueError` if encoder and decoder do not match."""
    if not isinstance(encoder, Backbone) or encoder.causal:
        raise ValueError(f"`encoder` must be a `Backbone` with causal=False. Received: encoder={encoder!r}.")
    if not isinstance(decoder, LanguageModel) or not decoder.backbone.causal or not decoder.backbone.reads_encoder:
        raise ValueError(
            "`decoder` must be a `LanguageModel` whose `Backbone` is causal and has `cross_attention`. "
            f"Received: decoder={decoder!r}."
        )
    if encoder.hidden_dim != decoder.backbone.hidden_dim:
        raise ValueError(
            "`encoder` and `decoder` must have the same `hidden_dim`. "
            f"Received: {encoder.hidden_dim} of the encoder, {decoder.backbone.hidden_dim} of the decoder."
        )


def _check_inputs(inputs):
    required = "decoder_token_ids"
    allowed = {*SOURCES, required, *ENCODER_MASKS, *DECODER_MASKS}
    received = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
    if not isinstance(inputs, dict) or required not in inputs or set(inputs) - allowed:
        raise ValueError(
            f"`inputs` must be a dictionary with {required!r} and {SOURCES[0]!r} or {SOURCES[1]!r}, and may have "
            f"{', '.join(map(repr, ENCODER_MASKS + DECODER_MASKS))}. Received: {received}."
        )
    if (inputs.get(ENCODER_MASKS[1]) is None) != (inputs.get(DECODER_MASKS[1]) is None):
        raise ValueError(
            f"`inputs` must have both {ENCODER_MASKS[1]!r} and {DECODER_MASKS[1]!r}, or neither. Received: {received}."
        )
    if len(set(inputs) & set(SOURCES)) != 1:
        raise ValueError(f"`inputs` must have one of {SOURCES[0]!r} and {SOURCES[1]!r}. Received: {received}.")
