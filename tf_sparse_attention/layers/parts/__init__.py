"""Parts of layers: masks, projections, centroids, spans, persistent vectors, segment memory."""

__all__ = []
