"""An app whose jobs.py is found by autodiscovery."""
