"""Tasks: what a run trains."""
