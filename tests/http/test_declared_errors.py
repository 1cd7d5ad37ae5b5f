"""Each error that the OpenAPI document declares of an operation can happen; `described_answers` sees to the other way
round, that each that happens is declared.

Credentials (401, 403) have their tests in `test_openapi` and `tests/rights`; conflicts and refusals of the kinds below
`OF_STORIES` have theirs beside what refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from tests.http.conftest import Api, undone
from tests.http.described import described
from tests.http.test_openapi import NEEDED_QUERIES, OPERATIONS, STREAMS, body_of, url_of

pytest.importorskip("drf_spectacular")
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.usefixtures("echoed", "frozen_clock"),
]

#: 401 and 403 depend on the caller, the others on what is there.
OF_STORIES = {401, 403, 406, 408, 409, 410, 429, 501}
#: What a query or a body names may be missing, too, and a probe asks its database in a way of its own.
ELSEWHERE = re.compile("[^}]* 404|put .*/rate-limits/{key} 404|get /ojs/v1/health 503")
_ALIASES = re.compile("/crons|/ojs/v1/ojs/v1/|/workers/(beat|fail|register)$|/jobs/fetch$|/fail$")


def away(execute: Any, sql: str, *given: Any) -> Any:
    """A database that is lost in the middle of a call; what this test does with savepoints goes on."""
    if "SAVEPOINT" in sql:
        return execute(sql, *given)
    raise OperationalError("server closed the connection unexpectedly")


def provoked(api: Api, path: str, method: str, operation: Any) -> Iterator[int]:
    """The statuses that what a client may do wrong leads to, and a database that is away."""
    good, body = url_of(api, path, method), json.dumps(body_of(path, method, api) or {}).encode()
    query, takes = NEEDED_QUERIES.get((path, method), ""), "requestBody" in operation
    kind = "application/json" if takes else ""

    def call(url: str, sent: bytes = body, **more: Any) -> int:
        with undone():
            answer = api.client.generic(method.upper(), url, sent if takes else b"", content_type=kind, **more)
        return int(answer.status_code)

    yield call(good + query, headers={"OJS-Version": "9"})
    with connection.execute_wrapper(away):
        yield call(good + query, headers={"Authorization": "Bearer ojs_" + "0" * 64})
    for unknown in ("nothing-here", "%00"):
        yield call(re.sub(r"{\w+}", unknown, path) + query)
    if takes:
        yield call(good, b"[")
        yield call(good, headers={"Content-Encoding": "br"})
        yield call(good, CONTENT_LENGTH="999999999")
    for parameter in operation["parameters"]:
        if parameter["in"] == "query":
            yield call(f"{good}?{parameter['name']}=%01x")


def test_each_declared_error_can_happen(api: Api) -> None:
    missing, undeclared = [], []
    for path, method in OPERATIONS:
        if _ALIASES.search(path) or path in STREAMS:
            continue
        operation = described().document["paths"][path][method]
        with undone():
            found = set(provoked(api, path, method, operation))
        declared = {int(status) for status in operation["responses"] if status.isdigit() and status >= "400"}
        left = [f"{method} {path} {status}" for status in sorted(declared - found - OF_STORIES)]
        missing += [one for one in left if not ELSEWHERE.fullmatch(one)]
        undeclared += [f"{method} {path} {status}" for status in sorted(found - declared) if status >= 400]
    assert missing == [], "\n".join(missing)
    assert undeclared == [], "\n".join(undeclared)
