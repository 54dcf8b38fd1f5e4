"""Per-head options: grouped-query heads, sinks, soft cap, QK norm, gate, RoPE settings."""

import dataclasses
from typing import Any, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.variables import state_dtype
from tf_sparse_attention.ops.positions import PLAIN, RotarySettings
from tf_sparse_attention.types import Config, Shape, Tensor

ROTARY = "rotary_"
SWITCHES = ("use_sink", "use_query_key_norm", "use_value_norm", "use_gate")
POSITIVE = (  # fields of `RotarySettings`
    "max_wavelength",
    "scaling_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)

YARN, LLAMA3, LONGROPE = ("yarn",), ("llama3",), ("longrope",)
READ_BY = {  # fields of `RotarySettings` and the types that use them; all types use the other fields
    "beta_fast": YARN,
    "beta_slow": YARN,
    "truncate": YARN,
    "low_freq_factor": LLAMA3,
    "high_freq_factor": LLAMA3,
    "original_max_position_embeddings": YARN + LLAMA3 + LONGROPE,
    "factors": LONGROPE,
}


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """Per-head options of an attention layer, which do not depend on its pattern; see `AttentionLayer`.

    Arguments with the prefix "rotary_" are fields of `RotarySettings`.
    """

    num_key_value_heads: int | None = None
    attention_scale: float | None = None
    logit_soft_cap: float | None = None
    use_sink: bool = False
    use_query_key_norm: bool = False
    query_key_norm_epsilon: float = 1e-6
    use_value_norm: bool = False
    alibi_slopes: tuple[float, ...] | None = None
    use_gate: bool = False
    rotary: RotarySettings = PLAIN

    @classmethod
    def pop_from(cls, arguments: dict[str, Any]) -> Self:
        """Remove the settings from keyword arguments, and return them.

        Raises:
            ValueError: if a setting is invalid.
        """
        own = [field.name for field in dataclasses.fields(cls) if field.name != "rotary"]
        fields = [field.name for field in dataclasses.fields(RotarySettings)]
        rotary = {name: arguments.pop(ROTARY + name) for name in fields if ROTARY + name in arguments}
        given = {name: arguments.pop(name) for name in own if name in arguments}
        for values, name in ((rotary, "factors"), (given, "alibi_slopes")):  # saved configs have lists
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        settings = cls(**given, rotary=RotarySettings(**rotary))
        _check(settings)
        return settings

    def config(self) -> Config:
        """Return the arguments by name, as `pop_from` accepts them."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del config["rotary"]
        return config | {ROTARY + name: value for name, value in dataclasses.asdict(self.rotary).items()}

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the arguments."""
        return list(cls().config())

    def check_for(self, layer: keras.layers.Layer) -> None:
        """Raise a `ValueError` if the settings contradict other arguments of an attention layer."""
        heads, keys = layer.num_pattern_heads, self.num_key_value_heads
        if keys is not None and heads % keys:
            raise ValueError(
                f"`num_key_value_heads` must divide the {heads} heads with keys. "
                f"Received: num_key_value_heads={keys}, num_heads={layer.num_heads}."
            )
        if keys not in (None, heads) and layer.share_qk:
            raise ValueError(
                "`num_key_value_heads` must be None where queries are used as keys. Pass "
                f"share_qk=False to {type(layer).__name__}. Received: num_key_value_heads={keys}, num_heads={heads}."
            )
        slopes = self.alibi_slopes
        if slopes is not None and (layer.position != "alibi" or len(slopes) != layer.num_heads):
            raise ValueError(
                f"`alibi_slopes` must have one number per head, with position='alibi'. "
                f"Received: {len(slopes)} numbers, num_heads={layer.num_heads}, position={layer.position!r}."
            )
        dim, factors = self.rotary.dim, self.rotary.factors
        if self.rotary != PLAIN and layer.position != "rotary":
            changed = dict(dataclasses.asdict(self.rotary).items() - dataclasses.asdict(PLAIN).items())
            raise ValueError(
                "`position` must be 'rotary' with rotary settings. "
                f"Received: position={layer.position!r}, {sorted(ROTARY + name for name in changed)}."
            )
        if factors is not None and 2 * len(factors) != (dim or layer.key_dim):
            raise ValueError(
                f"`rotary_factors` must have one number per pair of the {dim or layer.key_dim} rotated channels. "
                f"Received: {len(factors)} numbers."
            )
        if dim is not None and dim > layer.key_dim:
            raise ValueError(
                f"`rotary_dim` must be at most `key_dim`. Received: rotary_dim={dim}, key_dim={layer.key_dim}."
            )


def _check(settings: HeadSettings) -> None:
    checks.check_optional_count("num_key_value_heads", settings.num_key_value_heads)
    for name in SWITCHES:
        checks.check_switch(name, getattr(settings, name))
    for name in ("attention_scale", "logit_soft_cap"):
        if getattr(settings, name) is not None:
            checks.check_positive(name, getattr(settings, name))
    checks.check_positive("query_key_norm_epsilon", settings.query_key_norm_epsilon)
    for slope in settings.alibi_slopes or ():
        checks.check_positive("alibi_slopes", slope)
    default = HeadSettings.query_key_norm_epsilon
    if settings.query_key_norm_epsilon != default and not (settings.use_query_key_norm or settings.use_value_norm):
        raise ValueError(
            "`use_query_key_norm` or `use_value_norm` must be True with `query_key_norm_epsilon`. "
            f"Received: query_key_norm_epsilon={settings.query_key_norm_epsilon}, use_query_key_norm=False."
        )
    _check_rotary(settings.rotary)


def _check_rotary(rotary: RotarySettings) -> None:
    checks.check_choice("rotary_type", rotary.type, ("linear", "dynamic", "yarn", "llama3", "longrope"))
    for name in POSITIVE:
        checks.check_positive(ROTARY + name, getattr(rotary, name))
    if rotary.low_freq_factor >= rotary.high_freq_factor:
        raise ValueError(
            "`rotary_low_freq_factor` must be less than `rotary_high_freq_factor`. Received: "
            f"rotary_low_freq_factor={rotary.low_freq_factor}, rotary_high_freq_factor={rotary.high_freq_factor}."
        )
    checks.check_switch("rotary_truncate", rotary.truncate)
    unused = [name for name, kinds in READ_BY.items() if rotary.type not in kinds]
    unused = [ROTARY + name for name in unused if getattr(rotary, name) != getattr(PLAIN, name)]
    if unused:
        raise ValueError(
            f"`rotary_type` must be a type that uses {unused[0]}. Received: rotary_type={rotary.type!r}, {unused}."
        )
    if rotary.type == "longrope" and rotary.factors is None:
        raise ValueError("`rotary_factors` must be given with rotary_type='longrope'. Received: rotary_factors=None.")
    for factor in rotary.factors or ():
        checks.check_positive("rotary_factors", factor)
    checks.check_optional_count("rotary_dim", rotary.dim)
    checks.check_optional_count("rotary_denominator_dim", rotary.denominator_dim)
    if rotary.dim is not None and rotary.dim % 2:
        raise ValueError(f"`rotary_dim` must be even. Received: rotary_dim={rotary.dim}.")


def make_gate(
    attention: keras.layers.Layer, query_shape: Shape, objects: dict[str, Any]
) -> keras.layers.EinsumDense | None:
    """Create the projection of the gate of an attention layer, or None."""
    if not attention.head_settings.use_gate:
        return None
    sizes = attention.num_heads, attention.value_dim
    return projections.input_projection(attention, "gate", query_shape, *sizes, attention.use_bias, objects)


def gated(gate: keras.layers.Layer | None, query: Tensor, heads: Tensor) -> Tensor:
    """Multiply the attention output per head (B, N, T, Hv) by the gate of the query (B, T, D), if any."""
    return heads if gate is None else heads * ops.sigmoid(projections.heads_of(gate, query))


def make_norms(attention: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Create the query and key norms of an attention layer by the names of their projections."""
    norms = {}
    settings = attention.head_settings
    for name in ("query", "key")[: 1 if attention.share_qk else 2] if settings.use_query_key_norm else ():
        norms[name] = keras.layers.RMSNormalization(
            epsilon=settings.query_key_norm_epsilon, name=f"{name}_norm", dtype=attention.dtype_policy
        )
        norms[name].build((None, None, None, attention.key_dim))
    return norms


def make_sinks(attention: keras.layers.Layer) -> keras.Variable | None:
    """Create the sink logits of an attention layer, a weight float (N,), or None."""
    if not attention.head_settings.use_sink:
        return None
    sizes, dtype = (attention.num_heads,), state_dtype(attention)
    return attention.add_weight(name="sinks", shape=sizes, dtype=dtype, initializer="zeros", autocast=False)
