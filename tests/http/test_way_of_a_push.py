"""How far it is from the view to the statement: what a reader of the code walks who follows a request with one job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

import django_ojs
from django_ojs.http.jobs import JobViewSet
from tests.http.conftest import Api

PACKAGE = str(Path(django_ojs.__file__).parent)
#: Functions of ours that are open between the view and a statement: who reads on needs to remember no more.
MOST = 8

pytestmark = pytest.mark.django_db(transaction=True)


def way() -> list[str]:
    """The functions of the package that have been called since the view and have not returned, the first one first."""
    found: list[str] = []
    frame = sys._getframe()
    while frame.f_code is not JobViewSet.create.__code__:
        assert frame.f_back is not None, "no push asks the database here"
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}: {frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


def ways_of(api: Api, **options: Any) -> dict[str, list[str]]:
    """The way to each statement of a push, when the process and the connection have seen some."""
    ways: dict[str, list[str]] = {}

    def note(execute: Any, sql: str, *args: Any) -> Any:
        ways[sql] = way()
        return execute(sql, *args)

    for n in range(9):
        api.push(args=[n], **options)
    with connection.execute_wrapper(note):
        api.push(args=["noted"], **options)
    return ways


def test_a_plain_push_is_at_most_eight_functions_away_from_its_statements(api: Api) -> None:
    ways = ways_of(api)
    inserts = [found for sql, found in ways.items() if "INSERT INTO" in sql]
    assert inserts
    for found in inserts:
        assert found[:6] == [
            "jobs/push_group.py: push_one",
            "groupcommit.py: call",
            "groupcommit.py: _by_itself",
            "jobs/push_group.py: _store",
            "jobs/newrows.py: store_plain",
            "jobs/newrows.py: insert",
        ]
        assert found[6].startswith("store/")
    assert max(map(len, ways.values())) <= MOST, ways
