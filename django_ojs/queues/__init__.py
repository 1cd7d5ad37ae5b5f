"""Queues: configuration, defaults for jobs, pauses, bounds and deletion, and maintenance mode."""
