"""The plan of a conversion: how every variable of a checkpoint is used, from names and shapes alone."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_sparse_attention.convert.t2t.layout import SLOTS, STEP, Layout, is_not_model_variable, read_layout
from tf_sparse_attention.convert.t2t.mapping import Row, make_mapping, unused_names
from tf_sparse_attention.convert.t2t.settings import DEFAULTS, check_settings
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.types import Shape


@dataclasses.dataclass(frozen=True)
class Plan:
    """How every variable of a checkpoint is used.

    Attributes:
        layout: the `Layout` of the model.
        settings: settings of tensor2tensor by name, with defaults.
        rows: list of `Row`, one for each weight of the model.
        unused: names of variables of the model that have no effect.
        other_variables: number of variables that are not the model's, by their kind.
    """

    layout: Layout
    settings: dict[str, Any]
    rows: list[Row]
    unused: list[str]
    other_variables: dict[str, int]

    def backbone_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `Backbone`."""
        layout, settings = self.layout, self.settings
        return {
            "vocabulary_size": layout.vocabulary_size,
            "num_layers": layout.num_layers,
            "hidden_dim": layout.hidden_dim,
            "embedding_dim": layout.embedding_dim,
            "intermediate_dim": layout.intermediate_dim,
            **({} if layout.activation is None else {"activation": layout.activation}),
            "attention": self._parts(),
            "num_local_layers": layout.routed[0] if layout.routed else 0,
            "norm": layout.norm,
            "layer_norm_epsilon": settings["norm_epsilon"],
            "dropout": settings["layer_prepostprocess_dropout"],
            "activation_dropout": settings["relu_dropout"],
            "embedding_dropout": settings["dropout"],
            "token_dropout": settings["target_dropout"],
            "embedding": {"sinusoidal": True} if settings["add_timing_signal"] else None,
        }

    def _parts(self):
        layout, settings = self.layout, self.settings
        common = {
            "key_dim": layout.key_dim,
            "value_dim": layout.value_dim,
            "use_bias": False,
            "dropout": settings["attention_dropout"],
        }
        block, flange = settings["query_shape"][0], settings["memory_flange"][0]
        local = {"layer": "LocalAttention", "block_size": block, "num_blocks_before": flange // block}
        local |= {**common, **_position(layout.local_distance)}
        if not layout.routed:
            return [{**local, "num_heads": layout.num_heads}]
        routing = {
            "layer": "RoutingAttention",
            "num_heads": layout.num_routing,
            "num_clusters": layout.num_clusters,
            "cluster_size": settings["sparsity_cluster_attention_window"],
            "selection": "top_k",
            "share_qk": settings["share_qk"],
            "reproduce_reference": True,
            "ema_decay": settings["decay"],
            "commitment_loss": settings["beta"],
            "revive_after": 0,  # as published
            **common,
            **_position(layout.routing_distance),
        }
        return [routing, {**local, "num_heads": layout.num_local}] if layout.num_local else [routing]

    def make_model(self, dtype: Any = None) -> LanguageModel:
        """Returns the model with random weights."""
        return LanguageModel(Backbone(**self.backbone_arguments(), dtype=dtype), dtype=dtype)

    def table(self) -> str:
        """Returns the mapping as text: a line for each weight, then the variables that are omitted."""
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
        lines += [f"omitted, without effect: {scope}{name}" for name in self.unused]
        lines += [f"not weights: {count} {kind}" for kind, count in self.other_variables.items()]
        return "\n".join(lines)


def _position(distance):
    return {} if distance is None else {"position": "relative", "max_distance": distance}


def make_plan(shapes: Mapping[str, Shape], settings: Mapping[str, Any]) -> Plan:
    """Returns the `Plan` of a conversion.

    Args:
        shapes: dictionary of the shapes of all variables of the checkpoint by name.
        settings: dictionary of settings of tensor2tensor, see `settings.read_settings`.

    Raises:
        ValueError: If variables are missing or unknown, or settings are missing or contradict them.
    """
    layout = read_layout(shapes)
    check_settings(settings, layout)
    if layout.routed != tuple(range(*((layout.routed[0], layout.num_layers) if layout.routed else (0,)))):
        raise ValueError(
            "`path` must have routed heads in all layers from one on, as the published models do. "
            f"Received: routed heads in the layers {layout.routed} of {layout.num_layers}."
        )
    settings = {**DEFAULTS, **{name: value for name, value in settings.items() if value is not None}}
    rows = make_mapping(layout, bool(settings.get("share_qk")))
    kinds = collections.Counter(_kind(name) for name in shapes if is_not_model_variable(name))
    return Plan(layout, settings, rows, unused_names(layout, rows), dict(kinds))


def _kind(name):
    if name == STEP:
        return "step counter"
    return "optimizer slots" if name.startswith(SLOTS) else "values of summaries"
