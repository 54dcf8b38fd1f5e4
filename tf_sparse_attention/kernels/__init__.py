"""Kernels of JAX that compute attention without an array of scores, on devices that have them.

They are imported where they serve, and no other part imports a backend for them.
"""
