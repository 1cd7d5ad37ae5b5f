"""What a durable job asks people, and what they decide, as values (extension durable-execution)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from django_ojs.rules.durations import parse_length_ms
from django_ojs.rules.faults import checked, fault

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


@dataclasses.dataclass(frozen=True, slots=True)
class ApprovalMail:
    """The mails to those who are asked: `OJS["APPROVAL_MAIL"]`.

    Attributes:
        site: where the admin is, such as `https://shop.example.com`.
        links: for how long a link in a mail decides without a login; None: it leads to the admin, which asks for one.
    """

    site: str
    links: dt.timedelta | None = None


def parse_mail(given: object) -> ApprovalMail | None:
    """The setting, read and checked; None: no mails. Raises InvalidRequest with the path of what is wrong."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or (unknown := [str(name) for name in given if name not in ("site", "links")]):
        path = "APPROVAL_MAIL" if not isinstance(given, Mapping) else f"APPROVAL_MAIL.{unknown[0]}"
        raise fault(path, "must be an object with site, and links if they are wanted", given)
    site = given.get("site")
    parts = urlsplit(site) if isinstance(site, str) else urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise fault("site", "must be where the admin is, such as https://shop.example.com", site)
    links = given.get("links")
    lasting = None if links is None else checked(parse_length_ms, links, "links")
    span = None if lasting is None else dt.timedelta(milliseconds=lasting)
    return ApprovalMail(f"{parts.scheme}://{parts.netloc}", span)
