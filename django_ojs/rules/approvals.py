"""What a durable job asks people, and what they decide, as values (extension durable-execution)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

#: The event for which a step waits that asks users; its key is the id of the approval. No caller can emit it.
EVENT = "$approval"
MAX_TITLE = 200
MAX_COMMENT = 2000


class ApprovalState(StrEnum):
    """What has become of an approval."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"  #: no user decided in time
    CLOSED = "closed"  #: the job has ended, or does not ask any more


@dataclasses.dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What became of an approval that a durable handler waited for.

    Attributes:
        approved: whether a user said yes.
        by: who decided: `user:NAME` or `key:NAME`; '' where no user did in time, and the default counts.
        at: when.
        comment: what they wrote beside it.
        data: what they entered into the form, as JSON; None without a form.
        is_default: whether no user decided in time, and this is the default.
    """

    approved: bool
    by: str = ""
    at: dt.datetime | None = None
    comment: str = ""
    data: Any = None
    is_default: bool = False

    def __bool__(self) -> bool:
        return self.approved

    def to_json(self) -> dict[str, Any]:
        """The decision as its step keeps it."""
        return {**dataclasses.asdict(self), "at": None if self.at is None else self.at.isoformat()}

    @classmethod
    def of_json(cls, kept: dict[str, Any]) -> ApprovalDecision:
        """The decision that `to_json` made."""
        return cls(**{**kept, "at": None if kept["at"] is None else dt.datetime.fromisoformat(kept["at"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """What a handler asks, and whom.

    Attributes:
        details: JSON text; '' for none.
        assignees, escalate_to: users, groups, or texts such as `user:anna`, `group:finance` and `perm:shop.refund`.
        form: the place of a Django form, `module:name`; '' for none.
        schema: a JSON schema of the data, as JSON text; '' for none.
        default: what counts where no user decides in time; None: the wait fails.
        escalate_after: milliseconds.
    """

    title: str
    details: str = ""
    assignees: Sequence[Any] = ()
    form: str = ""
    schema: str = ""
    default: bool | None = None
    escalate_after: int | None = None
    escalate_to: Sequence[Any] = ()
