"""Kinds of attention on speech: errors after equal processor time, forward time, and one kind in place of another."""
