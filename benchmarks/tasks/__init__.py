"""All tasks of the trainer at toy size: `make tasks`."""
