"""The body of a call that acts on many jobs: which it means, whether it is meant, and why (admin 1.1, 1.4).

Jobs are named, or fit a filter, never both. Whatever acts on many asks `meant` first, so nothing else in the request
decides between the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django_ojs.errors import InvalidRequest
from django_ojs.http import fields
from django_ojs.http.auditing import MAX_REASON


@dataclasses.dataclass(frozen=True, slots=True)
class Meant:
    """Exactly one of the two is there.

    Attributes:
        ids: what stands in `job_ids`, as it was sent.
        filter: what stands in `filter`, an object; None where ids are named.
    """

    ids: Any = None
    filter: dict[str, Any] | None = None


def meant(body: Mapping[str, Any], *, all_if_silent: bool = False) -> Meant:
    """Read `job_ids` and `filter`, of which null is as good as absent.

    Args:
        all_if_silent: a body with neither means an empty filter.

    Raises `InvalidRequest` where both are there, or neither, or the filter is no object.
    """
    ids, wanted = body.get("job_ids"), body.get("filter")
    if (ids is None) == (wanted is None) and not (all_if_silent and ids is None):
        raise InvalidRequest("Name the jobs either by job_ids or by filter.", details={"field": "job_ids"})
    if ids is not None:
        return Meant(ids=ids)
    return Meant(filter=fields.member(dict(body), "filter") or {})


def known(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """The body; refused if it has other members than these: one that is misplaced would widen what is deleted."""
    return fields.only(body, *names, "confirm", "dry_run")


def confirm(body: dict[str, Any]) -> None:
    """Raise InvalidRequest unless the body says `"confirm": true` (admin 1.1)."""
    if body.get("confirm") is not True:
        raise InvalidRequest(
            "This cannot be undone: it needs confirm.",
            details={"field": "confirm", "expected": "true"},
            hint='Send "confirm": true, or "dry_run": true to count what it would concern.',
        )


def said(body: dict[str, Any]) -> dict[str, Any]:
    """Why, for the audit log: at most 1000 characters, as a single cancel takes them."""
    reason = fields.text(body, "reason", maximum=MAX_REASON)
    return {"reason": reason} if reason else {}
