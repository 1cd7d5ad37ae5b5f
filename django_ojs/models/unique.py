"""What pushes of unique jobs take turns by."""

from __future__ import annotations

from django.db import models


class UniqueLock(models.Model):
    """One lock, for every unique key that falls on it: who pushes such a key holds its row until the commit.

    The rows appear as they are needed and stay; there are never more than `STRIPES`.
    """

    STRIPES = 65_536

    stripe = models.PositiveIntegerField(primary_key=True)
    # MariaDB's upsert, which takes the lock in one step, must have something to set.
    used = models.BooleanField(default=True)

    def __str__(self) -> str:
        return str(self.stripe)

    @classmethod
    def of(cls, unique_key: str) -> int:
        """The stripe of a key, from its first 16 bits."""
        return int(unique_key[:4], 16)
