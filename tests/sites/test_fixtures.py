"""`dumpdata` and `loaddata`: what was dumped is there afterwards, in every format, and the work goes on with it."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.serializers.base import DeserializationError
from django.db import connection, models
from django.db.models import F
from django.utils import timezone

from django_ojs import clock, jsontext
from django_ojs.client.definition import enqueue_many
from django_ojs.events import log, order
from django_ojs.jsontext import ExactNumber
from django_ojs.keys import create as create_key
from django_ojs.models import (
    APIKey,
    BulkAction,
    CronSchedule,
    Event,
    EventCommit,
    Job,
    JobSchema,
    MetricPlace,
    ReplayRule,
    WebhookRelay,
)
from django_ojs.models.fields import JSONTextField, RawJSON
from django_ojs.statistics import eventcounts
from django_ojs.webhooks import relay
from tests.waiting import eventually

FORMATS = ["json", "jsonl", "xml", "yaml"]
NATURAL = ("--all", "--natural-foreign", "--natural-primary")
#: What JSON can hold and a fixture may spoil, as a value of a column.
VALUES: list[Any] = [
    ["a", 1], {"b": 1, "a": [None, True, False]}, {}, [], "text", "", "[1]", "null", "  spaced\t", 0, -1, 10**40,
    True, False, 1.5, 1e22, ExactNumber("1e400"), ExactNumber("0.10000000000000000000000001"), [ExactNumber("1E5000")],
    {"nul": "\0 \x1b\x7f", "lines": "a\r\nb\n", "far": "\ufffe\uffff\U0001f600", "half": "\ud800", "\u2028": "é<&>]]>"},
    [[["deep"] * 3] * 3], 2**63, {"z": 1, "y": 2, "x": 3},
]  # fmt: skip

#: How this database orders the log, and what it has met, which is its own business.
ORDER = [
    ("Event", "commit_id"), ("Event", "seq"), ("EventCommit", "txid"), ("EventLog", "snapshot"),
    ("EventLog", "server"), ("EventLog", "run"), ("EventLog", "kept_to"),
    ("MetricPlace", "seq"), ("WebhookRelay", "commit"),
]  # fmt: skip


def everything() -> dict[str, list[dict[str, Any]]]:
    """Every row of every model of ours as the database has it: JSON columns as their texts."""
    found = {}
    for model in apps.get_app_config("django_ojs").get_models():
        columns = {
            field.attname: models.ExpressionWrapper(models.F(field.attname), models.TextField())
            if isinstance(field, JSONTextField)
            else models.F(field.attname)
            for field in model._meta.concrete_fields
        }
        rows = model._default_manager.annotate(**{f"c_{name}": column for name, column in columns.items()})
        found[model.__name__] = list(rows.order_by("pk").values(*(f"c_{name}" for name in columns)))
    return found


def empty() -> None:
    for model in apps.get_app_config("django_ojs").get_models():
        models.QuerySet(model).delete()  # its own one may refuse: the audit log is not deleted


def filled(field: models.Field[Any, Any], number: int) -> Any:
    """A value for a column of the row with this number."""
    if field.name == "commit" and isinstance(field, models.ForeignKey):
        return None
    if isinstance(field, models.ForeignKey | models.UUIDField):
        return uuid.UUID(int=number + 1)
    if isinstance(field, models.DateTimeField):
        return dt.datetime(2026, 1, 2, 3, 4, 5, 123000 + (number if field.model is Job else 0), tzinfo=dt.UTC)
    if isinstance(field, models.BooleanField):
        return number % 2 == 0
    if isinstance(field, models.FloatField):
        return number / 2
    if isinstance(field, models.IntegerField):
        return number + 1
    limit = field.max_length or 60
    return f"é {number}"[:limit]


def rows_of_every_model() -> None:
    for model in apps.get_app_config("django_ojs").get_models():
        json_columns = [field for field in model._meta.concrete_fields if isinstance(field, JSONTextField)]
        for number, value in enumerate(VALUES if json_columns else VALUES[:2]):
            row: dict[str, Any] = {
                field.attname: RawJSON(jsontext.dumps(value)) if field in json_columns else filled(field, number)
                for field in model._meta.concrete_fields
            }
            row |= {
                "Job": {"state": "available", "finished_at": None},
                "CronSchedule": {"enabled": True},
                "Ticket": {"key_id": None},
                "WebhookSubscription": {"active": True},
            }.get(model.__name__, {})
            if model.__name__ == "Maintenance":
                row["id"] = 1
            models.QuerySet(model).bulk_create([model(**row)], ignore_conflicts=True)
            if model is Job:
                Job.objects.filter(pk=row["id"]).update(**{c.name: row[c.name] for c in json_columns})
        assert model._default_manager.exists(), model


def round_trip(tmp_path: Path, form: str, *options: str) -> None:
    path = str(tmp_path / f"site.{form}")
    call_command("dumpdata", "django_ojs", *options, format=form, output=path)
    empty()
    call_command("loaddata", path, verbosity=0)


@pytest.mark.django_db
@pytest.mark.parametrize("form, options", [("json", NATURAL), ("jsonl", ()), ("xml", ()), ("yaml", NATURAL)])
def test_every_column_of_every_model_comes_back_as_it_was(tmp_path: Path, form: str, options: tuple[str, ...]) -> None:
    rows_of_every_model()
    before = everything()
    assert sum(len(rows) for rows in before.values()) > 100
    round_trip(tmp_path, form, *options)
    after = everything()
    for name, column in ORDER:
        for one in (*before[name], *after[name]):
            one.pop(f"c_{column}")
    if options:
        for name in ("APIKey", "JobSchema", "ReplayRule"):
            for one in (*before[name], *after[name]):
                one.pop("c_id")  # found by their names
    assert after == before


@pytest.mark.django_db
def test_a_natural_key_meets_the_row_of_that_name_in_the_other_database(tmp_path: Path) -> None:
    create_key("partner", scopes=["push"], queues=["a"])
    path = str(tmp_path / "keys.json")
    call_command("dumpdata", "django_ojs.apikey", "--natural-primary", output=path)
    APIKey.objects.all().delete()
    other, _ = create_key("other", scopes=["read"])
    mine, _ = create_key("partner", scopes=["read"])
    call_command("loaddata", path, verbosity=0)
    assert dict(APIKey.objects.values_list("name", "pk")) == {"other": other.pk, "partner": mine.pk}
    assert APIKey.objects.get(name="partner").queues == ["a"]
    assert {model.__name__ for model in (APIKey, JobSchema, ReplayRule)} == {
        model.__name__ for model in apps.get_app_config("django_ojs").get_models() if hasattr(model, "natural_key")
    }


@pytest.mark.django_db
def test_a_fixture_written_by_hand_may_hold_json_itself_and_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    at = "2026-01-02T03:04:05Z"
    fields: dict[str, Any] = {"name": "n", "expression": "* * * * *", "type": "t", "anchor_at": at, "created_at": at}
    fields |= {"updated_at": at, "wake_at": at, "next_run_at": at, "template": {"type": "t", "args": ["a", 1]}}
    path = tmp_path / "hand.json"
    path.write_text(json.dumps([{"model": "django_ojs.cronschedule", "pk": "n", "fields": fields}]))
    call_command("loaddata", str(path), verbosity=0)
    assert CronSchedule.objects.get().document == {"type": "t", "args": ["a", 1]}
    fields["template"] = "no JSON"
    path.write_text(json.dumps([{"model": "django_ojs.cronschedule", "pk": "n", "fields": fields}]))
    with pytest.raises(DeserializationError, match="template holds JSON text"):
        call_command("loaddata", str(path), verbosity=0)


@pytest.mark.django_db
def test_code_and_forms_still_give_strings_as_they_are() -> None:
    job = Job(type="t", args=["x"], meta={}, created_at=timezone.now(), result="[1]")
    job.full_clean()
    assert job.result == "[1]"
    with pytest.raises(ValidationError):
        Job(type="t", args=None, created_at=timezone.now()).full_clean()


@pytest.mark.django_db
@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_is_delivered_in_its_order_afterwards(tmp_path: Path, form: str) -> None:
    handles = enqueue_many([("t", [number]) for number in range(60)])
    after = handles[0].row["created_at"]
    BulkAction.objects.create(verb="retry", actor="x", created_at=clock.now(), expected=1, after=after)
    before = list(Job.objects.order_by("enqueued_at", "id").values_list("pk", "enqueued_at", "created_at"))
    round_trip(tmp_path, form)
    assert list(Job.objects.order_by("enqueued_at", "id").values_list("pk", "enqueued_at", "created_at")) == before
    assert BulkAction.objects.get().after == after


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("cluster", ["same", "other"])
@pytest.mark.parametrize("form", ["json", "xml"])
def test_readers_of_the_log_go_on_behind_the_event_that_they_saw_last(tmp_path: Path, form: str, cluster: str) -> None:
    """Whatever numbers the other database gave its transactions: none is read twice, and no new one is missed."""
    for number in range(20):
        enqueue_many([("old", [number])])
    using = connection.alias
    order.catch_up(using)
    eventcounts.catch_up(using)
    page = log.read(limit=15)
    seen, rest = page.events, log.read(after=page.cursor, limit=1000).events
    WebhookRelay.objects.create(pk=1, commit=0, event=Event.objects.order_by("pk")[9].pk)
    if cluster == "other":
        MetricPlace.objects.update(seq=10**12)
        WebhookRelay.objects.update(commit=10**12)
        Event.objects.update(commit_id=F("commit_id") + 40)  # the transactions that come next here have these numbers
        EventCommit.objects.update(txid=F("txid") + 10**9)
        EventCommit.objects.update(txid=F("txid") - 10**9 + 40)
    round_trip(tmp_path, form)
    for number in range(20):
        enqueue_many([("new", [number])])
    found = log.read(after=page.cursor, limit=1000).events
    assert [event["id"] for event in found[: len(rest)]] == [event["id"] for event in rest]
    new = [event for event in found[len(rest) :] if event["type"] == "job.enqueued"]
    assert [event["data"]["job_type"] for event in new] == ["new"] * 20
    assert not {event["id"] for event in seen} & {event["id"] for event in found}
    events = Event.objects.count() - len(seen) - len(rest)
    assert eventcounts.count(using=using) == events, "those from before were counted there"
    assert relay.relayed_up_to(using) is not None
    assert [event.pk for event in order.behind(using, relay.relayed_up_to(using) or order.START)] == list(
        Event.objects.order_by("pk").values_list("pk", flat=True)[10:]
    )


# Between databases, each with processes of its own


def manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments],
        env=environment, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


WORK = """
from django_ojs import enqueue
from django_ojs.client.definition import enqueue_many
from django_ojs.cron import schedules
enqueue_many([("load.note", [n]) for n in range(50)])
enqueue("load.note", 50, delay=1)
schedules.register({"name": "second", "cron": "@every 1s", "type": "load.note", "args": [1000]})
"""
STATE = """
import json
from django_ojs.models import Job, CronSchedule
from django_ojs.events import log
from django_ojs.statistics import counters
types = [event["type"] for event in log.read(limit=1000).events if event["data"].get("job_id")]
print(json.dumps({
    "open": Job.objects.live().exclude(args=[1000]).count(),
    "states": sorted(set(Job.objects.exclude(args=[1000]).values_list("state", flat=True))),
    "runs": CronSchedule.objects.get(pk="second").run_count,
    "enqueued": types.count("job.enqueued"),
}))
"""


@pytest.mark.wide
@pytest.mark.sqlite_too
@pytest.mark.parametrize(
    "way, form",
    [
        ("out", "json"),
        ("in", "xml"),
        pytest.param("out", "jsonl", marks=pytest.mark.mariadb),
        pytest.param("in", "json", marks=pytest.mark.mariadb),
    ],
)
def test_a_worker_does_in_the_other_database_what_was_dumped_in_this(
    child_environment: dict[str, str], tmp_path: Path, way: str, form: str
) -> None:
    """Out: from the database of the tests to a new one of SQLite. In: from a new one to that of the tests."""
    here = child_environment | {
        "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
        "OJS_TEST_LEDGER": str(tmp_path / "ledger"),
    }
    new = here | {"OJS_TEST_DATABASE_URL": f"sqlite:///{tmp_path}/new.sqlite3"}
    manage(new, "migrate", "-v0")
    source, target = (here, new) if way == "out" else (new, here)
    fixture = str(tmp_path / f"site.{form}")
    manage(source, "shell", "-v0", "-c", WORK)
    manage(source, "dumpdata", "django_ojs", "--format", form, "--output", fixture)
    manage(target, "loaddata", fixture, "-v0")
    assert json.loads(manage(target, "shell", "-v0", "-c", STATE))["open"] == 51
    with worker(target, tmp_path / "log"):

        def done() -> dict[str, Any] | None:
            state = json.loads(manage(target, "shell", "-v0", "-c", STATE))
            new = state["enqueued"] - 51  # a reader does not wait for what another process is putting in order
            return state if state["runs"] >= 2 and new >= 2 and not state["open"] else None

        state: dict[str, Any] = eventually(done, f"all is done: {(tmp_path / 'log').read_text()}", timeout=180)
    assert state["states"] == ["completed"]
    ran = [int(line.split()[1]) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert sorted(number for number in ran if number != 1000) == list(range(51))
    assert ran.count(1000) >= 1


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), "ojs_worker"],
            env=environment, cwd=settings.BASE_DIR, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
