"""Queues: their defaults for jobs, configuration, pauses, bounds and deletion, and maintenance mode."""
