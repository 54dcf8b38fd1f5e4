"""Internal parts of layers: masks, projections, centroids, adaptive spans and segment memory."""

__all__ = []
