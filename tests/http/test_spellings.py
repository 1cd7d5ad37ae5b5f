"""The other words of clients: at its door each means what the word of the specification means; `rules/` knows none."""

from __future__ import annotations

import ast
import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import RequestFactory
from rest_framework.request import Request

from django_ojs import clock, enqueue, get_job, spellings
from django_ojs.cron import schedules
from django_ojs.envelope import validate
from django_ojs.errors import InvalidPayload, InvalidRequest, InvalidWorkflow
from django_ojs.events.filters import Filter
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import Job, JobSchema, Queue, RateLimit
from django_ojs.queues.configuration import configure, effective
from django_ojs.realtime import messages, views
from django_ojs.rules import attributes, envelope, errorobjects, ratelimit
from django_ojs.rules import cron as cron_rules
from django_ojs.rules.problems import validate_sequence
from django_ojs.spellings import Table
from django_ojs.testing import job_context
from django_ojs.webhooks import subscriptions
from tests.http.conftest import V1, Api, error_of

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]

RULES = Path(spellings.__file__).parent / "rules"


RETRIES = {
    "initial_interval": "PT0.5S", "initial_interval_ms": 500, "initial_delay_ms": 500, "max_interval": "PT9S",
    "max_interval_ms": 9000, "backoff_coefficient": 3, "backoff_multiplier": 3, "backoff_strategy": "linear",
    "backoff_type": "linear", "strategy": "linear", "max_attempts": 7, "maxAttempts": 7, "initialInterval": "PT0.5S",
    "backoffCoefficient": 3, "maxInterval": "PT9S", "non_retryable_errors": ["E"], "nonRetryableErrors": ["E"],
    "on_exhaustion": "discard", "onExhaustion": "discard",
}  # fmt: skip


def in_a_policy(api: Api, name: str) -> Any:
    return as_a_retry_policy(api, {name: RETRIES[name]})


def as_a_backoff_strategy(api: Api, word: str) -> Any:
    found = [as_a_retry_policy(api, {name: word}) for name in spellings.RETRY.names("backoff_strategy")]
    assert all(one == found[0] for one in found)
    return found[0]


def as_a_retry_policy(api: Api, policy: dict[str, Any]) -> Any:
    """The policies that jobs have of it, by every way that leads to one."""
    sent = [
        {"type": "a.b", "args": [], "retry": policy},
        {"type": "a.b", "args": [], "options": {"retry": policy}},
        {"type": "a.b", "args": [], "options": {"retry_policy": policy}},
    ]
    rows = []
    for document in sent * 3:  # the third time from memory
        job = api.post("/jobs", document).json()["job"]
        assert job["retry"] == policy, "an answer echoes what was sent"
        rows.append(job["id"])
    rows += [job["id"] for job in api.post("/jobs/batch", {"jobs": sent}).json()["jobs"]]
    rows += [str(pushed.row["id"]) for pushed in push(sent) if pushed.row]
    rows.append(str(enqueue("a.b", retry=policy).id))
    flow = api.post("/workflows", {"type": "chain", "steps": [sent[0]], "options": {"retry": policy}})
    assert flow.status_code == 201, flow.content
    api.post("/cron", {"name": "s", "cron": "@daily", "type": "a.b", "retry": policy})
    rows.append(api.post("/cron/s/trigger").json()["job_id"])
    configure("mild", {"default_retry": policy})
    rows.append(api.push(queue="mild")["id"])
    stored = {job.retry for job in Job.objects.all()}
    assert Job.objects.count() == len(rows) + 1, "and the step"
    assert len(stored) == 1
    Job.objects.all().delete()
    assert validate(sent[0]) == []
    return stored


OPTIONS = {"retry": {"max_attempts": 2}, "scheduled_at": "2098-01-01T00:00:00Z", "meta": {"a": 1}}


def in_options(api: Api, name: str) -> Any:
    word = spellings.OPTION.words.get(name, name)
    return as_options(api, {name: OPTIONS[word]}, word)


def as_attempts(api: Api, name: str) -> Any:
    return as_options(api, {"max_attempts": 2} if name == "max_attempts" else {"retry": {"max_attempts": 2}}, "retry")


def as_options(api: Api, options: dict[str, Any], word: str) -> Any:
    """What jobs are like that have these options, by every way that leads to one."""
    sent, plain = {"type": "a.b", "args": [], "options": options}, {"type": "a.b", "args": []}
    assert validate(sent) == []
    rows = [api.post("/jobs", sent).json()["job"]["id"] for _ in range(3)]  # the third time from memory
    rows += [job["id"] for job in api.post("/jobs/batch", {"jobs": [sent]}).json()["jobs"]]
    rows += [str(pushed.row["id"]) for pushed in push([sent]) if pushed.row]
    flows = [
        {"type": "group", "jobs": [sent]}, {"type": "group", "jobs": [plain], "options": options},
        {"steps": [{"id": "a", **sent}]}, {"steps": [{"id": "a", **plain}], "options": options},
        {"type": "chain", "steps": [{"type": "group", "jobs": [plain], "options": options}]},
    ]  # fmt: skip
    for flow in flows:
        response = api.post("/workflows", flow)
        assert response.status_code == 201, response.content
        assert "warnings" not in response.json()
    for number, body in enumerate(({"type": "a.b", "options": options}, {"job_template": sent})):
        api.post("/cron", {"name": f"s{number}", "cron": "@daily", **body})
        rows.append(api.post(f"/cron/s{number}/trigger").json()["job_id"])
        assert api.get(f"/cron/s{number}").json()["options"] == options, "an answer echoes what was sent"
    assert Job.objects.count() == len(rows) + len(flows)
    found = [
        (job.retry, str(job.due_at) if word == "scheduled_at" else "", job.extra, job.meta) for job in Job.objects.all()
    ]
    Job.objects.all().delete()
    for *_, meta in found:
        for mark in ("cron_name", "cron_triggered_at"):
            meta.pop(mark, None)
    (one,) = {json.dumps(facts, sort_keys=True) for facts in found}
    return one


UNIQUES = {
    "period": "PT5S", "period_ms": 5000, "period_seconds": 5, "on_conflict": "replace", "conflict_policy": "replace",
}  # fmt: skip


def in_a_unique_policy(api: Api, name: str) -> Any:
    return as_a_unique_policy({name: UNIQUES[name]})


def as_a_strategy(api: Api, word: str) -> Any:
    job = api.push(args=[word], unique={"on_conflict": word})
    assert api.post("/jobs", {"type": "test.echo", "args": [word], "unique": {"on_conflict": word}}).status_code == 200
    assert api.get(f"/jobs/{job['id']}").json()["job"]["unique"] == {"on_conflict": word}
    return as_a_unique_policy({"on_conflict": word}), as_a_unique_policy({"conflict_policy": word})


def as_a_unique_policy(policy: dict[str, Any]) -> Any:
    """What a job's policy means, by every place and from memory; the words of the client are kept."""
    found = set()
    for holder in ({"unique": policy}, {"options": {"unique": policy}}):
        document = {"type": "a.b", "args": [1], **holder}
        assert validate(document) == []
        for _ in range(3):
            spec = spellings.read_job(document, now=clock.now())
            assert spec.unique == spec.extra["unique"] == policy
            assert spec.warnings == ()
            found.add(spec.unique_policy)
    assert found == {spellings.read_unique(policy)}
    return found


def put(api: Api, path: str, body: Any) -> Any:
    return api.client.put(f"{V1}{path}", json.dumps(body), content_type="application/json")


PERIODS = {"period": "PT5S", "period_ms": 5000, "period_seconds": 5}


def in_a_rate_limit(api: Api, name: str) -> Any:
    return as_a_rate_limit(api, {name: PERIODS[name]})


def as_a_rate_period(api: Api, word: str) -> Any:
    return as_a_rate_limit(api, {"period": word})


def as_a_rate_limit(api: Api, period: dict[str, Any]) -> Any:
    """What becomes of each form of a rate limit with this period, by every way that leads to one."""
    window = {"limit": 2, **period}
    forms = [
        window,
        {"rate": 2, **period},
        {"rate": window},
        {"throttle": window},
        {"rate": window, "throttle": window},
    ]
    return [_as_a_rate_limit(api, form) for form in forms]


def _as_a_rate_limit(api: Api, form: dict[str, Any]) -> Any:
    policy = {"key": "k", **form}
    sent = [
        {"type": "a.b", "args": [], "rate_limit": policy},
        {"type": "a.b", "args": [], "options": {"rate_limit": policy}},
    ]
    for document in sent * 3:  # the third time from memory
        assert api.post("/jobs", document).json()["job"]["rate_limit"] == policy, "an answer echoes what was sent"
        assert validate(document) == []
    api.post("/jobs/batch", {"jobs": sent})
    push(sent)
    enqueue("a.b", rate_limit=policy)
    flow = api.post("/workflows", {"type": "chain", "steps": [sent[0]], "options": {"rate_limit": policy}})
    assert flow.status_code == 201, flow.content
    api.post("/cron", {"name": "s", "cron": "@daily", "type": "a.b", "rate_limit": policy})
    assert api.post("/cron/s/trigger").status_code == 200
    (stored,) = {job.rate_limit for job in Job.objects.all()}
    assert Job.objects.count() == 13
    Job.objects.all().delete()
    configure("slow", {"rate_limit": form})
    assert put(api, "/admin/queues/slower/rate-limit", form).status_code == 200
    queues = ratelimits.queue_policies(["slow", "slower"], "default")
    assert queues["slow"] == queues["slower"]
    assert put(api, "/rate-limits/over", form).status_code == 200
    Queue.objects.all().delete()
    return stored, queues["slow"], RateLimit.objects.get(pk="over").override


def in_a_schedule(api: Api, name: str) -> Any:
    response = api.post("/cron", {"name": "s", name: "0 3 * * *", "job_template": {"type": "a.b"}})
    assert response.status_code in (200, 201), response.content
    return schedules.get("s").expression


def as_a_policy(api: Api, word: str) -> Any:
    body = {"name": "s", "cron": "@daily", "overlap_policy": word, "type": "a.b"}
    response = api.post("/cron", body)
    assert response.status_code in (200, 201), response.content
    schedules.register({**body, "name": "python"})
    assert schedules.get("python").overlap_policy == schedules.get("s").overlap_policy
    return response.json()["overlap_policy"]


def in_an_error(api: Api, name: str) -> Any:
    reported = []
    for frames in (["a", "b"], "a\nb", "a\r\nb"):
        error = {"message": "m", name: frames}
        reported += api.post("/workers/nack", {"job_id": held(api), "error": error}).json()["job"]["errors"]
        fail_one(Failure(uuid.UUID(job := held(api)), error))
        reported += Job.objects.get(pk=job).errors
    assert [error["backtrace"] for error in reported] == [["a", "b"]] * 6
    assert not any("stack_trace" in error for error in reported)
    return [error.keys() for error in reported]


def in_a_heartbeat(api: Api, name: str) -> Any:
    job = held(api)
    body = {"worker_id": "w", name: job if name == "job_id" else [job]}
    assert api.post("/workers/heartbeat", body).json()["jobs_extended"] == [job]
    return True


def in_a_report(api: Api, name: str) -> Any:
    job = held(api)
    said = {name: "x", "progress": 0.07} if name.endswith("message") else {name: 0.07 if name == "progress" else 7}
    answers = [
        put(api, f"/jobs/{job}/progress", said).json(),
        api.post("/workers/progress", {"job_id": job, **said}).json(),
    ]
    return [(round(answer["progress"], 9), answer.get("message")) for answer in answers]


def held(api: Api) -> str:
    """The id of a job that a worker has."""
    api.push(retry={"max_attempts": 1})
    return str(api.fetch()["id"])


def as_a_level(api: Api, word: str) -> Any:
    """The level of the line that is stored, and what is found of four lines: by every way that leads to one."""
    job = held(api)
    lines = [{"message": one, "level": one} for one in ("debug", "info", "warning", "error")]
    lines.append({"message": "x", "level": word})
    assert api.post(f"/jobs/{job}/logs", {"lines": lines}).status_code == 200
    shown = api.get(f"/jobs/{job}/logs", {"level": word}).json()["items"]
    handle = get_job(job)
    assert [line.message for line in handle.logs(level=word)] == [line["message"] for line in shown]
    job_context().log("x", level=word.upper())
    return [(line["message"], line["level"]) for line in shown]


def as_a_state(api: Api, word: str) -> Any:
    assert api.post("/workers/heartbeat", {"worker_id": "w", "state": word}).status_code == 200
    return api.get("/workers/w/health").json()["state"]


def in_a_fetch(api: Api, name: str) -> Any:
    for _ in range(3):
        api.push()
    return len(api.post("/workers/fetch", {"queues": ["default"], name: 2}).json()["jobs"])


def as_an_event_type(api: Api, word: str) -> Any:
    return Filter(types=(word,)).kinds


def in_the_query_of_events(api: Api, name: str) -> Any:
    word = spellings.EVENT_QUERY.words.get(name, name)
    job = api.push(queue="mail")
    api.push(queue="other")
    api.post(f"/jobs/{job['id']}/cancel")
    if word == "after":
        return in_the_query_of_events_behind_one(api, job["id"], name)
    value = {"types": "job.cancelled,job.failed", "queues": "mail,sms"}[word]
    found = [event["id"] for event in api.get("/events", {name: value, "job_id": job["id"]}).json()["events"]]
    assert len(found) == (1 if word == "types" else 2)
    every = api.get("/events", {name: value}).json()["events"]
    assert {event["data"]["queue"] for event in every} == {"mail"}
    if word == "types":
        assert [event["id"] for event in api.get(f"/jobs/{job['id']}/history", {name: value}).json()["events"]] == found
    return True


def in_the_query_of_events_behind_one(api: Api, job_id: str, name: str) -> Any:
    """How many events and lines are behind a cursor, and how a bad one is refused, at each path."""
    assert api.post(f"/jobs/{held(api)}/logs", {"lines": [{"message": "a"}]}).status_code == 200
    found = []
    for path in ("/events", f"/events/{job_id}/history", f"/jobs/{job_id}/history"):
        wanted = {"job_id": job_id} if path == "/events" else {}
        first = api.get(path, {"limit": 1, **wanted}).json()
        query = {name: first["cursor"], **wanted, **({"page": 1} if wanted else {})}
        behind = [event["id"] for event in api.get(path, query).json()["events"]]
        assert first["events"][0]["id"] not in behind
        found.append(len(behind))
    for path in ("/events", f"/events/{job_id}/history", f"/jobs/{job_id}/history", f"/jobs/{job_id}/logs"):
        error = error_of(api.get(path, {name: "zzz"}), 400, "invalid_request")
        assert error["details"]["field"] == name
    return found


def in_the_query_of_a_stream(api: Api, name: str) -> Any:
    if spellings.STREAM_QUERY.words.get(name, name) == "last_event_id":
        api.push()
        api.push()
        (event,) = api.get("/events", {"limit": 1}).json()["events"]
        begin = views._beginning(Request(RequestFactory().get("/", {name: event["id"]})))
        return begin.cursor == event["id"], begin.asked, begin.gap
    request = Request(RequestFactory().get("/", {name: "job.failed,job.cancelled"}))
    request.user = None
    wanted = [views.of_queue(request, "mail").wanted, views.AllEventsView().feed(request).wanted]
    wanted.append(views.of_job(request, api.push()["id"]).wanted)
    assert all(one.kinds.shown >= {"job.failed", "job.cancelled"} for one in wanted)
    return [one.types for one in wanted]


def in_a_webhook(api: Api, name: str) -> Any:
    body = {"url": "https://example.com/", "events": ["job.failed"], name: {"queues": ["mail"], "job_types": ["a.*"]}}
    found = subscriptions.read_definition(body)
    assert found == subscriptions.read_definition({name: body[name], **body}, partial=True)
    with pytest.raises(InvalidRequest) as caught:
        subscriptions.read_definition({**body, name: {"queues": ["NO!"]}})
    assert caught.value.details["field"].startswith(f"{name}.queues")
    with pytest.raises(InvalidRequest, match=f"^{name}: "):
        subscriptions.read_definition({**body, name: 5})
    return found


def in_a_schema(api: Api, name: str) -> Any:
    answer = api.post("/schemas", {name: "a.b", "version": 1, "schema": {}})
    assert answer.status_code == 201, answer.content
    job_type = JobSchema.objects.get().job_type
    JobSchema.objects.all().delete()
    return job_type


def in_a_schema_of_an_operator(api: Api, name: str) -> Any:
    assert put(api, "/admin/schemas/a.b/1", {name: {"type": "array"}}).status_code in (200, 201)
    found = JobSchema.objects.get().schema
    JobSchema.objects.all().delete()
    return found


def in_the_maintenance_mode(api: Api, name: str) -> Any:
    assert api.post("/admin/system/maintenance", {"enabled": True, name: "PT1H"}).status_code == 200
    ending = dt.datetime.fromisoformat(api.get("/admin/system/maintenance").json()["estimated_end"])
    return round((ending - clock.now()).total_seconds() / 60)


def in_the_query_of_a_list(api: Api, name: str) -> Any:
    for _ in range(3):
        api.push()
    page = api.get("/admin/jobs", {name: 2}).json()
    assert api.get("/admin/jobs", {"per_page": "x", "limit": 2}).json() == page
    return len(page["items"]), page["pagination"]["per_page"]


def as_a_state_of_workflows(api: Api, word: str) -> Any:
    api.post("/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}]})
    return len(api.get("/workflows", {"state": word}).json()["workflows"]) > 0


def as_a_verb(api: Api, word: str) -> Any:
    return reported(["push", "fetch", word.upper(), "ack"])


def in_an_operation(api: Api, name: str) -> Any:
    values = {"operation": "push", "job": "a", "state": "pending"}
    means = spellings.OPERATION.words.get(name, name)
    first = {"operation": "push"} | {name: values[means]}
    if means != name:
        first = {key: value for key, value in first.items() if key != means}
    return reported([first, {"operation": "fetch", "job": "a"}])


def in_a_message(api: Api, name: str) -> Any:
    values = {"action": "resume", "after": "evt_1"}
    means = spellings.MESSAGE.words.get(name, name)
    message = {key: value for key, value in values.items() if key != means} | {name: values[means]}
    return messages.parse(message)


def in_a_filter(api: Api, name: str) -> Any:
    found = messages.parse({"action": "subscribe", "channel": "events", "filter": {name: ["job.failed"]}})
    assert isinstance(found, messages.Subscribe)
    return found.wanted


#: How each table is tried. Two words mean the same where what comes out is the same.
DOORS: dict[str, tuple[Table, Callable[[Api, str], Any]]] = {
    "options": (spellings.OPTION, in_options),
    "retry": (spellings.RETRY, in_a_policy),
    "attempts": (spellings.ATTEMPTS, as_attempts),
    "backoff strategy": (spellings.BACKOFF_STRATEGY, as_a_backoff_strategy),
    "unique": (spellings.UNIQUE, in_a_unique_policy),
    "conflict": (spellings.ON_CONFLICT, as_a_strategy),
    "rate limit": (spellings.RATE_LIMIT, in_a_rate_limit),
    "rate period": (spellings.RATE_PERIOD, as_a_rate_period),
    "schedule": (spellings.SCHEDULE, in_a_schedule),
    "overlap policy": (spellings.OVERLAP_POLICY, as_a_policy),
    "error": (spellings.ERROR, in_an_error),
    "heartbeat": (spellings.ACTIVE_JOBS, in_a_heartbeat),
    "progress": (spellings.PROGRESS, in_a_report),
    "level of logs": (spellings.LOG_LEVEL, as_a_level),
    "worker state": (spellings.WORKER_STATE, as_a_state),
    "fetch": (spellings.FETCH, in_a_fetch),
    "event type": (spellings.EVENT_TYPE, as_an_event_type),
    "query of events": (spellings.EVENT_QUERY, in_the_query_of_events),
    "query of a stream": (spellings.STREAM_QUERY, in_the_query_of_a_stream),
    "webhook": (spellings.SUBSCRIPTION, in_a_webhook),
    "schema": (spellings.SCHEMA, in_a_schema),
    "schema of an operator": (spellings.ADMIN_SCHEMA, in_a_schema_of_an_operator),
    "maintenance": (spellings.MAINTENANCE, in_the_maintenance_mode),
    "query of a list": (spellings.LIST_QUERY, in_the_query_of_a_list),
    "state of workflows": (spellings.WORKFLOW_STATE, as_a_state_of_workflows),
    "verb": (spellings.VERB, as_a_verb),
    "operation": (spellings.OPERATION, in_an_operation),
    "message": (spellings.MESSAGE, in_a_message),
    "filter": (spellings.FILTER, in_a_filter),
}


def every_word() -> Iterator[Any]:
    for kind, (table, _) in DOORS.items():
        for written in table.words:
            yield pytest.param(kind, written, id=f"{kind}: {written}")


def reported(operations: list[Any]) -> list[Any]:
    return validate_sequence(spellings.operations(operations))


def test_every_table_is_tried() -> None:
    assert [table for table, _ in DOORS.values()] == list(spellings.TABLES)


@pytest.mark.parametrize("kind, written", list(every_word()))
def test_each_word_means_what_its_canonical_word_means(api: Api, kind: str, written: str) -> None:
    table, found = DOORS[kind]
    canonical = table.words[written]
    assert canonical not in table.words, "a word of the specification stands for itself"
    assert found(api, written) == found(api, canonical)


def test_rules_refuse_the_other_words() -> None:
    now = clock.now()
    template = {"name": "s", "job_template": {"type": "a.b"}}
    for body in ({**template, "expression": "@daily"}, {**template, "cron": "@daily", "overlap_policy": "replace"}):
        with pytest.raises(InvalidRequest):
            cron_rules.parse(body, now=now)
    with pytest.raises(InvalidRequest, match=r"job_template\.type"):
        cron_rules.parse({"name": "s", "cron": "@daily", "type": "a.b"}, now=now)
    assert [problem.path for problem in validate_sequence(["enqueue"])] == ["[0]"]


def test_rules_ignore_the_other_members_of_a_policy(api: Api) -> None:
    document = {"type": "a.b", "args": [], "retry": {name: RETRIES[name] for name in spellings.RETRY.words}}
    for _ in range(3):
        assert spellings.read_job(document, now=clock.now()).retry != {}
        assert envelope.parse(document, now=clock.now()).retry == {}, "what the door remembers is the door's"


def test_rules_keep_the_other_members_of_options_as_they_keep_what_means_nothing() -> None:
    options = {"retry_policy": {"max_attempts": 1}, "delay_until": "2098-01-01T00:00:00Z", "metadata": {"a": 1}}
    assert options.keys() == spellings.OPTION.words.keys()
    spec = envelope.parse({"type": "a.b", "args": [], "options": options}, now=clock.now())
    assert (spec.retry, spec.scheduled_at, spec.meta, spec.extra) == ({}, None, {}, {"options": options})


def test_the_word_of_the_specification_counts_before_another_and_both_of_meta_do() -> None:
    options = {
        "retry": {"max_attempts": 2}, "retry_policy": "often", "scheduled_at": "+1h", "delay_until": 5,
        "meta": {"b": 2, "c": 2}, "metadata": {"c": 3}, "x": 1,
    }  # fmt: skip
    document = {"type": "a.b", "args": [], "meta": {"a": 1, "b": 1}, "options": options}
    given = json.dumps(document)
    for minutes in range(3):
        now = clock.now() + dt.timedelta(minutes=minutes)
        spec = spellings.read_job(document, now=now)
        assert (spec.retry, spec.extra["retry"]) == ({"max_attempts": 2}, {"max_attempts": 2})
        assert spec.scheduled_at == now + dt.timedelta(hours=1)
        assert spec.meta == {"a": 1, "b": 2, "c": 3}
        assert spec.extra["options"] == {"x": 1}
    assert json.dumps(document) == given, "nobody changes what the caller holds"


def test_meta_of_the_servers_own_lies_over_all_that_a_job_says(api: Api) -> None:
    for number, place in enumerate(("meta", "metadata")):
        options = {place: {"cron_name": "mine", "own": 1}}
        api.post("/cron", {"name": f"s{number}", "cron": "@daily", "type": "a.b", "options": options})
        job = Job.objects.get(pk=api.post(f"/cron/s{number}/trigger").json()["job_id"])
        assert job.meta | {"cron_triggered_at": ""} == {
            "cron_name": f"s{number}", "own": 1, "cron_triggered_at": "",
        }  # fmt: skip


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"retry_policy": 5}, "retry_policy"),
    ({"retry_policy": {"max_attempts": -1}}, "retry_policy.max_attempts"),
    ({"retry_policy": {"initial_delay_ms": -1}}, "retry_policy.initial_delay_ms"),
    ({"max_attempts": -1}, "max_attempts"),
    ({"max_attempts": "3", "retry": {"jitter": False}}, "max_attempts"),
    ({"max_attempts": 3, "retry_policy": {"initial_delay_ms": -1}}, "retry_policy.initial_delay_ms"),
    ({"delay_until": "soon"}, "delay_until"),
    ({"delay_until": "+soon"}, "delay_until"),
    ({"metadata": 5}, "metadata"),
    ({"metadata": 5, "meta": {}}, "metadata"),
    ({"metadata": {}, "meta": 5}, "meta"),
]


@pytest.mark.parametrize("options, member", WRONG_OPTIONS)
def test_faults_of_options_name_what_the_caller_wrote(api: Api, options: dict[str, Any], member: str) -> None:
    path, document = f"options.{member}", {"type": "a.b", "args": [], "options": options}
    error = api.post("/jobs", document).json()["error"]
    assert error["details"]["field"] == path
    assert error["message"].startswith(f"{path}: ")
    assert [entry["path"] for entry in error["details"]["validation_errors"]] == [path]
    found = validate(document)
    assert [problem.path for problem in found] == [path]
    batch = api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": []}, document]}).json()["error"]
    assert (batch["details"]["field"], batch["details"]["index"]) == (path, 1)
    assert batch["message"].startswith(f"jobs[1].{path}: ")
    flat = error_of(api.post("/cron", {"name": "s", "cron": "@daily", **document}), 400, "invalid_request")
    assert flat["details"]["field"] == path
    nested = {"name": "s", "cron": "@daily", "job_template": document}
    assert error_of(api.post("/cron", nested), 400, "invalid_request")["details"]["field"] == f"job_template.{path}"


@pytest.mark.parametrize("options, member", WRONG_OPTIONS)
def test_faults_of_options_in_a_workflow_name_what_the_caller_wrote(
    api: Api, options: dict[str, Any], member: str
) -> None:
    fine = {"type": "a.b", "args": []}
    wrong = {**fine, "options": options}
    flows: list[tuple[dict[str, Any], str]] = [
        ({"type": "chain", "steps": [fine, wrong]}, "$.steps[1]"),
        ({"steps": [wrong]}, "$.steps[0]"),
        ({"type": "batch", "jobs": [fine], "callbacks": {"on_success": wrong}}, "$.callbacks.on_success"),
        ({"type": "group", "jobs": [{"type": "chain", "steps": [wrong]}]}, "$.jobs[0].steps[0]"),
    ]
    if not member.startswith("meta"):  # which no job inherits from a workflow unless it is an object
        flows += [
            ({"type": "chain", "steps": [fine], "options": options}, "$.steps[0]"),
            ({"type": "group", "jobs": [{"type": "chain", "steps": [fine], "options": options}]}, "$.jobs[0].steps[0]"),
        ]
    for flow, place in flows:
        error = error_of(api.post("/workflows", flow), 400, "invalid_workflow")
        path = f"{place}.options.{member}"
        assert error["details"]["field"] == path
        assert error["message"].startswith(f"{path}: ")
        assert [entry["path"] for entry in error["details"]["validation_errors"]] == [path]


@pytest.mark.parametrize(
    "job, most, echo",
    [
        ({"options": {"max_attempts": 2, "retry": {"jitter": False}}}, 2, {"jitter": False, "max_attempts": 2}),
        ({"options": {"max_attempts": 2, "retry": {"max_attempts": 5}}}, 5, {"max_attempts": 5}),
        ({"options": {"max_attempts": 2, "retry_policy": {"maxAttempts": 5}}}, 5, {"maxAttempts": 5}),
        ({"options": {"max_attempts": 2}, "retry": {"max_attempts": 5}}, 2, {"max_attempts": 2}),
        ({"options": {"max_attempts": 2}, "retry": {"jitter": False}}, 2, {"jitter": False, "max_attempts": 2}),
        ({"options": {"max_attempts": None}, "retry": {"max_attempts": 5}}, 5, {"max_attempts": 5}),
        ({"max_attempts": 2}, 3, None),
    ],
)
def test_the_attempts_in_options_lie_over_a_policy_beside_them_and_under_one_among_them(
    api: Api, job: dict[str, Any], most: int, echo: Any
) -> None:
    for _ in range(3):
        stored = api.push(**job)
        assert (stored["max_attempts"], stored.get("retry")) == (most, echo)
        assert "options" not in stored
    fault = error_of(api.post("/jobs", {"type": "a.b", "args": [], "options": {"max_attempts": 2}, "retry": 5}), 400,
                     "invalid_payload")  # fmt: skip
    assert fault["details"]["field"] == "retry"


@pytest.mark.parametrize("name", list(OPTIONS))
def test_what_a_step_says_beats_its_workflow_in_whatever_words(api: Api, name: str) -> None:
    theirs = {"retry": {"max_attempts": 9}, "scheduled_at": "2099-01-01T00:00:00Z", "meta": {"a": 9, "b": 9}}[name]
    found = set()
    for above in spellings.OPTION.names(name):
        for below in spellings.OPTION.names(name):
            step = {"type": "a.b", "args": [], "options": {below: OPTIONS[name]}}
            response = api.post("/workflows", {"type": "group", "jobs": [step], "options": {above: theirs}})
            assert response.status_code == 201, response.content
            job = Job.objects.get()
            due_at = str(job.due_at) if name == "scheduled_at" else ""
            found.add((job.retry, due_at, json.dumps(job.meta), json.dumps(job.extra)))
            Job.objects.all().delete()
    ((retry, due_at, meta, _),) = found
    assert json.loads(meta) == ({"a": 1, "b": 9} if name == "meta" else {})
    if name == "retry":
        assert json.loads(retry)["max_attempts"] == 2
    assert due_at.startswith("2098" if name == "scheduled_at" else "")


@pytest.mark.parametrize(
    "job, refused",
    [
        ({"options": {"delay_until": "+1h"}}, True),
        ({"options": {"scheduled_at": "+1h"}}, True),
        ({"scheduled_at": "2098-01-01T00:00:00Z"}, True),
        ({"pending": True}, True),
        ({"options": {"pending": True}}, True),
        ({"pending": False, "options": {"delay_until": None, "scheduled_at": None}}, False),
    ],
)
def test_a_schedule_does_not_let_delayed_jobs_wait_for_the_run_before(
    api: Api, job: dict[str, Any], refused: bool
) -> None:
    body = {"name": "s", "cron": "@daily", "overlap_policy": "enqueue", "type": "a.b", **job}
    assert api.post("/cron", body).status_code == (400 if refused else 201)


@pytest.mark.parametrize(
    "before, after",
    [
        ({"options": {"retry_policy": {"max_attempts": 9}}}, {"retry": {"max_attempts": 2}}),
        ({"options": {"metadata": {"a": 1, "b": 1}}}, {"meta": {"a": 2}}),
        ({"options": {"delay_until": "2098-01-01T00:00:00Z"}}, {"scheduled_at": "2099-01-01T00:00:00Z"}),
        ({"options": {"timeout_ms": 700}}, {"timeout": 5}),
        ({"timeout": 5}, {"timeout_ms": 700}),
        ({"options": {"retry": {"max_attempts": 9}}}, {"options": {"retry_policy": {"max_attempts": 2}}}),
    ],
)
def test_a_change_of_a_schedule_counts_in_whatever_words_it_is_written(
    api: Api, before: dict[str, Any], after: dict[str, Any]
) -> None:
    def made(name: str) -> Any:
        job = Job.objects.get(pk=api.post(f"/cron/{name}/trigger").json()["job_id"])
        return job.retry, job.due_at if "scheduled_at" in after else None, job.timeout_ms, job.meta.keys(), job.extra

    whole = {"name": "s", "cron": "@daily", "type": "a.b", "queue": "q"}
    assert api.post("/cron", {**whole, **before}).status_code == 201
    body = json.dumps(after)
    changed = api.client.patch(f"{V1}/cron/s", body, content_type="application/json")
    assert changed.status_code == 200, changed.content
    api.post("/cron", {**whole, "name": "t", **after})
    assert made("s") == made("t")


def test_a_deeply_nested_workflow_is_refused_and_no_more(api: Api) -> None:
    flow: dict[str, Any] = {"type": "a.b", "args": []}
    for _ in range(2000):
        flow = {"type": "chain", "steps": [flow]}
    with pytest.raises(InvalidWorkflow, match="nest deeper"):
        spellings.read_workflow(flow, now=clock.now())


def test_no_module_of_rules_imports_the_tables() -> None:
    for path in RULES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert "spellings" not in names, path


#: Words of the tables that mean something of their own elsewhere: members of jobs, queues and alerts, states, ways to
#: repeat a job or to fill a queue, and parts of a cron expression or of Python.
ALSO_CANONICAL = {
    "active", "draining", "enqueue", "expression", "hour", "job_id", "max_attempts", "minute", "progress_message",
    "queue", "replace", "schedule", "second", "strategy", "type", "types",
}  # fmt: skip
#: What `rules/` names and does not read: to hide it, to say that it means nothing, as the kind of a fault, in answers.
NAMED = {
    "redaction.py": {"metadata", "stack_trace"},
    "problems.py": {"delay_until", "metadata", "retry_policy"},
    "faults.py": {"retry_policy"},
    "workflowgraph.py": {"metadata"},
}


def test_rules_read_no_word_of_the_tables() -> None:
    words = {word for table in spellings.TABLES for word in table.words} - ALSO_CANONICAL
    found: dict[str, set[str]] = {}
    for path in RULES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words:
                found.setdefault(path.name, set()).add(node.value)
    assert found == NAMED


def test_each_timeout_has_two_members_and_the_document_of_the_envelope_has_both() -> None:
    described = json.loads((RULES.parent / "schemas" / "envelope.json").read_text())["properties"]
    for name in attributes.TIMEOUTS:
        assert {name, f"{name}_ms"} <= described.keys(), "the specification's own, so no table has them"
        assert not any({name, f"{name}_ms"} & table.words.keys() for table in spellings.TABLES)


@pytest.mark.parametrize(
    "body, field",
    [
        ({"expression": "x", "type": "a.b"}, "expression"),
        ({"schedule": "x", "type": "a.b"}, "schedule"),
        ({"cron": "x", "type": "a.b"}, "cron"),
        ({"cron": "@daily", "type": "A"}, "type"),
        ({"cron": "@daily", "job_template": {"type": "A"}}, "job_template.type"),
        ({"cron": "@daily", "type": "a.b", "job_template": {"queue": "Q"}}, "job_template.queue"),
        ({"cron": "@daily", "queue": "Q", "job_template": {"type": "a.b"}}, "queue"),
        ({"cron": "@daily", "expression": "@hourly", "type": "a.b"}, "cron"),
        ({"cron": "@daily", "type": "a.b", "retry": {"max_attempts": -1}}, "retry.max_attempts"),
    ],
)
def test_faults_name_what_the_caller_wrote(api: Api, body: dict[str, Any], field: str) -> None:
    error = error_of(api.post("/cron", {"name": "s", **body}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert error["message"].startswith(f"{field}: ")
    assert [entry["path"] for entry in error["details"]["validation_errors"]] == [field]


@pytest.mark.parametrize(
    "policy, field",
    [
        ({"initial_interval_ms": 0}, "initial_interval_ms"),
        ({"initial_interval_ms": "1s"}, "initial_interval_ms"),
        ({"initial_delay_ms": True}, "initial_delay_ms"),
        ({"max_interval_ms": -5}, "max_interval_ms"),
        ({"initial_interval": "9s", "max_interval_ms": 1000}, "max_interval_ms"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier"),
        ({"strategy": "zigzag"}, "strategy"),
        ({"backoff_type": "zigzag"}, "backoff_type"),
    ],
)
@pytest.mark.parametrize("place", ["retry", "options.retry", "options.retry_policy"])
def test_faults_of_a_policy_name_what_the_caller_wrote(
    api: Api, policy: dict[str, Any], field: str, place: str
) -> None:
    holder, _, name = place.rpartition(".")
    document = {"type": "a.b", "args": []} | ({holder: {name: policy}} if holder else {name: policy})
    path = f"{place}.{field}"
    error = error_of(api.post("/jobs", document), 422, "invalid_payload")
    assert error["details"]["field"] == path
    assert error["message"].startswith(f"{path}: ")
    assert [entry["path"] for entry in error["details"]["validation_errors"]] == [path]
    assert [problem.path for problem in validate(document)] == [path]
    fine = {"type": "a.b", "args": []}
    batch = error_of(api.post("/jobs/batch", {"jobs": [fine, document]}), 422, "invalid_payload")
    assert (batch["details"]["field"], batch["details"]["index"]) == (path, 1)
    assert batch["message"].startswith(f"jobs[1].{path}: ")
    step = error_of(api.post("/workflows", {"type": "chain", "steps": [document]}), 400, "invalid_workflow")
    assert step["details"]["field"] == f"$.steps[0].{path}"


@pytest.mark.parametrize(
    "policy", [{"period_ms": True}, {"period_seconds": 0}, {"conflict_policy": "shrug"}, {"on_conflict": []}]
)
@pytest.mark.parametrize("place", ["unique", "options.unique"])
def test_faults_of_a_unique_policy_name_what_the_caller_wrote(api: Api, policy: dict[str, Any], place: str) -> None:
    holder, _, name = place.rpartition(".")
    document = {"type": "a.b", "args": []} | ({holder: {name: policy}} if holder else {name: policy})
    error = error_of(api.post("/jobs", document), 400, "invalid_request")
    path = f"{place}.{next(iter(policy))}"
    assert error["details"]["field"] == path
    assert error["message"].startswith(f"{path}: ")
    assert [problem.path for problem in validate(document)] == [path]


@pytest.mark.parametrize(
    "period", [{"period_ms": True}, {"period_seconds": 0}, {"period_ms": "1s"}, {"period": "week"}]
)
@pytest.mark.parametrize("form", ["{}", "rate", "throttle"])
@pytest.mark.parametrize("place", ["rate_limit", "options.rate_limit"])
def test_faults_of_a_rate_limit_name_what_the_caller_wrote(
    api: Api, period: dict[str, Any], form: str, place: str
) -> None:
    (member,) = period
    window = {"limit": 2, **period}
    policy = {"key": "k", **(window if form == "{}" else {form: window})}
    inner = member if form == "{}" else f"{form}.{member}"
    holder, _, name = place.rpartition(".")
    document = {"type": "a.b", "args": []} | ({holder: {name: policy}} if holder else {name: policy})
    error = error_of(api.post("/jobs", document), 400, "invalid_payload")
    assert error["details"]["field"] == f"{place}.{inner}"
    assert error["message"].startswith(f"{place}.{inner}: ")
    assert [problem.path for problem in validate(document)] == [f"{place}.{inner}"]
    with pytest.raises(InvalidPayload, match=rf"^rate_limit\.{inner}: "):
        enqueue("a.b", rate_limit=policy)
    for refused in (
        put(api, "/admin/queues/slow/config", {"rate_limit": policy}),
        put(api, "/admin/queues/slow/rate-limit", policy),
        put(api, "/rate-limits/k", policy),
    ):
        error = error_of(refused, 400, "invalid_request")
        assert error["details"]["field"] == f"rate_limit.{inner}"
        assert error["message"].startswith(f"rate_limit.{inner}: ")


@pytest.mark.parametrize(
    "policy",
    [
        {"key": "k", "concurrency": 1, "period_ms": "soon"},
        {"key": "k", "rate": {"limit": 1, "period": "PT1S"}, "period_ms": "soon"},
        {"max_per_second": 1, "period_ms": "soon"},
        {"key": "k", "limit": 1, "period": "PT1S", "period_ms": "soon"},
    ],
)
@pytest.mark.usefixtures("echoed")
def test_a_period_that_does_not_count_is_not_looked_at(api: Api, policy: dict[str, Any]) -> None:
    assert api.push(rate_limit=policy)["rate_limit"] == policy


@pytest.mark.parametrize(
    "member, before, after, whole",
    [
        ("rate_limit", {"limit": 1, "period": "PT1H"}, {"limit": 1, "period_ms": 500}, {}),
        ("rate_limit", {"limit": 1, "period_ms": 500}, {"limit": 1, "period": "PT1H"}, {}),
        ("rate_limit", {"limit": 1, "period_ms": 500}, {"limit": 1, "period_seconds": 7}, {}),
        ("rate_limit", {"rate": {"limit": 1, "period": "day"}}, {"rate": {"limit": 2, "period_seconds": 7}}, {}),
        ("rate_limit", {"throttle": {"limit": 1, "period_ms": 5}}, {"throttle": {"limit": 1, "period": "day"}}, {}),
        ("rate_limit", {"rate": {"limit": 1, "period": "PT1H"}}, {"limit": 2, "period": "PT1S"}, {}),
        ("rate_limit", {"rate": 1, "period": "PT1H"}, {"limit": 2, "period_ms": 500}, {}),
        ("rate_limit", {"limit": 1, "period_ms": 500}, {"rate": {"limit": 2, "period": "PT1S"}}, {}),
        ("rate_limit", {"throttle": {"limit": 1, "period": "PT1H"}}, {"max_per_second": 5}, {}),
        ("default_retry", {"initial_interval": "PT1S"}, {"initial_delay_ms": 500}, {}),
        (
            "default_retry", {"initial_interval_ms": 500, "strategy": "linear"}, {"initial_delay_ms": 700},
            {"initial_delay_ms": 700, "strategy": "linear"},
        ),
        (
            "default_retry", {"initial_interval_ms": 500}, {"initial_interval": None, "max_attempts": 2},
            {"max_attempts": 2},
        ),
    ],
)  # fmt: skip
def test_a_change_of_a_queue_counts_in_whatever_words_it_is_written(
    member: str, before: dict[str, Any], after: dict[str, Any], whole: dict[str, Any]
) -> None:
    def meant(name: str, template: str | None = None) -> Any:
        queue, below = Queue.objects.get(pk=name), Queue.objects.filter(pk=template).first()
        config = effective(queue, below)
        return spellings.rate_policy(config), spellings.read_retry(config.get("default_retry") or {})

    configure("whole", {member: whole or after})
    configure("patched", {member: before})
    configure("patched", {member: after})
    assert meant("patched") == meant("whole")
    configure("_default", {member: before})
    configure("above", {member: after})
    if None not in after.values():  # which is not kept
        assert meant("above", "_default") == meant("whole")


def test_a_change_of_the_period_alone_counts_whatever_form_the_limit_has() -> None:
    for policy in (
        {"rate": {"limit": 5, "period_ms": 500}},
        {"rate": 5, "period": "PT1S"},
        {"limit": 5, "period": "day"},
    ):
        configure("q", {"rate_limit": None})
        configure("q", {"rate_limit": policy})
        configure("q", {"rate_limit": {"period": "PT1H"}})
        found = spellings.rate_policy(effective(Queue.objects.get(pk="q"), None)).rate
        assert found == ratelimit.Window(5, 3_600_000)


def test_faults_of_a_queue_name_what_the_caller_wrote() -> None:
    for policy in ({"initial_interval_ms": 0}, {"backoff_multiplier": 0.5}):
        with pytest.raises(InvalidRequest) as caught:
            configure("mild", {"default_retry": policy})
        assert caught.value.details["field"] == f"default_retry.{next(iter(policy))}"


@pytest.mark.parametrize(
    "given, member",
    [
        ({"stack_trace": {}}, "stack_trace"),
        ({"stack_trace": [5], "backtrace": None}, "stack_trace"),
        ({"stack_trace": "a", "backtrace": 5}, "backtrace"),
    ],
)
def test_faults_of_an_error_name_what_the_caller_wrote(api: Api, given: dict[str, Any], member: str) -> None:
    body = {"job_id": held(api), "error": {"message": "m", **given}}
    error = error_of(api.post("/workers/nack", body), 400, "invalid_request")
    assert error["details"]["field"] == f"error.{member}"
    assert error["message"].startswith(f"error.{member}: ")


def test_the_word_of_the_specification_counts_first_in_what_workers_report(api: Api) -> None:
    job, other = held(api), held(api)
    beat = {"worker_id": "w", "active_job_ids": [job], "active_jobs": [other], "job_id": other}
    assert api.post("/workers/heartbeat", beat).json()["jobs_extended"] == [job]
    beat = {"worker_id": "w", "active_jobs": 3, "job_id": other}
    assert api.post("/workers/heartbeat", beat).json()["jobs_extended"] == [other]
    assert put(api, f"/jobs/{job}/progress", {"percentage": "x", "progress": 0.5}).json()["progress"] == 0.5
    said = {"progress": 0.6, "progress_message": "x", "message": "y"}
    assert put(api, f"/jobs/{job}/progress", said).json()["message"] == "y"
    for name in spellings.PROGRESS.words:
        wrong = {"progress": 0.6, name: ["half"]}
        if spellings.PROGRESS.words[name] == "progress":
            del wrong["progress"]
        error = error_of(put(api, f"/jobs/{job}/progress", wrong), 400, "invalid_request")
        assert error["details"]["field"] == name
    failed = {"message": "m", "stack_trace": 5, "backtrace": ["a"]}
    assert api.post("/workers/nack", {"job_id": job, "error": failed}).json()["job"]["errors"][0]["backtrace"] == ["a"]


def test_rules_keep_the_other_member_of_an_error_as_they_keep_what_means_nothing() -> None:
    stored = errorobjects.normalise({"message": "m", "stack_trace": ["a"]})
    assert stored["stack_trace"] == ["a"]
    assert "backtrace" not in stored


def test_a_policy_that_does_not_count_is_not_looked_at(api: Api) -> None:
    job = api.push(options={"retry": {"initial_delay_ms": 700}}, retry={"initial_interval_ms": "soon"})
    assert Job.objects.get(pk=job["id"]).retry == '{"initial_ms":700}'


def test_warnings_name_what_the_caller_wrote(api: Api) -> None:
    flat = api.post("/cron", {"name": "s", "schedule": "@daily", "type": "a.b", "retry": {"max_attemps": 1}})
    assert [entry["path"] for entry in flat.json()["warnings"]] == ["retry.max_attemps"]
    nested = {"name": "s", "schedule": "@daily", "job_template": {"type": "a.b", "retry": {"max_attemps": 1}}}
    assert [entry["path"] for entry in api.post("/cron", nested).json()["warnings"]] == [
        "job_template.retry.max_attemps"
    ]


def test_the_command_reads_the_verbs_of_published_cases(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "operations.json"
    file.write_text(json.dumps(["ENQUEUE", "claim", {"op": "nack", "to": "discarded"}]))
    call_command("ojs_validate", "--sequence", str(file))
    assert "No problems found." in capsys.readouterr().out
