"""What every answer must be, whatever was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.hostile.calls import Call, Known

#: All that a client may be told. No 5xx is among them: no request, however bad, is our fault or the store's.
STATUSES = frozenset({200, 201, 202, 204, 207, 400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429})
MEDIA_TYPES = frozenset(
    {
        "application/json",
        "application/openjobspec+json",
        'application/openjobspec+json; alias="application/json"',
    }
)
#: An answer that does not end, and is not read.
STREAM = "text/event-stream"


class Answer(NamedTuple):
    """`headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


#: A search in the texts of histories, which the specification has answered so where it is not offered.
_SEARCH = re.compile(r"/history\?(.*&)?query=")
#: A worker that takes no more jobs answers 503, and that is no fault of the server.
_HEALTH = re.compile(r"/workers/[^/?]+/health")


def check(call: Call, answer: Answer) -> Any:
    """The JSON of the answer, None without a body; AssertionError when it is not as the binding wants it."""
    try:
        return _check(call, answer)
    except (AssertionError, KeyError, ValueError) as error:
        shown = f"{answer.status} {dict(answer.headers)} {answer.body[:1000]!r}"
        raise AssertionError(f"{error!r}\n{call}\n-> {shown}") from error


def _check(call: Call, answer: Answer) -> Any:
    headers = answer.headers
    unwell = answer.status == 503 and _HEALTH.search(call.target) is not None
    unsearched = answer.status == 501 and _SEARCH.search(call.target) is not None
    assert unwell or unsearched or answer.status in STATUSES
    assert headers["ojs-version"] == "1.0"
    assert headers["x-request-id"]
    if answer.status == 204:
        assert not answer.body
        return None
    if headers["content-type"] == STREAM and call.method in ("GET", "HEAD"):
        assert answer.status == 200
        assert headers["cache-control"] == "no-cache" or call.method == "HEAD"
        return None
    if call.method == "HEAD":
        assert headers["content-type"] in MEDIA_TYPES
        assert not answer.body
        return None
    assert headers["content-type"] in MEDIA_TYPES
    assert headers["content-length"] == str(len(answer.body))
    value = json.loads(answer.body, parse_constant=_no_json)
    assert isinstance(value, dict)
    if unwell:
        assert value["state"] != "running" or value["status"] == "stale"
    elif answer.status == 422 and "items" in value:  # a bulk call, of which nothing succeeded
        assert all(item["error"]["code"] for item in value["items"])
    elif answer.status >= 400:
        _check_error(value, answer)
    return value


def _check_error(value: dict[str, Any], answer: Answer) -> None:
    assert list(value) == ["error"]
    error = value["error"]
    assert error["request_id"] == answer.headers["x-request-id"]
    for name in ("code", "type", "canonical_code", "message", "hint", "docs_url"):
        assert isinstance(error[name], str), name
        assert error[name], name
    assert isinstance(error["retryable"], bool)
    assert isinstance(error["details"], dict)
    if answer.status == 401:
        assert answer.headers["www-authenticate"]
    if answer.status == 405:
        assert answer.headers["allow"]


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON.")


#: The operator's DELETE of a dead letter, which is answered without a body.
_LETTER = re.compile(r"/admin/dead-letter/([0-9a-f-]{36})")


class Ledger:
    """What the server said it did, to be compared with what it stored."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.deleted: set[str] = set()
        self.unheard = 0
        self.statuses: dict[int, int] = {}

    def note(self, call: Call, answer: Answer, value: Any, known: Known) -> None:
        """Keep the books, and let the client learn."""
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        if (
            answer.status == 204
            and call.method == "DELETE"
            and (letter := _LETTER.search(unquote(call.target).lower()))
        ):
            self.deleted.add(letter[1])
        if not isinstance(value, dict) or answer.status >= 400:
            return
        if answer.status == 201 and "idempotency-replayed" not in answer.headers:
            jobs = [value["job"]] if "job" in value else value.get("jobs", []) if "count" in value else []
            jobs += [value] if "copy_of" in value else []
            fresh = [job["id"] for job in jobs]
            assert self.accepted.isdisjoint(fresh), f"accepted twice: {fresh}"
            self.accepted.update(fresh)
            known.jobs.extend(fresh)
        if answer.status == 200 and "queues" not in value:
            jobs = value["jobs"] if "jobs" in value else [value["job"]] if "job" in value else []
            known.active += [job["id"] for job in jobs if job and job["state"] == "active"]
            known.dead += [job["id"] for job in jobs if job and job["state"] == "discarded"]
        if answer.status == 201 and "workflow" in value:
            known.flows.append(value["workflow"]["id"])
        if value.get("deleted") is True and "dead-letter" in call.target:
            self.deleted.add(value["job_id"])
        cursors = [value.get("cursor"), (value.get("pagination") or {}).get("next_cursor")]
        known.cursors.extend(cursor for cursor in cursors if cursor)
