"""What layers are made of: masks, projections, centroids, spans, persistent vectors, segment memory."""

__all__ = []
