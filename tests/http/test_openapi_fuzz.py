"""Requests made up from the OpenAPI document, in process: no 500, and no answer that the document does not know."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, given, settings

from django_ojs.http import openapi
from tests.http.test_openapi import OPERATIONS

pytest.importorskip("drf_spectacular")
schemathesis: Any = pytest.importorskip("schemathesis")

#: Requests for each operation: the same ones in every run.
EXAMPLES = 4
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.wide
@pytest.mark.usefixtures("echoed")  # what it sends has members of any name; it compares the answers itself
@pytest.mark.django_db(transaction=True)  # the WSGI application closes its connection after each request
def test_made_up_requests_are_answered_as_documented() -> None:
    from schemathesis import checks

    schema = schemathesis.openapi.from_dict(openapi.document("1", ""))
    schema.app = get_wsgi_application()
    wanted = [checks.CHECKS.get_one(name) for name in CHECKS]
    seen: set[tuple[str, str]] = set()

    def once(case: Any) -> None:
        seen.add((case.operation.path, case.operation.method))
        case.call_and_validate(checks=wanted)

    bounded = settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    for found in schema.get_all_operations():
        bounded(given(case=found.ok().as_strategy())(once))()
    assert seen == set(OPERATIONS)
