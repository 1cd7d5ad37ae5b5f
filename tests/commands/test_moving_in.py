"""What `ojs_moving_in` finds in small code bases, one for each queue."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_ojs.client.otherwords import QUEUES
from django_ojs.management.movingin import find_uses

#: By queue: the files, and of each word where it is and what it becomes; "" where the table does not say that.
TREES = {
    "celery": (
        {
            "shop/celery.py": """\
                from celery import Celery
                from celery.schedules import crontab
                app = Celery("shop")
                app.conf.beat_schedule = {"daily": {"task": "shop.tasks.pay", "schedule": crontab(hour=9)}}
                app.conf.timezone = "Europe/Paris"
                app.conf.update(task_always_eager=True, task_routes={}, worker_pool="solo", **more)
                crontab(0, 9, day_of_month="1-7", day_of_week="mon"), crontab(day_of_month="*/2", day_of_week="mon")
            """,
            "shop/settings.py": """\
                CELERY_TASK_ALWAYS_EAGER: bool = True
                CELERY_ENABLE_UTC = True
                CELERY_REDIS_MAX_CONNECTIONS = 10
                INSTALLED_APPS = ["django.contrib.admin", "django_celery_beat"]
            """,
            "shop/tasks.py": """\
                from celery import chord, shared_task as task
                from celery.contrib.abortable import AbortableTask
                from .celery import app
                @task(bind=True, autoretry_for=(OSError,), queue="payments", shadow="x")
                def pay(self, order):
                    if self.request.retries > 2 and order.status and order.get(1):
                        raise self.retry(countdown=5)
                @app.task
                def mail(to): ...
                def later(orders):
                    return chord([pay.s(one) for one in orders], mail.si("boss"))()
            """,
            "shop/tests.py": """\
                from unittest.mock import patch
                with patch("shop.tasks.pay.delay"), patch("shop.tasks.chord"), patch("shop.other.delay"): ...
            """,
            "shop/views.py": """\
                from shop import tasks
                from shop.tasks import pay
                def view(request, order, status):
                    pay.delay(order.pk)
                    tasks.pay.apply_async((1,), countdown=60, shadow="x")
                    return pay(1), status.get(1), order.s, request.retry
            """,
        },
        [
            ("shop/celery.py:3", "Celery", "nothing: the site's own database"),
            ("shop/celery.py:4", ".beat_schedule", '@job("order.pay", cron="0 9 * * *")'),
            ("shop/celery.py:4", "crontab", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            ("shop/celery.py:5", "app.conf.timezone", "timezone= of a schedule"),
            ("shop/celery.py:6", "task_always_eager=", "the fixture ojs_inline"),
            ("shop/celery.py:6", "task_routes=", "queue= of a handler"),
            ("shop/celery.py:6", "worker_pool=", ""),
            ("shop/celery.py:7", "crontab", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            (
                "shop/celery.py:7", "day_of_month=, day_of_week=",
                "of two days one is enough here; see Days of schedules in docs/coming-from/index.md",
            ),
            ("shop/settings.py:1", "CELERY_TASK_ALWAYS_EAGER", "the fixture ojs_inline"),
            ("shop/settings.py:2", "CELERY_ENABLE_UTC", "nothing: it is always so, or not needed"),
            ("shop/settings.py:3", "CELERY_REDIS_MAX_CONNECTIONS", "nothing: the site's own database"),
            (
                "shop/settings.py:4", '"django_celery_beat"',
                "nothing: remove the app when no job and no migration needs it",
            ),
            ("shop/tasks.py:2", "celery.contrib.abortable.AbortableTask", ""),
            ("shop/tasks.py:4", "@task", '@job("order.pay")'),
            ("shop/tasks.py:4", "autoretry_for=", "retry={…}"),
            ("shop/tasks.py:4", "bind=", "a first parameter context"),
            ("shop/tasks.py:4", "shadow=", ""),
            ("shop/tasks.py:6", ".request", "a first parameter context"),
            ("shop/tasks.py:6", ".retries", "context.attempt, context.is_last_attempt"),
            ("shop/tasks.py:7", ".retry", "raise Retry(after=…)"),
            ("shop/tasks.py:8", "@app.task", '@job("order.pay")'),
            ("shop/tasks.py:11", ".s", "pay.s(17)"),
            ("shop/tasks.py:11", ".si", "pay.s(17)"),
            ("shop/tasks.py:11", "chord", "group(…), batch(…, on_success=…)"),
            ("shop/tests.py:2", '"shop.tasks.chord"', "group(…), batch(…, on_success=…)"),
            ("shop/tests.py:2", '"shop.tasks.pay.delay"', "pay.enqueue(17)"),
            ("shop/views.py:4", ".delay", "pay.enqueue(17)"),
            ("shop/views.py:5", ".apply_async", "pay.options(…).enqueue(17)"),
            ("shop/views.py:5", "countdown=", "delay="),
            ("shop/views.py:5", "shadow=", ""),
        ],
    ),
    "rq": (
        {
            "tasks.py": """\
                import django_rq
                from django_rq import job
                from rq import get_current_job
                @job("payments", timeout=60)
                def pay(order):
                    get_current_job().save_meta()
                def later(mail):
                    pay.delay(17)
                    queue = django_rq.get_queue("payments")
                    queue.enqueue(mail, 17, job_timeout=60, own=True)
                    django_rq.enqueue(mail, 17)
            """,
            "plans.py": """\
                import django_rq, rq
                scheduler = django_rq.get_scheduler("default")
                scheduler.schedule(now, pay, interval=90, repeat=3, queue_name="payments")
                scheduler.cron("0 9 * * *", pay, use_local_timezone=True)
                scheduler.enqueue_at(now, pay, 17)
                scheduler.enqueue_in(later, pay, 17, job_id="x")
                queue.enqueue(pay, retry=rq.Retry(max=3))
            """,
        },
        [
            ("plans.py:2", ".get_scheduler", "the workers: one of them leads"),
            ("plans.py:3", ".schedule", 'cron="@every 90m"'),
            ("plans.py:3", "interval=", 'cron="@every 90m"'),
            ("plans.py:3", "queue_name=", "queue="),
            ("plans.py:3", "repeat=", "nothing: a schedule goes on until it is deleted"),
            ("plans.py:4", ".cron", '@job("order.pay", cron="0 9 * * *")'),
            ("plans.py:4", "use_local_timezone=", "timezone= of a schedule"),
            ("plans.py:5", ".enqueue_at", "pay.options(…).enqueue(17)"),
            ("plans.py:6", ".enqueue_in", "pay.options(…).enqueue(17)"),
            ("plans.py:6", "job_id=", "id=, a UUIDv7"),
            ("plans.py:7", ".Retry", "retry={…}"),
            ("tasks.py:4", "@job", '@job("order.pay")'),
            ("tasks.py:6", ".save_meta", 'context.progress(40, "…", data={…})'),
            ("tasks.py:6", "get_current_job", "a first parameter context"),
            ("tasks.py:8", ".delay", "pay.enqueue(17)"),
            ("tasks.py:9", ".get_queue", "nothing: the site's own database"),
            ("tasks.py:10", ".enqueue", "pay.enqueue(17)"),
            ("tasks.py:10", "job_timeout=", "timeout="),
            ("tasks.py:11", ".enqueue", "pay.enqueue(17)"),
        ],
    ),
    "huey": (
        {
            "tasks.py": """\
                from huey import crontab
                from huey.contrib.djhuey import db_periodic_task, db_task
                @db_task(retries=2)
                def pay(order): ...
                @db_periodic_task(crontab(minute="0"))
                def tidy(): ...
            """,
            "views.py": """\
                from tasks import pay as charge
                charge(17)
                charge.schedule(args=(17,), delay=60)
                charge.call_local(17)
            """,
        },
        [
            ("tasks.py:3", "@db_task", '@job("order.pay")'),
            ("tasks.py:3", "retries=", "retry={…}"),
            ("tasks.py:5", "@db_periodic_task", '@job("order.pay", cron="0 9 * * *")'),
            ("tasks.py:5", "crontab", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            ("views.py:2", "charge(...)", "charge.enqueue(...), if it shall be a job"),
            ("views.py:3", ".schedule", "pay.options(…).enqueue(17)"),
            ("views.py:3", "delay=", "delay="),
            ("views.py:4", ".call_local", "pay(17) runs here and now"),
        ],
    ),
    "dramatiq": (
        {
            "tasks.py": """\
                import dramatiq
                @dramatiq.actor(queue_name="payments", max_retries=3, hair="long")
                def pay(order): ...
                pay.send(17)
                pay.send_with_options(args=(17,), delay=60_000)
                dramatiq.pipeline([pay.message(1)]).run()
            """,
        },
        [
            ("tasks.py:2", "@dramatiq.actor", '@job("order.pay")'),
            ("tasks.py:2", "hair=", ""),
            ("tasks.py:2", "max_retries=", "retry={…}"),
            ("tasks.py:2", "queue_name=", "queue="),
            ("tasks.py:4", ".send", "pay.enqueue(17)"),
            ("tasks.py:5", ".send_with_options", "pay.options(…).enqueue(17)"),
            ("tasks.py:5", "delay=", "delay="),
            ("tasks.py:6", ".message", "pay.s(17)"),
            ("tasks.py:6", ".pipeline", "chain(a.s(), b.s()).enqueue()"),
        ],
    ),
    "procrastinate": (
        {
            "tasks.py": """\
                from procrastinate.contrib.django import app
                @app.periodic(cron="0 9 * * *")
                @app.task(queueing_lock="x", pass_context=True)
                def pay(context, timestamp):
                    return context.should_abort()
                pay.configure(schedule_in={"minutes": 1}).defer(order=1)
            """,
        },
        [
            ("tasks.py:2", "@app.periodic", '@job("order.pay", cron="0 9 * * *")'),
            ("tasks.py:3", "@app.task", '@job("order.pay")'),
            ("tasks.py:3", "pass_context=", "a first parameter context"),
            ("tasks.py:3", "queueing_lock=", "unique="),
            ("tasks.py:5", ".should_abort", "context.is_cancelled"),
            ("tasks.py:6", ".configure", "pay.options(…).enqueue(17)"),
            ("tasks.py:6", ".defer", "pay.enqueue(17)"),
            ("tasks.py:6", "schedule_in=", "delay="),
        ],
    ),
    "tasks": (
        {
            "tasks.py": """\
                from django.tasks import task
                @task(takes_context=True)
                def pay(context, order):
                    return context.attempt
                pay.using(run_after=None).enqueue(17)
            """,
        },
        [
            ("tasks.py:2", "@task", '@job("order.pay")'),
            ("tasks.py:2", "takes_context=", "a first parameter context"),
            ("tasks.py:4", ".attempt", "context.attempt, context.is_last_attempt"),
            ("tasks.py:5", ".enqueue", "pay.enqueue(17)"),
            ("tasks.py:5", ".using", "pay.options(…).enqueue(17)"),
            ("tasks.py:5", "run_after=", "at="),
        ],
    ),
    "q2": (
        {
            "views.py": """\
                from django_q.tasks import async_task, schedule as plan
                from django_q.humanhash import uuid
                async_task("shop.tasks.pay", 17, hook="shop.hooks.done", own=True, task_name="Pay", cluster="slow")
                plan("shop.tasks.tidy")
                Q_CLUSTER = {"name": "x"}
            """,
            "plans.py": """\
                from django_q.models import Schedule
                Schedule.objects.create(func="shop.tasks.pay", schedule_type=Schedule.ONCE)
                Schedule.objects.create(func="shop.tasks.pay", schedule_type=Schedule.DAILY)
                Schedule.objects.create(func="shop.tasks.pay", schedule_type=Schedule.MINUTES)
            """,
            "shop/migrations/0001_plan.py": """\
                from django_q.models import Schedule
                Schedule.objects.get(func="shop.tasks.pay")
            """,
        },
        [
            ("plans.py:2", ".ONCE", "pay.options(…).enqueue(17)"),
            ("plans.py:2", "Schedule", 'register_schedule("pay-17", pay.s(17), cron=…), while the site runs'),
            ("plans.py:3", ".DAILY", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            ("plans.py:3", "Schedule", 'register_schedule("pay-17", pay.s(17), cron=…), while the site runs'),
            ("plans.py:4", ".MINUTES", 'cron="@every 90m"'),
            ("plans.py:4", "Schedule", 'register_schedule("pay-17", pay.s(17), cron=…), while the site runs'),
            (
                "shop/migrations/0001_plan.py:2", "Schedule",
                "nothing in a migration, but it keeps the package; see Migrations in docs/coming-from/index.md",
            ),
            ("views.py:2", "django_q.humanhash.uuid", ""),
            ("views.py:3", "async_task", "pay.enqueue(17)"),
            ("views.py:3", "cluster=", "queue="),
            ("views.py:3", "hook=", "chain(a.s(), b.s()).enqueue()"),
            ("views.py:3", "task_name=", "tags=[…], meta={…}"),
            ("views.py:4", "schedule", 'register_schedule("pay-17", pay.s(17), cron=…), while the site runs'),
            ("views.py:5", "Q_CLUSTER", "nothing: the site's own database"),
        ],
    ),
    "background": (
        {
            "tasks.py": """\
                from background_task import background
                from background_task.models import Task
                @background(schedule=60)
                def pay(order): ...
                pay(17, repeat=Task.DAILY, own="x")
                pay.now(17)
                MAX_ATTEMPTS = 3
            """,
            "other.py": "def pay(order): ...\npay(17)\n",
        },
        [
            ("tasks.py:3", "@background", '@job("order.pay")'),
            ("tasks.py:3", "schedule=", "pay.options(…).enqueue(17)"),
            ("tasks.py:5", ".DAILY", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            ("tasks.py:5", "Task", "django_ojs.models.Job"),
            ("tasks.py:5", "pay(...)", "pay.enqueue(...), if it shall be a job"),
            ("tasks.py:5", "repeat=", '@job("order.pay", cron="0 9 * * *")'),
            ("tasks.py:6", ".now", "pay(17) runs here and now"),
            ("tasks.py:7", "MAX_ATTEMPTS", 'OJS["RETRY"]'),
        ],
    ),
    "scheduler": (
        {
            "jobs.py": """\
                from apscheduler.schedulers.background import BackgroundScheduler
                from apscheduler.triggers.cron import CronTrigger
                scheduler = BackgroundScheduler()
                scheduler.add_job(print, CronTrigger.from_crontab("0 9 * * *"), max_instances=1)
                @scheduler.scheduled_job("interval", minutes=5)
                def tidy(): ...
                scheduler.add_job(print, "cron", day="1-7", day_of_week="mon", coalesce=True, end_date=None)
                @scheduler.scheduled_job("cron", day=13, day_of_week=4)
                def friday(): ...
                [scheduler.modify_job(one.id) for one in scheduler.get_jobs()]
            """,
        },
        [
            ("jobs.py:3", "BackgroundScheduler", "the workers: one of them leads"),
            ("jobs.py:4", ".add_job", '@job("order.pay", cron="0 9 * * *")'),
            ("jobs.py:4", "CronTrigger", 'cron="0 9 * * *", with timezone= if it was not read in UTC'),
            (
                "jobs.py:4", "max_instances=",
                'rate_limit={"key": …, "concurrency": 1}; in a handler with lock("x", timeout="10m")',
            ),
            ("jobs.py:5", "@scheduler.scheduled_job", '@job("order.pay", cron="0 9 * * *")'),
            ("jobs.py:7", ".add_job", '@job("order.pay", cron="0 9 * * *")'),
            ("jobs.py:7", "coalesce=", "nothing: it is always so, or not needed"),
            (
                "jobs.py:7", "day=, day_of_week=",
                "of two days one is enough here; see Days of schedules in docs/coming-from/index.md",
            ),
            ("jobs.py:7", "end_date=", "nothing: a schedule goes on until it is deleted"),
            ("jobs.py:8", "@scheduler.scheduled_job", '@job("order.pay", cron="0 9 * * *")'),
            (
                "jobs.py:8", "day=, day_of_week=",
                "of two days one is enough here; see Days of schedules in docs/coming-from/index.md",
            ),
            ("jobs.py:10", ".get_jobs", "ojs_cron list"),
            (
                "jobs.py:10", ".modify_job",
                'register_schedule("pay-17", pay.s(17), cron=…), while the site runs',
            ),
        ],
    ),
}  # fmt: skip


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 16) for line in text.splitlines()))
    return folder


def moving_in(*arguments: object) -> list[str]:
    out = StringIO()
    call_command("ojs_moving_in", *map(str, arguments), stdout=out)
    return out.getvalue().splitlines()


def test_there_is_a_tree_for_each_queue() -> None:
    assert TREES.keys() == QUEUES.keys()


@pytest.mark.parametrize("queue", TREES)
def test_what_a_code_base_uses_and_what_it_becomes(queue: str, tmp_path: Path) -> None:
    files, expected = TREES[queue]
    uses, unread = find_uses(written(tmp_path, files))
    assert [(f"{use.path}:{use.line}", use.word, use.ours) for use in uses] == expected
    assert {use.queue for use in uses} == {queue}
    assert unread == []


def test_the_command_names_the_page_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "from celery import shared_task\n@shared_task(shadow='x')\ndef pay(): ...\n",
                       "b.py": "def broken(:\n"})  # fmt: skip
    first, use, unknown, unread, last = moving_in(tmp_path)
    assert first == "Celery: docs/coming-from/celery.md"
    assert (use, unknown) == (
        '  a.py:2: @shared_task -> @job("order.pay")',
        "  a.py:2: shadow= -> not in the table of words; the page may know it",
    )
    assert unread.startswith("Not read: b.py: invalid syntax")
    assert last == "Uses: 2. Files: 1. Not in the table of words: 1."


def test_a_word_without_its_queue_is_no_use(tmp_path: Path) -> None:
    """`delay` and `shared_task` are names like others where nobody imports another queue."""
    written(tmp_path, {"a.py": "from .celery import shared_task, app\n@shared_task\ndef pay(): ...\npay.delay(1)\n"})
    assert moving_in(tmp_path) == ["Uses: 0. Files: 0. Not in the table of words: 0."]


def test_environments_and_hidden_folders_are_left_out_and_one_file_is_enough(tmp_path: Path) -> None:
    text = "from celery import shared_task\n@shared_task\ndef pay(): ...\n"
    folders = (".tox", "env", "node_modules", "site-packages")
    written(tmp_path, {"a.py": text, "env/pyvenv.cfg": "", **{f"{name}/a.py": text for name in folders}})
    assert len(find_uses(tmp_path)[0]) == 1
    assert [use.path for use in find_uses(tmp_path / "a.py")[0]] == ["a.py"]


def test_what_is_read_is_not_run(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": f"import celery\nopen({str(tmp_path / 'run')!r}, 'w')\n"})
    moving_in(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file or directory"):
        moving_in(tmp_path / "nothing")


def test_every_page_that_is_named_is_there() -> None:
    pages = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
    assert [queue.page for queue in QUEUES.values() if not (pages / f"{queue.page}.md").exists()] == []
