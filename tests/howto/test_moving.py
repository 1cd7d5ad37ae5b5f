"""What docs/coming-from says to do with jobs that wait in another queue: they wait here afterwards, and not there.

The other packages are not here. What a block uses of one is played by a few rows, in the shapes that it has there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs.cron.runs import trigger
from django_ojs.models import CronSchedule, Job
from django_ojs.rules.cron import parse_expression
from tests.howto.pages import Reader
from tests.howto.test_pages import PAYMENTS
from tests.tasks.api import task

pytestmark = pytest.mark.django_db

AT = dt.datetime(2030, 1, 2, 3, 4, tzinfo=dt.UTC)


class Rows(list[Any]):
    """As much of a manager and its querysets as the pages use."""

    def __init__(self, *rows: Any, source: Rows | None = None) -> None:
        super().__init__(rows)
        self._source = self if source is None else source

    def filter(self, **wanted: Any) -> Rows:
        def fits(row: Any, name: str, value: Any) -> bool:
            is_in = name.endswith("__in")
            found = getattr(row, name.removesuffix("__in"))
            return bool(found in value if is_in else found == value)

        found = [row for row in self if all(fits(row, name, value) for name, value in wanted.items())]
        return Rows(*found, source=self._source)

    def exclude(self, **unwanted: Any) -> Rows:
        out = self.filter(**unwanted)
        return Rows(*(row for row in self if row not in out), source=self._source)

    def select_related(self, *names: str) -> Rows:
        return self.filter()

    def all(self) -> Rows:
        return self.filter()

    def select_for_update(self) -> Rows:
        return self.filter()

    def values_list(self, name: str, *, flat: bool) -> list[Any]:
        assert flat
        return [getattr(row, name) for row in self]

    def first(self) -> Any:
        return self[0] if self else None

    def delete(self) -> tuple[int, dict[str, int]]:
        for row in list(self):
            self._source.remove(row)
        return len(self), {}


def rows(*given: dict[str, Any]) -> Rows:
    """Rows that can be deleted, numbered from 1."""
    found = Rows()
    for number, members in enumerate(given, 1):
        row = SimpleNamespace(pk=number, id=number, **members)
        row.delete = lambda row=row: found.remove(row)
        found.append(row)
    return found


@pytest.fixture
def page(reader: Reader) -> Reader:
    reader.module("shop/payments.py", PAYMENTS)
    return reader


def moved() -> list[tuple[Any, ...]]:
    found = Job.objects.order_by("pk").values_list("type", "args", "state", "due_at")
    return [(*job, due if job[2] == "scheduled" else None) for *job, due in found]


#: The arguments of `pay(17, cents=990)`.
BY_NAME = [17, {"$kwargs": {"cents": 990}}]
PAID = ("order.pay", BY_NAME, "available", None)
LATER = ("order.pay", BY_NAME, "scheduled", AT)


def read(reader: Reader, name: str) -> None:
    reader.read(f"coming-from/{name}")
    Job.objects.all().delete()


def test_celery(page: Reader) -> None:
    def waits(name: str, key: str) -> dict[str, Any]:
        return {
            "eta": AT.isoformat(),
            "request": {"id": key, "name": name, "args": [17], "kwargs": {"cents": 990}},
        }  # fmt: skip

    revoked: list[str] = []
    scheduled = {"celery@one": [waits("shop.tasks.pay", "a"), waits("shop.tasks.other", "b")], "celery@two": []}
    control = SimpleNamespace(inspect=lambda: SimpleNamespace(scheduled=lambda: scheduled), revoke=revoked.append)
    read(page, "celery")
    plan = {"task": "shop.tasks.pay", "enabled": True, "one_off": False, "args": "[17]", "kwargs": '{"cents": 990}'}
    plan |= {"description": "", "interval": None, "crontab": None, "clocked": None}
    daily = SimpleNamespace(
        minute="0", hour="7", day_of_month="*", month_of_year="*", day_of_week="*", timezone="Europe/Paris"
    )
    odd_mondays = SimpleNamespace(**{**vars(daily), "day_of_month": "*/2", "day_of_week": "mon"})
    first_monday = SimpleNamespace(**{**vars(odd_mondays), "day_of_month": "1-7"})
    plans = rows(
        {**plan, "name": "Pay: daily", "crontab": daily},
        {**plan, "name": "odd Mondays", "crontab": odd_mondays},
        {**plan, "name": "first Monday", "crontab": first_monday},
        {**plan, "name": "other", "task": "shop.tasks.other", "crontab": daily},
        {**plan, "name": "tonight", "one_off": True, "crontab": daily},
        {**plan, "name": "later", "one_off": True, "clocked": SimpleNamespace(clocked_time=AT)},
        {**plan, "name": "over", "one_off": True, "clocked": SimpleNamespace(clocked_time=AT), "enabled": False},
    )
    beat = {"PeriodicTask": SimpleNamespace(objects=plans)}
    page.install({
        "celery": {"current_app": SimpleNamespace(control=control)}, "django_celery_beat": {},
        "django_celery_beat.models": beat,
    })  # fmt: skip
    page.move("coming-from/celery")
    assert (moved(), revoked) == ([LATER, LATER], ["a"])
    made = CronSchedule.objects.filter(timezone="Europe/Paris").order_by("name").values_list("name", "expression")
    assert list(made) == [("odd-mondays", "0 7 */2 * mon"), ("pay-daily", "0 7 * * *")]
    assert [one.name for one in plans] == ["first Monday", "other", "tonight", "over"]


@pytest.mark.parametrize(
    "expression, days",
    [
        ("0 9 * * 1#1", range(1, 8)), ("0 9 * * 1#2", range(8, 15)),
        ("0 9 * * 1#1,1#3", [*range(1, 8), *range(15, 22)]), ("0 9 */2 * mon", range(1, 32, 2)),
    ],
)  # fmt: skip
def test_days_of_celery_that_have_to_fit_both(expression: str, days: Sequence[int]) -> None:
    """The expressions that docs/coming-from/index.md gives for Mondays that are among some days of the month."""
    schedule, at = parse_expression(expression), AT
    fired = [at := schedule.next_after(at).at for _ in range(40)]
    year = (AT.date() + dt.timedelta(number) for number in range(3000))
    assert [one.date() for one in fired] == [day for day in year if day.day in days and day.weekday() == 0][:40]


def test_django_q2(page: Reader, settings: Any) -> None:
    """Schedules keep their arguments, those by name too, and their hours, which are the site's."""
    settings.TIME_ZONE = "Europe/Paris"
    pays = {"func": "shop.tasks.pay", "args": "(17, 990)", "kwargs": None, "next_run": AT, "repeats": -1}
    schedules = rows(
        {**pays, "args": "17", "kwargs": "{'cents': 990}", "schedule_type": "O"},
        {**pays, "func": "shop.tasks.other", "schedule_type": "O"}, {**pays, "schedule_type": "C", "cron": "0 7 * * *"},
        {**pays, "schedule_type": "I", "minutes": 15}, {**pays, "schedule_type": "H"},
        {**pays, "args": "17", "kwargs": "{'cents': 990}", "schedule_type": "D"}, {**pays, "schedule_type": "W"},
        {**pays, "func": "shop.tasks.other", "schedule_type": "D"}, {**pays, "schedule_type": "O", "repeats": 0},
        {**pays, "schedule_type": "D", "repeats": 3},
    )  # fmt: skip
    tasks = page.module("shop/tasks.py", "def pay(order_id, cents): ...")
    queued = rows(
        {"func": lambda: "shop.tasks.pay", "args": lambda: (17,), "kwargs": lambda: {"cents": 990}},
        {"func": lambda: "shop.tasks.other", "args": lambda: (), "kwargs": dict},
        {"func": lambda: tasks.pay, "args": lambda: (17,), "kwargs": lambda: {"cents": 990}},
    )
    read(page, "django-q2")
    kinds = SimpleNamespace(
        ONCE="O", CRON="C", MINUTES="I", HOURLY="H", DAILY="D", WEEKLY="W", MONTHLY="M", objects=schedules
    )
    names = {"Schedule": kinds, "OrmQ": SimpleNamespace(objects=queued)}
    page.install({"django_q": {}, "django_q.models": names})
    page.move("coming-from/django-q2")
    assert moved() == [LATER, PAID, PAID]
    assert (len(schedules), len(queued)) == (4, 1)
    made = CronSchedule.objects.filter(name__startswith="pay-").order_by("name")
    assert list(made.values_list("name", "expression")) == [
        ("pay-3", "0 7 * * *"), ("pay-4", "@every 15m"), ("pay-5", "4 * * * *"), ("pay-6", "4 4 * * *"),
        ("pay-7", "4 4 * * 3"),
    ]  # fmt: skip
    assert set(made.values_list("timezone", flat=True)) == {"Europe/Paris"}
    fired = [trigger(name)[1]["id"] for name in ("pay-3", "pay-6")]
    assert [Job.objects.get(pk=key).args for key in fired] == [[17, 990], BY_NAME]


@pytest.mark.parametrize("utc", [True, False])
def test_huey(page: Reader, settings: Any, utc: bool) -> None:
    settings.TIME_ZONE = "Europe/Paris"
    eta = AT.replace(tzinfo=None) if utc else AT.replace(tzinfo=None) + dt.timedelta(hours=1)

    def waits(name: str = "pay", **members: Any) -> SimpleNamespace:
        return SimpleNamespace(name=name, args=(17,), kwargs={"cents": 990, "task": None}, **{"eta": None} | members)

    gone = waits()
    flushed: list[str] = []
    storage = SimpleNamespace(
        flush_queue=lambda: flushed.append("queue"), flush_schedule=lambda: flushed.append("schedule")
    )
    huey = SimpleNamespace(
        pending=lambda: [waits(), waits("other"), gone], scheduled=lambda: [waits(eta=eta)], utc=utc,
        is_revoked=lambda one: one is gone, storage=storage,
    )  # fmt: skip
    read(page, "huey")
    page.install({"huey": {}, "huey.contrib": {}, "huey.contrib.djhuey": {"HUEY": huey}})
    page.move("coming-from/huey")
    assert (moved(), flushed) == ([PAID, LATER], ["queue", "schedule"])


def test_procrastinate(page: Reader) -> None:
    both = {"status": "todo", "args": {"order_id": 17, "cents": 990}, "scheduled_at": AT, "priority": 5}
    waiting = rows({"task_name": "shop.tasks.pay", **both}, {"task_name": "shop.tasks.pay", **both})
    manager = SimpleNamespace(cancel_job_by_id=lambda number: number == 1)  # a worker was faster with the other
    contrib = "procrastinate.contrib"
    read(page, "procrastinate")
    page.install({
            "procrastinate": {}, contrib: {}, f"{contrib}.django": {"app": SimpleNamespace(job_manager=manager)},
            f"{contrib}.django.models": {"ProcrastinateJob": SimpleNamespace(objects=waiting)},
        })  # fmt: skip
    page.move("coming-from/procrastinate")
    assert moved() == [("order.pay", [{"$kwargs": {"order_id": 17, "cents": 990}}], "scheduled", AT)]
    assert Job.objects.get().priority == 5


def test_rq(page: Reader) -> None:
    jobs = {
        "a": SimpleNamespace(func_name="shop.tasks.pay", args=(17,), kwargs={"cents": 990}),
        "b": SimpleNamespace(func_name="shop.tasks.other", args=(), kwargs={}),
    }
    jobs["a"].delete = lambda: jobs.pop("a")
    other = {"func_name": "shop.tasks.pay", "args": (17,), "kwargs": {"cents": 990}, "id": "c"}
    times = [
        (SimpleNamespace(**other, meta={}), AT.replace(tzinfo=None)),
        (SimpleNamespace(**other, meta={"cron_string": "0 7 * * *"}), AT.replace(tzinfo=None)),
        (SimpleNamespace(**other, meta={"interval": 60, "repeat": 3}), AT.replace(tzinfo=None)),
    ]
    stopped: list[Any] = []
    scheduler = SimpleNamespace(get_jobs=lambda *, with_times: times, cancel=stopped.append)
    removed: list[str] = []
    registry = SimpleNamespace(
        get_job_ids=lambda: list(jobs), get_scheduled_time=lambda key: AT, remove=removed.append
    )  # fmt: skip
    read(page, "rq")
    page.install({
            "django_rq": {
                "get_queue": lambda name: SimpleNamespace(connection=name), "get_scheduler": lambda name: scheduler,
            },
            "rq": {}, "rq.job": {"Job": SimpleNamespace(fetch=lambda key, connection: jobs[key])},
            "rq.registry": {"ScheduledJobRegistry": lambda queue: registry},
        })  # fmt: skip
    page.move("coming-from/rq")
    assert (moved(), removed, list(jobs)) == ([LATER, LATER], ["a"], ["b"])
    assert stopped == [times[0][0]]


@task(backend="immediate")
def remind(order_id: int, *, copy_to: str = "") -> None: ...


def test_django_tasks_db(reader: Reader) -> None:
    """Its settings are right, and what waits keeps its arguments by name, its queue and its priority."""
    from django_ojs.tasks.task import BaseTaskBackend

    class DatabaseBackend(BaseTaskBackend):
        def enqueue(self, *args: Any) -> Any:
            raise AssertionError("a task went to the old backend")

    results = rows(
        {"status": "READY", "task": remind, "args_kwargs": {"args": [17], "kwargs": {"copy_to": "a@b.c"}}},
        {"status": "SUCCESSFUL", "task": remind, "args_kwargs": {"args": [1], "kwargs": {}}},
    )
    names = {"DatabaseBackend": DatabaseBackend}
    models = {"DBTaskResult": SimpleNamespace(objects=results)}
    reader.install({"django_tasks_db": names, "django_tasks_db.models": models})
    reader.read("coming-from/django-tasks-db").move("coming-from/django-tasks-db")
    assert moved() == [(f"{__name__}.remind", [17, {"$kwargs": {"copy_to": "a@b.c"}}], "available", None)]
    assert [row.status for row in results] == ["SUCCESSFUL"]


def test_apscheduler(page: Reader) -> None:
    jobs = rows({"next_run_time": AT}, {"next_run_time": AT}, {"next_run_time": None})
    jobs[0].id, jobs[1].id, jobs[2].id = "pay-17", "other", "pay-17"  # the last is paused
    read(page, "apscheduler")
    page.install({"django_apscheduler.models": {"DjangoJob": SimpleNamespace(objects=jobs)}})
    page.move("coming-from/apscheduler")
    assert moved() == [("order.pay", [17, 990], "scheduled", AT)]
    assert [row.next_run_time for row in jobs] == [AT, None]


def test_django_background_tasks(page: Reader) -> None:
    def waits(name: str, repeat: int = 0) -> dict[str, Any]:
        return {"task_name": name, "repeat": repeat, "run_at": AT, "params": lambda: ([17], {"cents": 990})}

    tasks = rows(waits("shop.tasks.pay"), waits("shop.tasks.pay", 3600), waits("shop.tasks.other"))
    read(page, "django-background-tasks")
    page.install({"background_task.models": {"Task": SimpleNamespace(objects=tasks)}})
    page.move("coming-from/django-background-tasks")
    assert (moved(), len(tasks)) == ([LATER], 2)
