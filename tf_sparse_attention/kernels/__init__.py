"""Flash-attention kernels for JAX on TPUs and GPUs.

Backends are imported inside functions, so that the package loads on any backend.
"""
