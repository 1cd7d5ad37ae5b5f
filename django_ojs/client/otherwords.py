"""The words of other queues (Celery, RQ, huey, dramatiq, Procrastinate, ...), and ours for each.

`SECTIONS` is the one table of them. Errors name our word where a developer writes another one (`OtherWords`), the page
`docs/coming-from/words.md` shows them side by side, and `manage.py ojs_moving_in` finds them in a code base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple


class OtherQueue(NamedTuple):
    """Another queue: its name, its page below docs/coming-from, its packages, and how its settings begin."""

    name: str
    page: str
    packages: frozenset[str]
    settings: tuple[str, ...]


def _queue(name: str, page: str, packages: str, settings: str = "") -> OtherQueue:
    return OtherQueue(name, page, frozenset(packages.split()), tuple(settings.split()))


QUEUES = {
    "celery": _queue("Celery", "celery", "celery django_celery_beat django_celery_results redbeat kombu", "CELERY_"),
    "rq": _queue("RQ", "rq", "rq django_rq rq_scheduler", "RQ_"),
    "huey": _queue("huey", "huey", "huey", "HUEY"),
    "dramatiq": _queue("dramatiq", "dramatiq", "dramatiq django_dramatiq periodiq dramatiq_abort", "DRAMATIQ_"),
    "procrastinate": _queue("Procrastinate", "procrastinate", "procrastinate", "PROCRASTINATE_"),
    "tasks": _queue("Django's Tasks", "django-tasks-db", "django_tasks django_tasks_db"),
    "q2": _queue("django-q2", "django-q2", "django_q", "Q_CLUSTER"),
    "background": _queue(
        "django-background-tasks", "django-background-tasks", "background_task", "BACKGROUND_TASK_"
    ),
    "scheduler": _queue("APScheduler", "apscheduler", "apscheduler django_apscheduler", "APSCHEDULER_"),
}  # fmt: skip


class Row(NamedTuple):
    """What one does with a queue: our word, and by the names of `QUEUES` those of others, as Markdown.

    `errors` has the words that an error answers: by the place where a developer writes them, and by what to write
    instead.
    """

    ours: str
    theirs: Mapping[str, str]
    errors: Mapping[str, Mapping[str, str]]


#: Where words of others are answered: on a handler (and what `.options()` returns), a prepared job (`.s()`), a workflow
#: that is not enqueued yet, the handle of a job or a workflow, a handler's context, and this package; and options.
PLACES = ("handler", "prepared", "workflow", "handle", "context", "module", "option")

_ENQUEUE = ".enqueue(...)"
_OPTIONS = ".options(delay=..., queue=...).enqueue(...)"
_COMMIT = ".enqueue(...), which is part of the open transaction"
_CALL = "a plain call, handler(...)"
_PREPARED = "handler.enqueue(...), or enqueue_many([handler.s(...)])"
_CHAIN = "chain(first.s(...), second.s(...)).enqueue()"
_MANY = "enqueue_many([handler.s(...), ...])"
_FAILURE = "batch(handler.s(...), on_failure=other.s()).enqueue()"
_JOB = '@job("order.pay") above the function'
_GET_JOB = "get_job(id)"
_PROGRESS = "context.progress(percent, message)"
_SCHEDULE = '@job("order.pay", cron="0 9 * * *")'


def _row(ours: str, errors: Mapping[str, Mapping[str, str]] | None = None, **theirs: str) -> Row:
    return Row(ours, theirs, errors or {})


#: By the heading of a part of the page.
SECTIONS: dict[str, tuple[Row, ...]] = {
    "Handlers and calls": (
        _row(
            '`@job("order.pay")`', celery="`@shared_task`, `@app.task`", rq="a function, `@job`",
            huey="`@task`, `@db_task`", dramatiq="`@actor`", procrastinate="`@app.task`", tasks="`@task`",
            q2="a function", background="`@background`",
            errors={"module": {_JOB: "shared_task task db_task actor background app"}},
        ),
        _row(
            "`pay.enqueue(17)`", celery="`delay`, `send_task`", rq="`delay`, `enqueue`, `enqueue_call`",
            huey="`pay(17)`",
            dramatiq="`send`", procrastinate="`defer`, `configure_task`", tasks="`enqueue`",
            q2="`async_task`, `AsyncTask`", background="`pay(17)`",
            errors={
                "handler": {_ENQUEUE: "delay send defer"}, "prepared": {_PREPARED: "delay send enqueue"},
                "workflow": {_ENQUEUE: "delay run apply"},
                "module": {"handler.enqueue(...)": "async_task send_task"},
            },
        ),
        _row("`await pay.aenqueue(17)`", procrastinate="`defer_async`", tasks="`aenqueue`",
             errors={"handler": {"await .aenqueue(...)": "defer_async"}}),
        _row(
            "`pay.options(…).enqueue(17)`", celery="`apply_async`, `ClockedSchedule`", rq="`enqueue_in`, `enqueue_at`",
            huey="`schedule`",
            dramatiq="`send_with_options`", procrastinate="`configure`", tasks="`using`", background="`schedule=`",
            scheduler="`DateTrigger`", q2="`Schedule.ONCE`, `q_options=`",
            errors={
                "handler": {
                    _OPTIONS: "apply_async send_with_options", ".options(delay=...).enqueue(...)": "enqueue_in",
                    ".options(at=...).enqueue(...)": "enqueue_at",
                    ".options(delay=...).enqueue(...), or at=": "schedule", ".options(...)": "configure using",
                },
                "prepared": {_PREPARED: "apply_async", "handler.options(...).s(...)": "set"},
                "workflow": {_ENQUEUE: "apply_async"},
            },
        ),
        _row(
            "part of the open transaction, always", celery="`delay_on_commit`, `apply_async_on_commit`",
            rq="`COMMIT_MODE` of django-rq", huey="`on_commit_task`", procrastinate="the same",
            errors={"handler": {_COMMIT: "delay_on_commit apply_async_on_commit"}},
        ),
        _row(
            "`pay(17)` runs here and now", celery="`apply`, `run`", huey="`call_local`", dramatiq="`fn`",
            tasks="`call`, `acall`", background="`now`",
            errors={"handler": {_CALL: "apply run call_local call acall now", ".handler": "fn"},
                    "prepared": {_CALL: "apply"}},
        ),
        _row(
            "`pay.s(17)`", celery="`s`, `si`, `signature`, `subtask`, `Signature`", huey="`s`",
            dramatiq="`message`, `message_with_options`",
            errors={
                "handler": {".s(...)": "si signature subtask message", ".options(...).s(...)": "message_with_options"},
                "workflow": {"the workflow itself": "s"}, "module": {"handler.s(...)": "signature subtask"},
            },
        ),
        _row(
            "`enqueue_many([pay.s(1), …])`", celery="`starmap`, `chunks`, `map`", rq="`enqueue_many`", huey="`map`",
            procrastinate="`batch_defer`", q2="`async_iter`, `Iter`",
            errors={"handler": {_MANY: "starmap chunks map batch_defer"}, "module": {_MANY: "chunks async_iter"}},
        ),
        _row(
            "`get_job(id)`", celery="`AsyncResult`", rq="`fetch`, `fetch_job`", huey="`result`",
            tasks="`get_result`",
            q2="`fetch`, `result`",
            errors={"handler": {_GET_JOB: "AsyncResult get_result"}, "module": {_GET_JOB: "AsyncResult fetch result"}},
        ),
        _row("`get_workflow(id)`", celery="`GroupResult`", q2="`fetch_group`, `result_group`"),
    ),
    "Workflows": (
        _row(
            "`chain(a.s(), b.s()).enqueue()`", celery="`chain`, `link`, `set` of a signature is `.options()`",
            rq="`depends_on`, `on_success`", huey="`then`, `pipeline`", dramatiq="`pipeline`, `pipe`",
            q2="`hook`, `async_chain`, `Chain`",
            errors={"prepared": {_CHAIN: "then link pipe"}, "module": {_CHAIN: "pipeline async_chain"}},
        ),
        _row(
            "`group(…)`, `batch(…, on_success=…)`", celery="`group`, `chord`", rq="`Group`", huey="`group`, `chord`",
            dramatiq="`group`, `add_completion_callback`", q2="`async_iter`, `group=`",
            errors={"module": {"batch(first.s(...), second.s(...), on_success=then.s(...)).enqueue()": "chord"}},
        ),
        _row(
            "`on_failure=` of a batch", celery="`link_error`, `on_error`", rq="`on_failure`", huey="`error`",
            dramatiq="`on_failure`, `on_retry_exhausted`",
            errors={"prepared": {_FAILURE: "link_error on_error error"}},
        ),
        _row('`callback_type={"step": "on_complete"}`', celery="`allow_failure` of other packages",
             rq="`Dependency(allow_failure=True)`"),
    ),
    "Inside a handler": (
        _row(
            "a first parameter `context`", celery="`bind=True`, `request`, `current_task`", rq="`get_current_job()`",
            huey="`context=True`", dramatiq="`CurrentMessage`", procrastinate="`pass_context=True`, `JobContext`",
            tasks="`takes_context=True`, `task_result`, `TaskContext`",
            errors={
                "handler": {"a first parameter, context": "request"},
                "context": {".id, .attempt, .meta": "request", ".id, .attempt, .job": "task_result"},
                "module": {"a first parameter of the handler, context": "current_task get_current_job CurrentMessage"},
            },
        ),
        _row(
            "`context.attempt`, `context.is_last_attempt`", celery="`request.retries`, `MaxRetriesExceededError`",
            rq="`retries_left`",
            huey="`task.retries`", dramatiq="`retries`", procrastinate="`attempts`", tasks="`attempt`",
            errors={"context": {".attempt, or .is_last_attempt": "retries", ".attempt": "attempts"}},
        ),
        _row(
            "`raise Retry(after=…)`", celery="`retry`, `Retry`", huey="`RetryTask`", dramatiq="`Retry`",
            errors={"handler": {"raise Retry(after=...)": "retry"}, "context": {"raise Retry(after=...)": "retry"},
                    "module": {"raise Retry(after=...)": "RetryTask"}},
        ),
        _row(
            "`raise Fail(…)`, `raise Discard(…)`", celery="`Reject`, `Ignore`, `throws=`", huey="`CancelExecution`",
            procrastinate="`JobAborted`, `abort`", background="`InvalidTaskError`",
            errors={
                "context": {"raise Discard(...)": "abort"},
                "module": {"raise Fail(...), or raise Discard(...)": "Reject Ignore CancelExecution JobAborted"},
            },
        ),
        _row(
            "`context.progress(40, \"…\", data={…})`", celery="`update_state`", rq="`save_meta`",
            errors={"handler": {_PROGRESS: "update_state"},
                    "context": {".progress(percent, message)": "update_state", ".progress(...)": "save_meta"}},
        ),
        _row("`context.is_cancelled`", celery="`is_aborted`", dramatiq="`abort_requested`, `Abort`",
             procrastinate="`should_abort`", errors={"context": {".is_cancelled": "should_abort is_aborted"}}),
        _row("enqueue the other job, and return", celery="`replace`",
             errors={"context": {"other.enqueue(...), and return": "replace"}}),
    ),
    "Handles": (
        _row(
            "`handle.wait(5).result`", celery="`get`, `collect`, `info`", rq="`return_value`, `latest_result`",
            huey="`result(blocking=True)`, `get`", dramatiq="`get_result`", q2="`result(wait=)`",
            errors={"handle": {
                ".wait(timeout).result, or .wait(timeout).jobs of a workflow": "get collect",
                ".wait(timeout).result": "get_result", ".refresh().result": "return_value",
                ".result, .error, or .envelope for the progress": "info",
            }},
        ),
        _row(
            "`handle.refresh().state`", celery="`status`, `ready`, `successful`, `failed`", rq="`get_status`",
            tasks="`status`",
            errors={"handle": {
                ".refresh().is_finished": "ready", '.refresh().state == "completed"': "successful",
                '.refresh().state == "discarded"': "failed", ".state": "status", ".refresh().state": "get_status",
            }},
        ),
        _row("`handle.error`", celery="`traceback`", rq="`exc_info`", tasks="`errors`", background="`last_error`",
             errors={"handle": {'.error["backtrace"]': "traceback", ".error": "exc_info"}}),
        _row(
            "`handle.cancel()`", celery="`revoke`", rq="`cancel`, `send_stop_job_command`",
            huey="`revoke`, `revoke_by_id`, `revoke_all`",
            dramatiq="`abort`", procrastinate="`cancel_job_by_id`",
            errors={"handler": {"get_job(id).cancel()": "revoke"}, "handle": {".cancel()": "revoke abort"}},
        ),
        _row("`handle.retry()`", rq="`requeue`", huey="`reschedule`", procrastinate="`retry_job`",
             errors={"handle": {".retry()": "requeue", ".cancel(), and enqueue another job": "reschedule"}}),
        _row("`handle.id`", celery="`task_id`", rq="`job_id`", huey="`id`", dramatiq="`message_id`", tasks="`id`",
             errors={"handle": {".id": "task_id job_id message_id"}}),
        _row(
            "`django_ojs.models.Job`", celery="`TaskResult`", rq="`Job`", dramatiq="`Task`", tasks="`DBTaskResult`",
            procrastinate="`ProcrastinateJob`",
            q2="`Task`, `Success`, `Failure`, `OrmQ`", background="`Task`, `CompletedTask`",
            scheduler="`DjangoJob`, `DjangoJobExecution`",
        ),
        _row("`handle.jobs` of a workflow", celery="`children`", rq="`get_jobs()`",
             errors={"handle": {".jobs of a workflow": "children"}}),
        _row("`result_ttl=0`", celery="`forget`, `ignore_result=`", rq="`result_ttl`",
             q2="`save=False`",
             errors={"handle": {"result_ttl= of the handler, or where you enqueue": "forget"}}),
    ),
    "Options": (
        _row("`delay=`", celery="`countdown=`", procrastinate="`schedule_in=`", huey="`delay=`",
             dramatiq="`delay=` in milliseconds", errors={"option": {"delay": "countdown schedule_in"}}),
        _row("`at=`", celery="`eta=`", huey="`eta=`", procrastinate="`schedule_at=`", tasks="`run_after=`",
             background="`run_at=`", scheduler="`run_date=`",
             errors={"option": {"at": "eta schedule_at run_after run_at"}}),
        _row("`expires_at=`, `enqueue_ttl=`", celery="`expires=`", huey="`expires=`", rq="`ttl=`",
             dramatiq="`max_age=`", scheduler="`misfire_grace_time=`",
             errors={"option": {"expires_at": "expires", "enqueue_ttl": "ttl"}}),
        _row("`queue=`", celery="`routing_key=`", rq="`queue_name=`", dramatiq="`queue_name=`", tasks="`queue_name=`",
             q2="`cluster=`", errors={"option": {"queue": "queue_name routing_key"}}),
        _row("`priority=`", rq="`at_front=`", errors={"option": {"priority": "at_front"}}),
        _row("`timeout=`", celery="`time_limit=`, `soft_time_limit=`", rq="`job_timeout=`", dramatiq="`time_limit=`",
             errors={"option": {"timeout": "time_limit soft_time_limit job_timeout"}}),
        _row(
            "`retry={…}`", celery="`max_retries=`, `autoretry_for=`, `dont_autoretry_for=`, `default_retry_delay=`, "
            "`retry_backoff=`, `retry_backoff_max=`, `retry_jitter=`, `retry_kwargs=`",
            rq="`Retry`", huey="`retries=`, `retry_delay=`, `retry_backoff=`", procrastinate="`RetryStrategy`",
            dramatiq="`max_retries=`, `min_backoff=`, `max_backoff=`, `throws=`",
            errors={"option": {"retry": "retries max_retries autoretry_for retry_backoff retry_delay min_backoff "
                                        "max_backoff"}},
        ),
        _row("`retry_if=`", dramatiq="`retry_when=`", errors={"option": {"retry_if": "retry_when"}}),
        _row("`unique=`", procrastinate="`queueing_lock=`", background="`remove_existing_tasks=`, `TaskSchedule`",
             errors={"option": {"unique": "queueing_lock"}}),
        _row("`Duplicate`, of `unique=`", procrastinate="`AlreadyEnqueued`"),
        _row('`rate_limit={"key": …, "concurrency": 1}`; in a handler `with lock("x", timeout="10m")`',
             celery="`rate_limit=`", rq="`RateLimit`", procrastinate="`lock=`", huey="`lock_task`, `rate_limit`",
             scheduler="`max_instances=`", dramatiq="`ConcurrentRateLimiter`, `WindowRateLimiter`, `BucketRateLimiter`",
             errors={"option": {"rate_limit": "lock"}}),
        _row("`tags=[…]`, `meta={…}`", rq="`description=`", q2="`task_name=`",
             background="`verbose_name=`, `creator=`"),
        _row("`id=`, a UUIDv7", celery="`task_id=`", rq="`job_id=`", errors={"option": {"id": "task_id job_id"}}),
        _row("`context=`, or a first parameter of that name", celery="`bind=`", procrastinate="`pass_context=`",
             tasks="`takes_context=`", errors={"option": {"context": "bind pass_context takes_context"}}),
        _row("the first argument of `@job`", celery="`name=`", huey="`name=`", procrastinate="`name=`",
             dramatiq="`actor_name=`"),
        _row("nothing to set", dramatiq="`store_results=`",
             celery="`acks_late=`, `reject_on_worker_lost=`, `track_started=`, `serializer=`, `base=`"),
    ),
    "Schedules": (
        _row(
            '`@job("order.pay", cron="0 9 * * *")`',
            celery="`CELERY_BEAT_SCHEDULE`, `beat_schedule`, `add_periodic_task`",
            rq="`Repeat`, `cron`, `register`", huey="`@periodic_task`, `@db_periodic_task`",
            dramatiq="`periodic=`, `cron`", procrastinate="`@app.periodic`",
            background="`repeat=`", scheduler="`add_job`, `@scheduled_job`, `@register_job`",
            errors={
                "option": {"cron": "crontab periodic"},
                "module": {_SCHEDULE: "periodic_task db_periodic_task crontab add_periodic_task"},
            },
        ),
        _row(
            '`register_schedule("pay-17", pay.s(17), cron=…)`, while the site runs',
            celery="`PeriodicTask`, `RedBeatSchedulerEntry`", q2="`schedule`, `Schedule`",
            procrastinate="`periodic_id=`", scheduler="`reschedule_job`, `modify_job`",
            errors={"module": {'register_schedule("pay-17", handler.s(17), cron="0 9 * * *"), or @job(cron=...)':
                               "schedule Schedule PeriodicTask"}},
        ),
        _row('`delete_schedule("pay-17")`', scheduler="`remove_job`"),
        _row("nothing: a schedule goes on until it is deleted", rq="`repeat=`", q2="`repeats=`",
             background="`repeat_until=`", scheduler="`end_date=`"),
        _row("`validate_cron`, of a field", q2="`validate_cron`"),
        _row('`cron="0 9 * * *"`, with `timezone=` if it was not read in UTC',
             celery="`crontab`, `CrontabSchedule`", huey="`crontab`", scheduler="`CronTrigger`",
             q2="`Schedule.CRON`, `HOURLY`, `DAILY`, `WEEKLY`, `MONTHLY`, `QUARTERLY`, `YEARLY`",
             background="`Task.HOURLY`, `DAILY`, `WEEKLY`"),
        _row('`cron="@every 90m"`', celery="`IntervalSchedule`, `schedule`", rq="`schedule`, `interval=`",
             scheduler="`IntervalTrigger`", q2="`Schedule.MINUTES`, `BIWEEKLY`",
             background="`EVERY_2_WEEKS`, `EVERY_4_WEEKS`"),
        _row("the workers: one of them leads", celery="`beat`, `CELERY_BEAT_…`",
             rq="`Scheduler`, `get_scheduler`, `CronScheduler`", dramatiq="`PeriodiqMiddleware`",
             scheduler="`BackgroundScheduler`, `BlockingScheduler`, `AsyncIOScheduler`, `DjangoJobStore`"),
        _row("`ojs_cron list`", scheduler="`get_jobs`"),
        _row("`ojs_cron disable`, `enable`", scheduler="`pause_job`, `resume_job`"),
    ),
    "Settings and processes": (
        _row("nothing: the site's own database", celery="`Celery`, `CELERY_BROKER_URL`, `CELERY_RESULT_BACKEND`, "
             "`autodiscover_tasks`, `config_from_object`, `CELERY_BROKER_…`, `CELERY_REDIS_…`, "
             "`CELERY_RESULT_BACKEND_…`", rq="`Queue`, `get_queue`, `get_connection`, `RQ_QUEUES`",
             huey="`HUEY`, `RedisHuey`, `SqliteHuey`, `PriorityRedisHuey`", dramatiq="`DRAMATIQ_BROKER`, "
             "`DRAMATIQ_RESULT_BACKEND`, `RedisBroker`, `RabbitmqBroker`, `set_broker`",
             procrastinate="`App`, `app`, `PsycopgConnector`, `DjangoConnector`", q2="`Q_CLUSTER`"),
        _row("`TASKS` with `django_ojs.tasks.OJSBackend`", tasks="`TASKS`"),
        _row("`queue=` of a handler", celery="`CELERY_TASK_ROUTES`, `CELERY_TASK_QUEUES`, "
             "`CELERY_TASK_DEFAULT_QUEUE`, `task_routes`, `Queue`, `Exchange`"),
        _row("options of each `@job`", celery="`CELERY_TASK_ANNOTATIONS`"),
        _row("`priority=` of a handler: higher is more urgent, and 0 is in the middle",
             celery="`CELERY_TASK_DEFAULT_PRIORITY`, `CELERY_TASK_QUEUE_MAX_PRIORITY`",
             background="`BACKGROUND_TASK_PRIORITY_ORDERING`"),
        _row("`timezone=` of a schedule", celery="`CELERY_TIMEZONE`", rq="`use_local_timezone=`"),
        _row('`OJS["DEFAULT_TIMEOUT"]`', celery="`CELERY_TASK_TIME_LIMIT`, `CELERY_TASK_SOFT_TIME_LIMIT`"),
        _row('`OJS["RETRY"]`', background="`MAX_ATTEMPTS = 25`"),
        _row('`OJS["RESULT_TTL"]`; 0 keeps no results', celery="`CELERY_RESULT_EXPIRES`, `CELERY_TASK_IGNORE_RESULT`"),
        _row('`OJS["RETENTION"]`', rq="`failure_ttl=`", procrastinate="`remove_old_jobs`",
             scheduler="`delete_old_job_executions`"),
        _row("the dead letters, in the admin and by `ojs_dead_letter`", rq="`FailedJobRegistry`"),
        _row("the fixture `ojs_inline`", celery="`CELERY_TASK_ALWAYS_EAGER`, `CELERY_TASK_EAGER_PROPAGATES`",
             rq="`is_async=`", huey="`immediate`", q2="`sync=`"),
        _row("the fixtures `ojs_fake`, `ojs_worker`", dramatiq="`StubBroker`", procrastinate="`InMemoryConnector`"),
        _row("`ojs_worker --concurrency`", celery="`CELERY_WORKER_CONCURRENCY`",
             background="`BACKGROUND_TASK_RUN_ASYNC`, `BACKGROUND_TASK_ASYNC_THREADS`",
             scheduler="`ThreadPoolExecutor`"),
        _row("`ojs_worker --processes`", scheduler="`ProcessPoolExecutor`"),
        _row("`ojs_worker --max-jobs`, `--max-memory`",
             celery="`CELERY_WORKER_MAX_TASKS_PER_CHILD`, `CELERY_WORKER_MAX_MEMORY_PER_CHILD`"),
        _row("nothing: arguments and results are JSON", celery="`CELERY_ACCEPT_CONTENT`, `CELERY_TASK_SERIALIZER`, "
             "`CELERY_RESULT_SERIALIZER`, `CELERY_RESULT_ACCEPT_CONTENT`, `CELERY_EVENT_SERIALIZER`"),
        _row("nothing: it is always so, or not needed", celery="`CELERY_ACKS_LATE`, `CELERY_TASK_ACKS_LATE`, "
             "`CELERY_TASK_REJECT_ON_WORKER_LOST`, `CELERY_TASK_TRACK_STARTED`, `CELERY_TASK_CREATE_MISSING_QUEUES`, "
             "`CELERY_TASK_SEND_SENT_EVENT`, `CELERY_WORKER_PREFETCH_MULTIPLIER`, `CELERY_WORKER_SEND_TASK_EVENTS`, "
             "`CELERY_WORKER_HIJACK_ROOT_LOGGER`, `CELERY_ENABLE_UTC`", background="`MAX_RUN_TIME = 3600`",
             procrastinate="`get_stalled_jobs`",
             scheduler="`coalesce=`, `replace_existing=`, `@close_old_connections`"),
        _row("`LOGGING` of Django, which workers follow", celery="`setup_logging`, `after_setup_logger`"),
        _row("nothing: the pages in the admin", celery="`PeriodicTaskAdmin`, `PeriodicTaskForm`, "
             "`CrontabScheduleAdmin`, `IntervalScheduleAdmin`, `ClockedScheduleAdmin`, `TaskSelectWidget`"),
        _row("`worker_started`, `worker_stopped`",
             celery="`celeryd_after_setup`, `worker_init`, `worker_ready`, `worker_process_init`, "
                    "`worker_process_shutdown`, `worker_shutdown`",
             huey="`on_startup`, `on_shutdown`"),
        _row("middleware, `job_failed`", celery="`task_prerun`, `task_postrun`, `task_failure`, `task_success`, "
             "`task_retry`, `before_task_publish`, `after_task_publish`",
             huey="`signal`, `pre_execute`, `post_execute`", dramatiq="`Middleware`",
             q2="`pre_enqueue`, `pre_execute`, `post_execute`",
             background="`task_created`, `task_started`, `task_successful`, `task_error`, `task_rescheduled`, "
             "`task_failed`", scheduler="`add_listener`"),
        _row("a plain function, and what several share in a function of its own", celery="`Task`"),
        _row("`logging`, which is kept with the job", celery="`get_task_logger`"),
    ),
}  # fmt: skip


def rows() -> Iterator[Row]:
    """All of them, in the order of the page."""
    for section in SECTIONS.values():
        yield from section


def _answers(place: str) -> dict[str, str]:
    return {
        word: ours
        for row in rows()
        for ours, words in row.errors.get(place, {}).items()
        for word in words.split()
    }  # fmt: skip


OF_HANDLER, OF_PREPARED, OF_WORKFLOW, OF_HANDLE, OF_CONTEXT, OF_MODULE, OTHER_OPTIONS = map(_answers, PLACES)


class Word(NamedTuple):
    """A word of another queue in a code base: what it becomes, and whether it is a decorator or an option (`x=`)."""

    word: str
    ours: str
    is_decorator: bool
    is_option: bool


#: A word that ends with `_` stands for all that begin so: `CELERY_REDIS_…`.
_SPAN = re.compile(r"`(@?)(?:\w+\.)?(\w+)(=?)[^`]*`")


def words(queue: str) -> Iterator[Word]:
    """Those of one of `QUEUES`."""
    for row in rows():
        for mark, word, equals in _SPAN.findall(row.theirs.get(queue, "")):
            if word != "pay":  # a plain call
                yield Word(word, row.ours, bool(mark), bool(equals))


def of_module(name: str) -> str:
    """What to say of a name that this package does not have, but another queue."""
    ours = OF_MODULE.get(name, "")
    return f"django_ojs has no {name}, a word of another queue: write {ours}." if ours else ""


class OtherWords:
    """Base of what users of other queues call by other names: such a call raises an AttributeError with our word."""

    __slots__ = ()

    _other_words: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker there are no such names

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if (ours := self._other_words.get(name)) is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(f"{kind} has no .{name}, a word of another queue: write {ours}.")
