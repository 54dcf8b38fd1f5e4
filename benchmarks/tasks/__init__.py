"""Every task of the trainer at toy size: `make tasks`."""
