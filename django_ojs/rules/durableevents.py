"""Say what may be the name and the key of an event that durable handlers wait for, and what became of one."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from typing import Any

from django_ojs.errors import InvalidRequest
from django_ojs.messages import phrase, shown

#: Characters that a name or a key may have.
MAX_LENGTH = 200
#: Events whose names begin so are the server's: no caller emits them, and no handler waits for them by name.
RESERVED = "$"
#: What a job waits for that runs other jobs; its key is the id of their workflow.
CHILDREN_ENDED = "$workflow.ended"


@dataclasses.dataclass(frozen=True, slots=True)
class Emitted:
    """What became of an event that was emitted.

    Attributes:
        is_new: whether it is the first of this name and key. Otherwise it has changed nothing.
        payload: that of the first.
        created_at: when the first was emitted.
        job_ids: the jobs that waited for it, and have it now.
    """

    name: str
    key: str
    is_new: bool
    payload: Any
    created_at: dt.datetime
    job_ids: tuple[uuid.UUID, ...] = ()


def check(field: str, text: object) -> None:
    """Raise InvalidRequest unless `text` may be the name of an event, or with `field` "key" its key."""
    least = 1 if field == "name" else 0
    if field == "name" and isinstance(text, str) and text.startswith(RESERVED):
        raise InvalidRequest(
            phrase(
                "Names of events that begin with '%(reserved)s' are those of the server: choose another name.",
                reserved=RESERVED,
            ),
            details={"field": field, "expected": "string", "received": text[:MAX_LENGTH]},
        )
    if isinstance(text, str) and least <= len(text) <= MAX_LENGTH and text == text.strip() and text.isprintable():
        return
    raise InvalidRequest(
        phrase(
            "The %(field)s of an event has %(least)s to %(most)s printable characters, none of them a space at an end.",
            field=field, least=least, most=MAX_LENGTH,
        ),
        details={
            "field": field, "expected": "string",
            "received": text[:MAX_LENGTH] if isinstance(text, str) else shown(text),
        },
    )  # fmt: skip
