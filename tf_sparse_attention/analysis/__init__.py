"""Tools to look at a model: the causality audit, pictures of attention, tables."""
