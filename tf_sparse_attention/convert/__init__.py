"""Trained weights from elsewhere."""

from tf_sparse_attention.convert.causal_routing import with_causal_routing
from tf_sparse_attention.convert.t2t import from_t2t_checkpoint, plan_t2t_checkpoint

__all__ = ["from_t2t_checkpoint", "plan_t2t_checkpoint", "with_causal_routing"]
