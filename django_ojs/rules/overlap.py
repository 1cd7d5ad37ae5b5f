"""What happens when a schedule fires while a job of its previous run has not ended (orchestration 2.5)."""

from __future__ import annotations

from enum import StrEnum


class OverlapPolicy(StrEnum):
    SKIP = "skip"  #: no job this time; the default
    ALLOW = "allow"  #: one more job
    CANCEL_PREVIOUS = "cancel_previous"  #: cancel what is there, then one more
    ENQUEUE = "enqueue"  #: one more, which waits until those before it have ended
