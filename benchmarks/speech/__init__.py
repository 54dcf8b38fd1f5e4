"""Types of attention on speech: error rates after equal processor time, forward time, and exchanged attention."""
