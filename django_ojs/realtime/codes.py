"""Why a WebSocket is closed, and the words of the errors that leave it open (events 3.3 and 3.5)."""

from __future__ import annotations

from django_ojs.errors import OJSError

GOING_AWAY, UNSUPPORTED, TOO_BIG, INTERNAL, TOO_SLOW = 1001, 1003, 1009, 1011, 1013
UNAUTHENTICATED, FORBIDDEN = 4401, 4403

_WORDS = frozenset(
    {"invalid_request", "not_found", "unknown_event_id", "permission_denied", "too_many_subscriptions"}
)  # fmt: skip


def word(error: OJSError) -> str:
    """The code of an error in a frame; what has none of its own there is `internal_error`."""
    return error.error_code if error.error_code in _WORDS else "internal_error"
