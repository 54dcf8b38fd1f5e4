"""Configurations, one per file. `base.py` lists all settings."""
