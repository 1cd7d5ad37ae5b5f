"""The event log: catalogue, append, order, read."""
