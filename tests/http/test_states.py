"""The states that a query or a body names are read before anything is done with them, at every door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.conftest import Api, error_of

LISTS = ("/jobs", "/admin/jobs", "/dead-letter", "/admin/dead-letter")


@pytest.mark.parametrize("path", LISTS)
def test_an_empty_state_asks_for_nothing(api: Api, path: str) -> None:
    api.dead_letter()
    whole = api.get(path).json()
    for query in (
        "state=",
        "state=&sort=finished_at",
        "state=&type=a.b",
        "state=&queue=default",
        "queue=&type=&state=",
    ):
        assert api.client.get(f"/ojs/v1{path}?{query}").status_code == 200, query
    assert api.client.get(f"/ojs/v1{path}?state=").json()["pagination"] == whole["pagination"]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("state", [",", "AAA", "available,", "available,AAA", " ", "%00", "%FF", "1", "[]", "x" * 3000])
def test_what_is_no_state_is_refused_by_a_list(api: Api, path: str, state: str) -> None:
    for more in ("", "&sort=finished_at", "&type=a.b", "&queue=default"):
        error = error_of(api.client.get(f"/ojs/v1{path}?state={state}{more}"), 400, "invalid_request")
        assert error["details"]["field"] == "state"


NO_STATES: list[Any] = ["AAA", "", ",", [], [1], [None], [[]], [{}], ["AAA"], ["completed", 1], {}, {"completed": 1}, 1,
                        1e3, True, None, "\0", "active", ["available"], ["\ud800"]]  # fmt: skip


@pytest.mark.parametrize("states", NO_STATES, ids=repr)
def test_what_is_no_ended_state_is_refused_by_a_purge(api: Api, states: Any) -> None:
    job = api.push()
    body = {"states": states, "confirm": True}
    error = error_of(api.post("/queues/default/purge", body), 400, "invalid_request")
    assert error["details"]["field"] == "states"
    response = api.client.delete(
        "/ojs/v1/admin/queues/default/jobs", json.dumps(body), content_type="application/json"
    )  # fmt: skip
    assert error_of(response, 400, "invalid_request")["details"]["field"] == "states"
    assert api.get(f"/jobs/{job['id']}").status_code == 200


@pytest.mark.parametrize("states", ["AAA", "", ",", "%00", "completed,AAA", "%FF", "active"])
def test_the_same_in_the_query_of_a_purge(api: Api, states: str) -> None:
    response = api.client.delete(f"/ojs/v1/admin/queues/default/jobs?states={states}&confirm=true")
    assert error_of(response, 400, "invalid_request")["details"]["field"] == "states"


@pytest.mark.parametrize("door", ["/jobs/bulk/cancel", "/admin/jobs/bulk/cancel", "/admin/dead-letter/retry"])
@pytest.mark.parametrize("state", ["AAA", [1], [[]], ["AAA"], {}, 1, "\0", ["available", None]], ids=repr)
def test_the_same_in_the_filter_of_a_bulk_action(api: Api, door: str, state: Any) -> None:
    error = error_of(api.post(door, {"filter": {"state": state}, "dry_run": False}), 400, "invalid_request")
    assert error["details"]["field"] == "filter.state"
