"""Lists filtered by what no index finds: pages that stop on the way, and cursors that lose or repeat a job."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.rules.ids import first_at
from tests.conftest import FrozenClock
from tests.http.conftest import Api, error_of

pytestmark = [pytest.mark.django_db]

LISTS = ("/admin/jobs", "/admin/dead-letter", "/dead-letter")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Slices of two jobs, requests of four; no list is short enough to be read all."""
    for module in ("joblists", "deadletter"):
        monkeypatch.setattr(f"django_ojs.http.{module}.FEW", 0)
    monkeypatch.setattr("django_ojs.http.joblists.DEEPER", 1)
    monkeypatch.setattr("django_ojs.jobs.search.FIRST", 2)
    settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 4, "SEARCH_SECONDS": 60}


def every(api: Api, path: str, query: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """The ids of all pages of a list, by cursor, and what each said about itself."""
    seen, told = [], []
    cursor = ""
    for _ in range(60):
        body = api.get(path, {**query, **({"cursor": cursor} if cursor else {})}).json()
        seen += [job["id"] for job in body.get("items", body.get("jobs"))]
        told.append(body["pagination"])
        cursor = body["pagination"].get("next_cursor", "")
        assert bool(cursor) == body["pagination"]["has_more"]
        if not cursor:
            return seen, told
    raise AssertionError("the list has no end")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_whoever_follows_the_cursor_sees_each_job_once(api: Api, frozen_clock: Any, path: str, limit: int) -> None:
    wanted = []
    for number in range(19):
        # Several end at the same instant.
        rare = number in (0, 1, 9, 10, 11, 18)
        job = api.dead_letter(job_type="rare.type" if rare else "common.type")
        wanted += [job["id"]] if rare else []
        if number % 3 == 0:
            frozen_clock.advance(seconds=1)
    seen, told = every(api, path, {"type": "rare.type", "limit": limit})
    assert sorted(seen) == sorted(wanted)
    assert len(seen) == len(set(seen))
    if path == "/admin/jobs":
        assert seen == wanted[::-1]
    assert told[-1]["total"] == 6
    assert all(page["total"] <= 6 for page in told)
    assert any(page.get("searched") for page in told), "no page ended on the way"
    assert "searched" not in told[-1]
    # By number, as far as the page can be found.
    body = api.get(path, {"type": "rare.type", "limit": 1, "page": 6}).json()
    assert [job["id"] for job in body.get("items", body.get("jobs"))] == [seen[5]]


@pytest.mark.usefixtures("small")
def test_an_empty_page_says_how_far_it_looked(api: Api) -> None:
    for _ in range(7):
        api.push()
    page = api.get("/admin/jobs", {"type": "no.such"}).json()
    assert page["items"] == []
    assert (page["pagination"]["total"], page["pagination"]["total_is_minimum"]) == (0, True)
    assert page["pagination"]["searched"]["jobs"] == 4
    assert dt.datetime.fromisoformat(page["pagination"]["searched"]["up_to"]) <= clock.now()
    seen, told = every(api, "/admin/jobs", {"type": "no.such"})
    assert seen == []
    assert told[-1]["has_more"] is False
    assert "total_is_minimum" not in told[-1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_search_fits_all_of_its_filters_in_both_directions(api: Api, order: str) -> None:
    jobs = [api.push(job_type=f"kind.k{number % 3}", queue="ab"[number % 2]) for number in range(24)]
    wanted = [job["id"] for number, job in enumerate(jobs) if number % 3 == 1 and number % 2 == 0]
    query = {"type": "kind.k1", "queue": "a", "state": "available,active", "order": order, "limit": 3}
    seen, _ = every(api, "/admin/jobs", query)
    assert seen == (wanted if order == "asc" else wanted[::-1])


@pytest.mark.usefixtures("small")
def test_an_error_type_is_searched_for(api: Api) -> None:
    api.push(queue="other")
    letter = api.dead_letter()
    api.push(queue="other")
    error = api.get(f"/admin/jobs/{letter['id']}").json()["errors"][-1]["type"]
    assert every(api, "/admin/jobs", {"error_type": error})[0] == [letter["id"]]
    assert every(api, "/admin/jobs", {"error_type": error, "sort": "finished_at", "state": "discarded"})[0] == [
        letter["id"]
    ]


@pytest.mark.usefixtures("small")
def test_a_limited_key_finds_nothing_else(with_key: Any) -> None:
    boss = with_key("admin")
    for number in range(9):
        boss.push(job_type="mine.a" if number % 4 == 0 else "other.b")
    assert len(every(with_key("admin", job_types=["mine.*"]), "/admin/jobs", {})[0]) == 3


def test_an_index_of_the_sites_own_ends_the_walk(api: Api, small: None, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "INDEXED_FILTERS": ["type"]}
    wanted = api.push(job_type="rare.type")["id"]
    for _ in range(9):
        api.push()
    body = api.get("/admin/jobs", {"type": "rare.type"}).json()
    assert [job["id"] for job in body["items"]] == [wanted]
    assert body["pagination"]["total"] == 1


def test_times_are_looked_up_by_the_ids(api: Api, frozen_clock: FrozenClock) -> None:
    def made(second: int) -> str:  # with an id of the caller's: that of the server may be older by a millisecond
        at = dt.datetime(2026, 1, 15, 12, 0, second, tzinfo=dt.UTC)
        frozen_clock.move_to(at)
        return str(api.push(id=str(uuid.UUID(int=first_at(at).int | 7 << 76 | 2 << 62)))["id"])

    first, second, _third = (made(second) for second in range(3))
    with CaptureQueriesContext(connection) as queries:
        limits = {"since": "2026-01-15T12:00:01Z", "until": "2026-01-15T12:00:02Z"}
        found = api.get("/admin/jobs", limits).json()
    assert [job["id"] for job in found["items"]] == [second]
    list_query = next(query["sql"] for query in queries if "ORDER BY" in query["sql"] and "LIMIT 21" in query["sql"])
    assert '."id" >=' in list_query.replace("`", '"')
    assert '."id" <' in list_query.replace("`", '"')
    found = api.get("/admin/jobs", {"until": "2026-01-15T12:00:01Z"}).json()
    assert [job["id"] for job in found["items"]] == [first]
    error_of(api.get("/admin/jobs", {"since": "soon"}), 400, "invalid_request")


def test_dead_letters_are_not_counted_by_a_scan(api: Api) -> None:
    letters = [api.dead_letter(queue=queue)["id"] for queue in ("a", "a", "b")]
    with CaptureQueriesContext(connection) as queries:
        body = api.get("/dead-letter").json()
    assert body["pagination"]["total"] == 3
    assert {job["id"] for job in body["jobs"]} == set(letters)
    assert not [query for query in queries if "COUNT(" in query["sql"].upper()]
    assert api.get("/dead-letter", {"queue": "a"}).json()["pagination"]["total"] == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_an_order_that_no_index_has_holds_within_stretches(api: Api, order: str, limit: int) -> None:
    made = [api.push(priority=(7 * number) % 5)["id"] for number in range(10)]
    priorities = {job_id: (7 * number) % 5 for number, job_id in enumerate(made)}
    seen, told = every(api, "/admin/jobs", {"sort": "priority", "order": order, "limit": limit})
    assert sorted(seen) == sorted(made)
    newest = made[::-1]
    for stretch in (newest[:4], newest[4:8], newest[8:]):
        begin = newest.index(stretch[0])
        found = seen[begin : begin + 4]
        assert set(found) == set(stretch)
        assert found == sorted(stretch, key=lambda job_id: (priorities[job_id], job_id), reverse=order == "desc")
    assert sum("searched" in one for one in told) == 2
    assert {one["total"] for one in told} == {10}


@pytest.mark.usefixtures("small")
def test_a_page_behind_the_first_stretch_is_refused_and_never_an_early_end(api: Api) -> None:
    for number in range(6):
        api.push(priority=number, queue="mine" if number > 3 else "other")
    assert len(api.get("/admin/jobs", {"sort": "priority", "offset": 3}).json()["items"]) == 1
    for query in ({"offset": 4}, {"page": 3, "limit": 2}, {"offset": 2, "queue": "mine"}):
        answer = api.get("/admin/jobs", {"sort": "priority", **query})
        assert answer.status_code == 400
        assert "next_cursor" in answer.json()["error"]["message"]
    last = {"sort": "scheduled_at", "offset": 9, "state": "scheduled"}
    assert api.get("/admin/jobs", last).json()["pagination"]["has_more"] is False


@pytest.mark.usefixtures("small")
def test_jobs_that_come_while_a_stretch_is_read_move_none_of_it(api: Api) -> None:
    made = {api.push(priority=number % 3)["id"] for number in range(8)}
    seen, cursor = [], ""
    while True:
        query = {"sort": "priority", "limit": 2, **({"cursor": cursor} if cursor else {})}
        body = api.get("/admin/jobs", query).json()
        seen += [job["id"] for job in body["items"]]
        if not (cursor := body["pagination"].get("next_cursor", "")):
            break
        api.push(priority=-100)
    assert sorted(job_id for job_id in seen if job_id in made) == sorted(made)


@pytest.mark.usefixtures("small")
def test_jobs_of_a_queue_are_searched_for_and_counted_exactly(api: Api) -> None:
    mine = [api.push(queue="mine")["id"] for _ in range(2)]
    for _ in range(9):
        api.push()
    seen, told = every(api, "/admin/jobs", {"queue": "mine"})
    assert seen == mine[::-1]
    assert {one["total"] for one in told} == {2}
    assert "total_is_minimum" not in told[0]
    assert len(told) == 3, "eleven jobs, four at a time, and the last has been found in the third"
    assert every(api, "/admin/jobs", {"queue": "mine", "state": "available"})[0] == seen


def test_few_ended_jobs_of_a_queue_are_not_looked_for_among_all(api: Api, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_ojs.http.joblists.FEW", 3)
    mine = api.dead_letter(queue="mine")["id"]
    for _ in range(9):
        api.dead_letter()
    seen, told = every(api, "/admin/jobs", {"queue": "mine", "state": "discarded"})
    assert seen == [mine]
    assert [one["total"] for one in told] == [1, 1, 1]
    assert told[0]["searched"]["jobs"] == 4
