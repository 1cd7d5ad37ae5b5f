"""Polling's other dialects: pages from the end for a dashboard, the history of a job, and an open transaction."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.events import log, order
from django_ojs.events.filters import MAX_SOURCES
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job
from django_ojs.rules.ids import new_job_id
from django_ojs.workflows import workflow
from tests.http.conftest import Api, error_of, with_key  # noqa: F401 - fixture
from tests.operations.test_event_order import OpenTransaction


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


@pytest.fixture
def api(db: None) -> Api:
    return Api()


def enqueue(*names: str, **more: Any) -> list[Any]:
    return [push([{"type": name, "args": [], **more}])[0].row for name in names]


def types(body: Any) -> list[str]:
    return [event["data"]["job_type"] for event in body["events"]]


@pytest.mark.django_db
class TestPages:
    def test_newest_first_with_a_total(self, api: Api) -> None:
        enqueue(*(f"a.n{i}" for i in range(7)))
        first = api.get("/events", {"page": 1, "per_page": 3}).json()
        assert types(first) == ["a.n6", "a.n5", "a.n4"]
        assert first["items"] == first["events"]
        assert first["pagination"] == {
            "total": 7, "page": 1, "per_page": 3, "limit": 3, "has_more": True, "next_cursor": "page_2_3"
        }  # fmt: skip
        last = api.get("/events", {"page": 3, "per_page": 3}).json()
        assert (types(last), last["has_more"]) == (["a.n0"], False)
        beyond = api.get("/events", {"page": 9, "per_page": 3}).json()
        assert (beyond["events"], beyond["cursor"], beyond["pagination"]["total"]) == ([], None, 7)
        assert types(api.get("/events", {"per_page": 2}).json()) == ["a.n6", "a.n5"]
        assert api.get("/events", {"page": 1}).json()["pagination"]["per_page"] == 50
        assert api.get("/events", {"per_page": 1000}).json()["pagination"]["per_page"] == 100

    def test_who_follows_from_a_page_misses_nothing(self, api: Api) -> None:
        enqueue("a.one", "a.two")
        cursor = api.get("/events", {"page": 1}).json()["cursor"]
        enqueue("a.three")
        assert types(api.get("/events", {"after": cursor}).json()) == ["a.three"]

    def test_a_cursor_beats_a_page(self, api: Api) -> None:
        enqueue("a.one", "a.two")
        cursor = api.get("/events", {"limit": 1}).json()["cursor"]
        assert types(api.get("/events", {"after": cursor, "page": 1, "per_page": 50}).json()) == ["a.two"]

    def test_a_page_names_the_next_one_by_a_cursor(self, api: Api) -> None:
        enqueue("a.one", "a.two", "a.three")
        query = {"page": 1, "per_page": 2}
        cursor = api.get("/events", query).json()["pagination"]["next_cursor"]
        for asked in ({"cursor": cursor}, {**query, "cursor": cursor}):
            body = api.get("/events", asked).json()
            assert (types(body), body["pagination"]["page"]) == (["a.one"], 2)
            assert "next_cursor" not in body["pagination"]

    def test_filters_come_before_the_page(self, api: Api) -> None:
        enqueue("a.mail", queue="mail")
        enqueue("a.other")
        body = api.get("/events", {"page": 1, "queues": "mail", "type": "job.*"}).json()
        assert (types(body), body["pagination"]["total"]) == (["a.mail"], 1)

    def test_those_of_a_workflow_also_by_the_id_that_its_client_gave_it(self, api: Api) -> None:
        enqueue("a.other")
        flow = workflow.create({"id": "Order:17", "type": "chain", "steps": [{"type": "a.b", "args": []}]}).workflow
        for asked in ("Order:17", str(flow.pk)):
            for query in ({}, {"page": 1}):
                found = api.get("/events", {"workflow_id": asked, **query}).json()["events"]
                assert [event["data"]["workflow_id"] for event in found] == ["Order:17"]
            found = api.get("/history", {"workflow_id": asked}).json()["events"]
            assert [event["data"]["workflow_id"] for event in found] == ["Order:17"]
        for unknown in ("order:17", "a b", str(new_job_id())):  # as it is with the id of a job
            for path, query in (("/events", {}), ("/events", {"page": 1}), ("/history", {})):
                assert api.get(path, {"workflow_id": unknown, **query}).json()["events"] == []
        error_of(api.get("/events", {"workflow_id": "\0"}), 400, "invalid_request")

    @pytest.mark.parametrize("query", [{"page": 0}, {"page": "x"}, {"per_page": 0}, {"per_page": -1}])
    def test_nonsense_is_refused(self, api: Api, query: Any) -> None:
        error_of(api.get("/events", query), 400, "invalid_request")

    def test_the_cost_does_not_grow_with_the_log(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log, "WINDOW", 5)
        (row, *_) = enqueue(*(f"a.n{i}" for i in range(8)))
        body = api.get("/events", {"page": 1, "per_page": 2}).json()
        total = body["pagination"]["total"]  # MariaDB leaves ids out, so that the window holds fewer
        assert total == 5 if connection.vendor != "mysql" else 1 <= total <= 5
        assert types(body) == ["a.n7", "a.n6"][:total]
        last = api.get("/events", {"page": total, "per_page": 1}).json()
        assert (types(last), last["has_more"]) == ([f"a.n{8 - total}"], False)
        assert types(api.get("/events", {"page": 1, "job_id": str(row["id"])}).json()) == ["a.n0"], "an index has it"
        with CaptureQueriesContext(connection) as few:
            api.get("/events", {"page": 1})
        enqueue(*(f"a.m{i}" for i in range(20)))
        api.get("/events", {"page": 1})  # puts them in order, where that takes a statement
        with CaptureQueriesContext(connection) as many:
            api.get("/events", {"page": 1})
        assert len(many) == len(few)

    def test_the_words_of_other_doors_count_or_are_refused(self, api: Api) -> None:
        """Passed over, each would let out the events of all."""
        (row,) = enqueue("a.mail", queue="mail")
        enqueue("a.other")
        for word in ("types", "type", "event_types"):
            for path in ("/events", "/history", f"/jobs/{row['id']}/history", f"/events/{row['id']}/history"):
                assert api.get(path, {word: "job.failed"}).json()["events"] == []
            assert api.get("/history/stats", {word: "job.failed"}).json()["buckets"] == []
        for path, *words in (
            ("/events", "job_type", "job_ids", "workflow_ids", "source", "filter", "channel", "start", "end"),
            ("/history", "since", "until", "after", "job_ids", "channel"),
            ("/history/stats", "since", "until", "job_ids"),
            (f"/jobs/{row['id']}/history", "queues", "queue", "job_types", "sources", "workflow_id", "start"),
            (f"/events/{row['id']}/history", "queues", "job_types", "channel"),
        ):
            for word in words:
                error = error_of(api.get(path, {word: "x"}), 400, "invalid_request")
                assert error["details"]["field"] == word
                assert api.get(path, {word: ""}).status_code == 200
            assert api.get(path, {"_": "1", "access": "x"}).status_code == 200, "it says nothing of events"

    def test_an_empty_word_does_not_hide_the_other(self, api: Api) -> None:
        enqueue("a.one", "a.two")
        cursor = api.get("/events", {"limit": 1}).json()["cursor"]
        for empty, word in (("cursor", "after"), ("after", "cursor"), ("after", "last_event_id")):
            assert types(api.get(f"/events?{empty}=&{word}={cursor}").json()) == ["a.two"]
        assert api.get("/events?types=&type=job.failed").json()["events"] == []
        assert types(api.get("/events?queues=&queue=default&job_types=a.two").json()) == ["a.two"]

    @pytest.mark.parametrize("path", ["/events", "/history", "/history/stats"])
    def test_a_filter_has_as_many_sources_as_a_statement(self, api: Api, path: str) -> None:
        sources = [f"ojs://django-ojs/workers/w{n}" for n in range(1000)]
        assert api.get(path, {"sources": ",".join(sources[:MAX_SOURCES])}).status_code == 200
        for count in (MAX_SOURCES + 1, 1000):
            error_of(api.get(path, {"sources": ",".join(sources[:count])}), 400, "invalid_request")

    def test_a_change_of_state_comes_only_to_who_names_it_and_no_other_event_for_it(self, api: Api) -> None:
        enqueue("a.b")
        for query in ("", "types=job.*", "page=1"):
            assert [event["type"] for event in api.get(f"/events?{query}").json()["events"]] == ["job.enqueued"]
        for query in ("types=job.state_changed", "types=job.state_changed&page=1"):
            (changed,) = api.get(f"/events?{query}").json()["events"]
            assert (changed["type"], changed["data"]["from"], changed["data"]["to"]) == (
                "job.state_changed", "", "available"
            )  # fmt: skip

    def test_a_limited_key_counts_what_it_sees(self, with_key: Any) -> None:  # noqa: F811
        enqueue("mail.send", "mail.read", queue="mail")
        enqueue("mail.send", queue="other")
        body = with_key("read", queues=["mail"], job_types=["mail.send"]).get("/events", {"page": 1}).json()
        assert (types(body), body["pagination"]["total"]) == (["mail.send"], 1)


@pytest.mark.django_db
class TestHistory:
    @pytest.mark.parametrize("path", ["/jobs/{}/history", "/events/{}/history"])
    def test_what_happened_to_a_job_oldest_first(self, api: Api, path: str) -> None:
        (row,) = enqueue("mail.send")
        enqueue("other.job")
        fetch(Fetch(["default"], worker_id="w1"))
        ack_one(Ack(row["id"]))
        body = api.get(path.format(row["id"])).json()
        assert [event["type"] for event in body["events"]] == ["job.enqueued", "job.started", "job.completed"]
        assert body["history"] == body["items"] == body["events"]
        assert (body["job_id"], body["state"], body["attempt"]) == (str(row["id"]), "completed", 1)
        page = api.get(path.format(row["id"]), {"limit": 1}).json()
        assert (len(page["events"]), page["has_more"]) == (1, True)
        rest = api.get(path.format(row["id"]), {"after": page["cursor"]}).json()
        assert [event["type"] for event in rest["events"]] == ["job.started", "job.completed"]

    def test_it_outlives_the_job_and_ends_with_its_events(self, api: Api) -> None:
        (row,) = enqueue("mail.send")
        Job.objects.filter(pk=row["id"]).delete()
        body = api.get(f"/jobs/{row['id']}/history").json()
        assert [event["type"] for event in body["events"]] == ["job.enqueued"]
        assert "state" not in body
        Event.objects.all().delete()
        error_of(api.get(f"/jobs/{row['id']}/history"), 404, "not_found")
        error_of(api.get("/jobs/nonsense/history"), 404, "not_found")

    def test_limits_of_keys(self, with_key: Any) -> None:  # noqa: F811
        (row,) = enqueue("mail.send")
        limited, allowed = with_key("read", queues=["other"]), with_key("read", queues=["default"])
        paths = [f"/jobs/{row['id']}/history", f"/events/{row['id']}/history"]
        for path in paths:
            error_of(limited.get(path), 403, "permission_denied")
        Job.objects.filter(pk=row["id"]).delete()
        for path in paths:  # nothing tells that it ever was
            error_of(limited.get(path), 404, "not_found")
            for query in ({}, {"types": "job.failed"}):
                assert len(allowed.get(path, query).json()["events"]) == (not query)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
@pytest.mark.parametrize("query", [{}, {"page": 1}])
def test_an_open_transaction_delays_no_other_event_and_its_own_is_not_missed(query: Any) -> None:
    """It may stay open for as long as it likes: nothing here waits for it."""
    api = Api()
    enqueue("a.first")
    slow = OpenTransaction("a.slow")
    seen = set()
    cursor = api.get("/events").json()["cursor"]
    for number in range(20):
        enqueue(f"a.quick{number}")
        body = api.get("/events", {"after": cursor}).json()
        assert types(body) == [f"a.quick{number}"], "at once, each time"
        cursor = body["cursor"]
        seen.update(types(api.get("/events", query).json()))
    assert "a.slow" not in seen
    slow.commit()
    assert types(api.get("/events", {"after": cursor}).json()) == ["a.slow"]
    assert "a.slow" in types(api.get("/events", query).json())


def followed(api: Api, cursor: str | None = None, **query: Any) -> tuple[list[str], str | None, int]:
    """All that a follower gets until there is no more for now: the types, where he is then, and the polls it took."""
    found: list[str] = []
    for polls in range(1, 1000):
        body = api.get("/events", {**query, **({"after": cursor} if cursor else {})}).json()
        found += types(body)
        if not body["has_more"]:
            return found, body["cursor"], polls
        assert body["cursor"] != cursor, "a poll that moves nowhere"
        cursor = body["cursor"]
    raise AssertionError("it never ended")


class TestAFilterThatFindsLittle:
    """It is looked for in one stretch of the log at a time, and the cursor moves on."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log, "STRETCH", 10)

    @pytest.mark.parametrize(
        "query", [{"types": "job.cancelled"}, {"queues": "nowhere"}, {"until": "2001-01-01T00:00:00Z"}]
    )
    def test_a_follower_who_finds_nothing_is_near_the_end_soon(self, api: Api, query: dict[str, str]) -> None:
        enqueue(*["a.b"] * 95)
        found, cursor, polls = followed(api, **query)
        assert (found, polls) == ([], 10)
        assert followed(api, cursor, **query) == ([], cursor, 1)
        place = log.start(cursor, "default")[0]
        assert order.behind("default", place).count() <= 10

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_nothing_is_missed_and_nothing_comes_twice(self, api: Api, limit: int) -> None:
        names = [f"a.b{number}" for number in range(60)]
        for number, name in enumerate(names):
            enqueue(name, queue="rare" if number % 7 == 0 else "common")
        found, cursor, _ = followed(api, queues="rare", limit=limit)
        assert found == names[::7]
        enqueue("a.new", queue="rare")
        assert followed(api, cursor, queues="rare", limit=limit)[0] == ["a.new"]

    def test_without_a_filter_and_for_a_job_the_whole_log_is_read(self, api: Api) -> None:
        rows = enqueue(*["a.b"] * 50)
        assert len(followed(api, limit=1000)[0]) == 50
        assert followed(api, job_id=str(rows[-1]["id"])) == (["a.b"], followed(api)[1], 1)

    def test_a_log_whose_beginning_was_pruned(self, api: Api) -> None:
        enqueue(*["a.b"] * 60)
        ids = list(Event.objects.order_by("id").values_list("id", flat=True))
        Event.objects.filter(pk__lte=ids[29]).delete()
        assert followed(api, queues="nowhere")[2] == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
def test_a_filter_misses_no_event_of_a_transaction_that_commits_behind_the_stretch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "STRETCH", 5)
    api = Api()
    enqueue("a.first")
    slow = OpenTransaction("a.slow")
    enqueue(*["a.b"] * 12)
    found, cursor, _ = followed(api, job_types="a.slow")
    assert found == []
    enqueue(*["a.b"] * 12)
    slow.commit()
    enqueue(*["a.b"] * 12)
    assert followed(api, cursor, job_types="a.slow")[0] == ["a.slow"]
