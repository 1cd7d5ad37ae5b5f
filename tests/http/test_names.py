"""Members that mean nothing are looked at within a limit, at every path: they cost no more than they are worth."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest

from django_ojs.rules import suggest
from tests.http.conftest import Api

pytestmark = pytest.mark.once
#: Twice as many as may be compared, be there only one name to compare them with.
MANY = 2 * suggest.MAX_COMPARISONS
SLIPS = {f"priorit{number}": 0 for number in range(MANY)}
JOB = {"type": "a.b", "args": []}
#: What is sent where, all of it with many names that mean nothing.
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/jobs", JOB | SLIPS),
    ("/jobs", JOB | {"options": SLIPS}),
    ("/jobs", JOB | {"retry": SLIPS}),
    ("/jobs/batch", {"jobs": [JOB | {f"priorit{n}-{m}": 0 for m in range(40)} for n in range(MANY // 40)]}),
    ("/jobs/bulk", {"jobs": [JOB | {"options": {f"queu{n}-{m}": 0 for m in range(40)}} for n in range(MANY // 40)]}),
    ("/jobs/bulk/cancel", {"filter": SLIPS}),
    ("/workflows", {"steps": [JOB | {f"depends_o{n}-{m}": 0 for m in range(40)} for n in range(MANY // 40)]}),
    ("/workflows", {"steps": [JOB]} | SLIPS),
    ("/cron", {"name": "c", "expression": "@every 1h"} | JOB | SLIPS),
    ("/cron", {"name": "c", "expression": "@every 1h", "job_template": JOB | SLIPS}),
    ("/cron", {"name": "c", "expression": "@every 1h", "timezone": "Europe/Berlim"} | JOB | SLIPS),
    ("/dead-letter/{id}/retry", {f"overrid{number}": 0 for number in range(MANY)}),
    ("/dead-letter/{id}/retry", {"override": SLIPS}),
    ("/admin/dead-letter/retry", {"filter": {}, "confirm": True, "override": SLIPS}),
    ("/admin/jobs/bulk/retry", {"filter": {}, "confirm": True} | SLIPS),
]


@pytest.mark.parametrize("path, body", BODIES, ids=[f"{n}{path}" for n, (path, _) in enumerate(BODIES)])
def test_names_that_mean_nothing_are_compared_within_the_limit(
    api: Api, monkeypatch: Any, path: str, body: dict[str, Any]
) -> None:
    counted = [0]

    class Counting(difflib.SequenceMatcher):  # type: ignore[type-arg]
        def set_seq1(self, a: Any) -> None:
            counted[0] += bool(a)
            super().set_seq1(a)

    job = api.push()
    suggest._known_answers.clear()
    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    response = api.raw(path.format(id=job["id"]), json.dumps(body).encode())
    assert response.status_code < 500
    assert counted[0] <= suggest.MAX_COMPARISONS
    if response.status_code >= 400:
        assert len(response.content) < 5000
