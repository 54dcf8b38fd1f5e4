"""Plan of a conversion: how every variable of a checkpoint is used, given its name and shape only."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_sparse_attention.convert.t2t.layout import SLOTS, STEP, Layout, is_not_model_variable
from tf_sparse_attention.convert.t2t.mapping import Row, encoder_distance, make_mapping
from tf_sparse_attention.convert.t2t.reading import read_layout
from tf_sparse_attention.convert.t2t.settings import DEFAULTS, check_settings
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.models.blocks import list_block_parts
from tf_sparse_attention.types import Shape


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a conversion: how every variable of a checkpoint is used.

    Attributes:
        layout: the `Layout` of the model.
        settings: hparams of tensor2tensor by name, with defaults.
        rows: list of `Row`, one per weight of the model.
        unused: names of the model's variables that have no effect.
        other_variables: number of variables that are not weights, by kind.
    """

    layout: Layout
    settings: dict[str, Any]
    rows: list[Row]
    unused: list[str]
    other_variables: dict[str, int]

    def backbone_arguments(self) -> dict[str, Any]:
        """Return the arguments of the decoder's `Backbone`."""
        layout, settings = self.layout, self.settings
        attention = self._attention(layout.local_distance, settings.get("share_qk"), layout.routed)
        arguments = {
            "vocabulary_size": layout.vocabulary_size,
            "num_layers": layout.num_layers,
            **self._common_arguments(dim=layout.embedding_dim),
            "attention": attention,
        }
        arguments["dropout"] |= {"embedding": settings["dropout"], "tokens": settings["target_dropout"]}
        if not layout.encoder_layers:
            return arguments
        across = {"block_size": settings["query_shape"][0], "key_block_size": settings["memory_query_shape"][0]}
        parts = self._parts(across, {"share_qk": False}, layout.routed)
        return arguments | {
            "cross_attention": list_block_parts(parts, layout.num_layers, attention["num_local_layers"])
        }

    def encoder_arguments(self) -> dict[str, Any]:
        """Return the arguments of the encoder's `Backbone`, whose inputs are vectors."""
        layout = self.layout
        distance = None if layout.local_distance is None else encoder_distance(self.settings)
        return {
            "vocabulary_size": None,
            "num_layers": layout.encoder_layers,
            "attention": self._attention(distance, share_qk=False, routed=layout.encoder_routed),
            "causal": False,
            **self._common_arguments(),
        }

    def _attention(self, local_distance, share_qk, routed):
        """Return the argument for the self-attention of a stack."""
        local = {"block_size": self.settings["query_shape"][0], **self._positions(local_distance)}
        routing = {"share_qk": share_qk, **self._positions(self.layout.routing_distance)}
        attention = {"parts": self._parts(local, routing, routed), "num_local_layers": routed[0] if routed else 0}
        return attention | ({"reproduce_reference": self.layout.has_routing} if self.layout.encoder_layers else {})

    def _common_arguments(self, dim=None):
        layout, settings = self.layout, self.settings
        return {
            "hidden_dim": layout.hidden_dim,
            "intermediate_dim": layout.intermediate_dim,
            **({} if layout.activation is None else {"activation": layout.activation}),
            "norm": {"placement": layout.norm, "epsilon": settings["norm_epsilon"]},
            "dropout": {"residual": settings["layer_prepostprocess_dropout"], "activation": settings["relu_dropout"]},
            "embedding": {"dim": dim, "sinusoidal": bool(settings["add_timing_signal"])},
        }

    def _parts(self, local, routing, routed):
        """Return the parts of an attention, given its own arguments of local and of routed heads."""
        layout, settings = self.layout, self.settings
        common = {
            "key_dim": layout.key_dim,
            "value_dim": layout.value_dim,
            "use_bias": False,
            "dropout": settings["attention_dropout"],
        }
        key_block = local.get("key_block_size", local["block_size"])
        local = {"layer": "LocalAttention", "num_blocks_before": settings["memory_flange"][0] // key_block, **local}
        local |= common
        if not routed:
            return [{**local, "num_heads": layout.num_heads}]
        routing = {
            "layer": "RoutingAttention",
            "num_heads": layout.num_routing,
            "num_clusters": layout.num_clusters,
            "cluster_size": settings["sparsity_cluster_attention_window"],
            "selection": "top_k",
            "reproduce_reference": True,
            "ema_decay": settings["decay"],
            "commitment_loss": settings["beta"],
            "revive_after": 0,  # as published
            **common,
            **routing,
        }
        return [routing, {**local, "num_heads": layout.num_local}] if layout.num_local else [routing]

    def _positions(self, distance):
        return {} if distance is None else {"position": "relative", "max_distance": distance}

    def make_model(self, dtype: Any = None) -> LanguageModel | SequenceToSequence:
        """Return the model with random weights."""
        model = LanguageModel(Backbone(**self.backbone_arguments(), dtype=dtype), dtype=dtype)
        if not self.layout.encoder_layers:
            return model
        return SequenceToSequence(Backbone(**self.encoder_arguments(), dtype=dtype), model, dtype=dtype)

    def table(self) -> str:
        """Return the mapping as text: one line per weight, then the omitted variables."""
        cells = [("weight", "shape", "computed from", "change")]
        scope = self.layout.scope
        cells += [
            (r.target, str(r.shape), " and ".join(scope + name for name in r.sources), r.change) for r in self.rows
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        lines = [
            "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])).rstrip()
            for row in cells
        ]
        lines += [f"omitted (no effect): {scope}{name}" for name in self.unused]
        lines += [f"not weights: {count} {kind}" for kind, count in self.other_variables.items()]
        return "\n".join(lines)


def make_plan(shapes: Mapping[str, Shape], settings: Mapping[str, Any]) -> Plan:
    """Return the `Plan` of a conversion.

    Args:
        shapes: dictionary of the shapes of all variables of the checkpoint by name.
        settings: dictionary of tensor2tensor hparams, see `settings.read_settings`.

    Raises:
        ValueError: If variables are missing or unknown, or if settings are missing or contradict the variables.
    """
    layout = read_layout(shapes)
    check_settings(settings, layout)
    _check_routed_layers(layout)
    settings = {**DEFAULTS, **{name: value for name, value in settings.items() if value is not None}}
    rows = make_mapping(layout, settings)
    unused = sorted(set(layout.shapes) - {name for row in rows for name in row.sources})
    kinds = collections.Counter(_kind(name) for name in shapes if is_not_model_variable(name))
    return Plan(layout, settings, rows, unused, dict(kinds))


def _check_routed_layers(layout):
    for stack in layout.stacks:
        if stack.routed != tuple(range(min(layout.num_skipped, stack.num_layers), stack.num_layers)):
            raise ValueError(
                "`path` must have routed heads in all layers after the first routed layer, like the published models. "
                f"Received: routed heads in layers {stack.routed} of {stack.num_layers} {stack.name} layers."
            )


def _kind(name):
    if name == STEP:
        return "step counter"
    return "optimizer slots" if name.startswith(SLOTS) else "summary values"
