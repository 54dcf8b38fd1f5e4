"""Import of tensor2tensor checkpoints of the published Routing Transformer."""
