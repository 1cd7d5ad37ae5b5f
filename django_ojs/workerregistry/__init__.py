"""The workers that the database knows: registration, heartbeats, who serves what, and workers that died."""
