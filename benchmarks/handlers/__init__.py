"""The app with the handlers that are measured, which only the benchmark's own workers load."""
