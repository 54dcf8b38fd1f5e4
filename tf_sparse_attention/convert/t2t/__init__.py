"""Import of tensor2tensor checkpoints of the published Routing Transformer."""

from tf_sparse_attention.convert.t2t.conversion import from_t2t_checkpoint, plan_t2t_checkpoint

__all__ = ["from_t2t_checkpoint", "plan_t2t_checkpoint"]
