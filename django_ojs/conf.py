"""Read the site's settings: one typed object made from the `OJS` dict of Django's settings.

`ojs_settings.MAX_BATCH_SIZE` reads the value; unknown keys and wrong types are reported by the system
checks (`checks.py`), and the object is rebuilt when a test changes the setting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import math
import os
from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any, Literal

from django.conf import settings
from django.core.signals import setting_changed
from django.urls import set_script_prefix

# A number and its unit, which the reference shows.
Seconds = Annotated[float, "seconds"]
WholeSeconds = Annotated[int, "seconds"]
Bytes = Annotated[int, "bytes"]
PerSecond = Annotated[float, "per second"]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Every key of the `OJS` dict with its type, unit and default.

    The reference is made of this class: a plain comment begins a section, `#:` describes the key below it.
    """

    # The server

    #: `spec` follows the specification to the letter. `published` follows the published conformance suite where the
    #: two contradict each other: hyphens in job types, 409 for cancelling a cancelled job, no `completed_at` on an
    #: expired job.
    DIALECT: Literal["spec", "published"] = "spec"
    #: The name of the service in the `source` of events: `ojs://<SERVICE_NAME>/api`, where spaces and what else a URI
    #: does not have there are percent-encoded.
    SERVICE_NAME: str = "django-ojs"
    #: The release of the site's own code, such as a version or a commit, up to 64 characters. Workers say which one
    #: they run, and the charts of the admin show when its first worker came.
    RELEASE: str = ""
    #: Whether requests without credentials may do everything. None: only while DEBUG is on.
    ALLOW_ANONYMOUS: bool | None = None
    #: DRF authentication classes of the HTTP binding, as dotted paths.
    AUTHENTICATION_CLASSES: tuple[str, ...] = (
        "django_ojs.http.authentication.APIKeyAuthentication",
        "django_ojs.http.authentication.StaffSessionAuthentication",
    )
    #: How many threads of an ASGI server process serve the requests of the HTTP binding that neither stream nor wait.
    #: They last, and keep their database connections as `CONN_MAX_AGE` says. 0: each request has a thread and a
    #: connection of its own, as in Django.
    ASGI_THREADS: int = 16
    # gRPC
    #: Whether the site offers gRPC, which `manage.py ojs_grpc` serves. The manifest says so over HTTP, too.
    GRPC: bool = False
    #: How many threads of an `ojs_grpc` process carry out unary calls.
    GRPC_THREADS: int = 16
    #: The certificate of `ojs_grpc` with its chain, a file in PEM. The server reads it again when it changes.
    GRPC_TLS_CERTIFICATE: str = ""
    #: The key of the certificate, a file in PEM.
    GRPC_TLS_KEY: str = ""
    #: The certificates, a file in PEM, of which one must have signed that of a client. Empty: clients need none.
    GRPC_TLS_CLIENT_CA: str = ""
    #: Whether a proxy in front of `ojs_grpc` ends TLS. Without this setting and without a certificate the server
    #: refuses, outside DEBUG, to listen on anything but loopback.
    GRPC_BEHIND_TLS_PROXY: bool = False
    #: Whether the server answers what tools ask about its methods and messages (reflection). None: only while DEBUG is
    #: on.
    GRPC_REFLECTION: bool | None = None
    #: The age at which the server asks a client to connect again, for balancing. None: never.
    GRPC_MAX_CONNECTION_AGE: Seconds | None = None
    #: How long running calls have to finish when `ojs_grpc` stops.
    GRPC_SHUTDOWN_GRACE: Seconds = 25.0
    #: Whether `ojs_grpc`, when it stops, tells the workers that have streams of jobs open to terminate. In a rolling
    #: restart of the servers this would stop all those workers.
    GRPC_TERMINATE_WORKERS: bool = False
    # Jobs
    #: The numbers of the priority names (L4-PRI-003). A job without a priority has 0.
    PRIORITY_LEVELS: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"HIGH": 3, "NORMAL": 2, "LOW": 1})
    #: The execution timeout of a job that has none of its own.
    DEFAULT_TIMEOUT: WholeSeconds = 1800
    #: The length of a reservation if neither the request nor the job nor the queue sets one (the protocol's
    #: default: 1800).
    VISIBILITY_TIMEOUT: WholeSeconds = 1800
    #: The length of the reservations of an `ojs_worker`, which renews them, for jobs without a value of their own.
    WORKER_VISIBILITY_TIMEOUT: WholeSeconds = 60
    #: Members that override the default retry policy, with the names of the wire: `{"max_attempts": 5}`.
    RETRY: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: The server discards a job after this number of losses in a row: reservations that ended unanswered, and workers
    #: whose process died while it ran the job and no other. A database that went away under a handler is a loss, too;
    #: from this number in a row on it counts as a failure, and the retry policy decides.
    POISON_LIMIT: int = 5
    #: Whether ACK and FAIL need a `worker_id`. A save of a checkpoint of an active job then needs one, too.
    STRICT_OWNERSHIP: bool = False
    #: Whether only the worker that holds an active job may save its checkpoint. Otherwise every caller that may work
    #: may save one for a job that has not ended, unless it names another worker than the holder.
    STRICT_CHECKPOINTS: bool = False
    #: For how long a worker's report (`error.rate_limit_until`) can stop a rate limit; a later time is cut to it.
    RATE_LIMIT_MAX_BLOCK: Seconds = 86_400.0
    # Workers
    #: The time between two heartbeats of an `ojs_worker`. It is less while the worker runs jobs whose reservation it
    #: renews and is shorter than three of these, such as those of a queue with a short `visibility_timeout`; jobs with
    #: a `visibility_timeout` or `heartbeat_timeout` of their own do not count.
    HEARTBEAT_INTERVAL: Seconds = 5.0
    #: A worker without a heartbeat for this time is dead: the scheduler hands its jobs back.
    HEARTBEAT_TIMEOUT: Seconds = 45.0
    #: How long a worker that stops lets its jobs finish. Without this setting the worker reads the environment
    #: variable `OJS_SHUTDOWN_GRACE_PERIOD`, in seconds.
    SHUTDOWN_GRACE_PERIOD: Seconds = 25.0
    #: How many asynchronous handlers of a worker process may use databases at the same time. Each has a connection of
    #: its own from its first query to its end; when so many have one, the next waits with its first query. None: all
    #: that the slots of the process run.
    ASYNC_CONNECTIONS: int | None = None
    #: A directory on the machine of the worker. A worker that stops while the database is away writes the outcomes
    #: that it could not report to a file there, and the next worker that starts there reports them. Empty: it
    #: writes none.
    WORKER_SPOOL: str = ""
    # Logs of handlers
    #: Whether the lines that handlers log are stored with their jobs (docs/logs.md).
    JOB_LOGS: bool = True
    #: The lowest level of a line that is stored.
    JOB_LOG_LEVEL: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    #: Other levels for single loggers and those below them: `{"httpx": "WARNING", "shop.noisy": "OFF"}`. `OFF` stores
    #: none of their lines.
    JOB_LOG_LEVELS: Mapping[str, Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"]] = dataclasses.field(
        default_factory=dict
    )
    #: How many lines of one attempt are kept: the first half of them, and the last half.
    JOB_LOG_LINES: int = 1_000
    #: How much the lines of one attempt may take: the first lines may take half of it, and the last ones.
    JOB_LOG_BYTES: Bytes = 262_144
    #: Characters of one message, and of one traceback. Longer ones are cut.
    JOB_LOG_LINE_LENGTH: int = 8_000
    #: The age at which lines are pruned, if their job has not been pruned before.
    JOB_LOG_RETENTION: Seconds = 30 * 86_400.0
    # Schedules
    #: Whether the scheduler brings the schedules of the code (`@job(cron=...)`) into the database when a process takes
    #: its lead. What operators changed is kept (docs/cron.md). Without it `manage.py ojs_cron sync` does that at each
    #: deploy.
    SYNC_SCHEDULES: bool = True
    # Maintenance
    #: Whether maintenance mode ends by itself at its estimated end, unless the operator chose when starting it.
    MAINTENANCE_AUTO_END: bool = False
    # Limits
    #: The largest serialised envelope. Its id and the trace context in its `meta`, which the server may add, do not
    #: count.
    MAX_ENVELOPE_BYTES: Bytes = 1_048_576
    #: The largest serialised `meta`.
    MAX_META_BYTES: Bytes = 65_536
    #: The largest number of jobs in a batch or a workflow.
    MAX_BATCH_SIZE: int = 10_000
    #: The largest body of a batch request.
    MAX_BATCH_BYTES: Bytes = 16 * 1_048_576
    #: The largest number of keys and values in a request body, at any depth. The server counts them before it reads
    #: them. One envelope may have 10,000.
    MAX_BODY_VALUES: int = 1_000_000
    #: The largest serialised result.
    MAX_RESULT_BYTES: Bytes = 1_048_576
    #: The largest checkpoint: its state and its metadata as compact JSON.
    MAX_CHECKPOINT_BYTES: Bytes = 1_048_576
    #: The largest number of jobs that one FETCH returns. The server lowers a larger `count` to this.
    MAX_FETCH_COUNT: int = 1_000
    #: How many of its latest errors a job keeps (the specification asks for at least 10).
    ERROR_HISTORY: int = 20
    #: How many ended attempts a job keeps, over all its rounds. The oldest ones above it are deleted. 0: none is kept.
    ATTEMPT_MAX_COUNT: int = 100
    #: Whether the server stores backtraces (core section 14.2).
    STORE_BACKTRACES: bool = True
    # Results and arguments
    #: How long the server keeps a result after the end of its job. None: for ever. `result_ttl` of a job takes
    #: precedence.
    RESULT_TTL: WholeSeconds | None = 604_800
    #: The largest payload of an event that durable jobs wait for, as JSON.
    MAX_DURABLE_EVENT_BYTES: Bytes = 262_144
    #: How long the server keeps an event for durable jobs that ask for it later.
    DURABLE_EVENT_RETENTION: Seconds = 30 * 86_400.0
    #: How long the server keeps an approval after it was decided or closed. None: for ever.
    APPROVAL_RETENTION: Seconds | None = 90 * 86_400.0
    #: How long the server keeps a checkpoint after its job was completed or cancelled, at least 60. A discarded job
    #: keeps its checkpoint.
    CHECKPOINT_TTL: Seconds = 300.0
    #: What happens if the registry has a schema for a job type and the job names none: `off` does not validate,
    #: `warn` accepts with warnings, `strict` refuses. A job that names a registered schema must fit it.
    SCHEMA_VALIDATION: Literal["off", "warn", "strict"] = "warn"
    # Events
    #: Whether `job.completed` events contain the result of the job.
    RESULTS_IN_EVENTS: bool = True
    #: Whether the log also has the extension events that come with every workflow and every result
    #: (`events.catalogue.ON_REQUEST`). As with all extensions, only readers that name them exactly get them.
    EXTENSION_EVENTS: bool = False
    #: Whether the server keeps the attempts of jobs and offers their history, lineage and attempts (the experimental
    #: extension `execution-history`). Without it these paths answer 404.
    EXECUTION_HISTORY: bool = True
    #: The number of events that the log keeps of one job. The oldest ones above it are erased.
    HISTORY_MAX_COUNT: int = 1000
    #: The age at which events are pruned.
    EVENT_RETENTION: Seconds = 168 * 3600.0
    #: The number of events in the log. The oldest ones above it are pruned.
    EVENT_MAX_COUNT: int = 1_000_000
    # Metrics and traces
    #: Whether the scheduler counts events for the metrics, and `/metrics` answers.
    METRICS: bool = True
    #: How many pairs of job type and queue the metrics distinguish. Further pairs count as the type `other` of
    #: their queue, and above twice this number as the queue `other`.
    METRICS_MAX_SERIES: int = 500
    #: Whether `/metrics` needs no credentials, as monitoring expects. Otherwise it needs the scope `read`.
    METRICS_PUBLIC: bool = True
    #: The spans, if an SDK of OpenTelemetry is set up: `parent` makes the span that enqueued a job the parent of
    #: the span of each attempt (and links them); `link` only links them, and names spans by queue, as the messaging
    #: conventions do; `off` makes no spans. A job carries the trace context in `meta` in any case.
    TRACING: Literal["parent", "link", "off"] = "parent"
    #: Callables that get each exception that leaves a handler and its `JobContext`, as dotted paths, such as
    #: `django_ojs.telemetry.reporting.sentry` (docs/observability.md). What `REDACT` hides is not reported.
    ERROR_REPORTERS: tuple[str, ...] = ()
    # Realtime channels
    #: How many events wait in memory for a slow subscriber. A subscriber with more reads on from the log.
    REALTIME_BUFFER_SIZE: int = 1_000
    #: The largest number of events that one connection gets; further ones wait. None: no limit.
    REALTIME_RATE_LIMIT: PerSecond | None = 1_000.0
    #: The largest number of WebSockets, of event streams and of requests that wait (for a result, or for room in a
    #: queue), each, of one client (key, user, or address of an anonymous client) in one server process. None: no limit.
    REALTIME_MAX_CONNECTIONS: int | None = 100
    #: The largest number of subscriptions of one connection.
    REALTIME_MAX_SUBSCRIPTIONS: int = 100
    #: How long the server tries to send a frame before it closes the connection.
    REALTIME_WRITE_TIMEOUT: Seconds = 5.0
    #: The silence after which an event stream sends a heartbeat (the specification asks for one every 15 seconds).
    REALTIME_HEARTBEAT: Seconds = 12.0
    #: The time after which the server checks the rights of a connected client again.
    REALTIME_RECHECK_INTERVAL: Seconds = 30.0
    #: How long connected clients have when the server shuts down (the specification allows 5 seconds).
    REALTIME_SHUTDOWN_GRACE: Seconds = 5.0
    #: How long a ticket for a WebSocket is valid. It works once.
    REALTIME_TICKET_TTL: Seconds = 30.0
    #: Origins (`https://app.example.com`, `https://*.example.com`) whose pages may connect, besides the server's own
    #: and those in CSRF_TRUSTED_ORIGINS. Scheme and port count. Where callers need no credentials, only pages of these
    #: origins may POST what is not JSON.
    REALTIME_ALLOWED_ORIGINS: tuple[str, ...] = ()
    #: The path or URL of the WebSocket for browsers, if another server or another path than `ojs/v1/ws` serves it.
    #: None: `ojs/v1/ws` of this server, if it serves it. "": none, so the pages of the admin poll.
    REALTIME_URL: str | None = None
    # Retention
    #: The age at which finished jobs are pruned, by state. `dead_letter` is for discarded jobs in the dead letter
    #: queue, `discarded` for discarded jobs that are not in it. None keeps them for ever.
    RETENTION: Mapping[str, Seconds | None] = dataclasses.field(
        default_factory=lambda: {
            "completed": 7 * 86400.0,
            "cancelled": 7 * 86400.0,
            "discarded": 30 * 86400.0,
            "dead_letter": 180 * 86400.0,
        }
    )
    #: How many jobs the dead letter queue keeps. It keeps the newest.
    DEAD_LETTER_MAX_COUNT: int = 10_000
    #: Rules by which the scheduler retries dead letters, such as `{"name": "payments", "filter": {"queue":
    #: "payments"}, "delay": "PT1H", "max_replays": 3}`. Rules that operators add come after these
    #: (docs/dead-letters.md).
    REPLAY_RULES: tuple[Mapping[str, Any], ...] = ()
    #: How long the server remembers an idempotency key.
    IDEMPOTENCY_TTL: Seconds = 86_400.0
    # Alerts
    #: What needs an operator's attention, who gets a mail about it, and how often the scheduler looks: `{"queues":
    #: {"*": {"oldest_wait": "15m"}}, "types": {"billing.*": {"dead_letters": 1}}, "mail_to": ["ops@example.com"]}`
    #: (docs/how-to/alerts.md). None: the scheduler does not look; the overview and `ojs_status` use the defaults.
    ALERTS: Mapping[str, Any] | None = None
    #: The mails to those whom durable jobs ask, and for how long a link in them decides without a login:
    #: `{"site": "https://shop.example.com", "links": "7d"}` (docs/durable.md). Without `links` they lead to the admin.
    #: None: no mails.
    APPROVAL_MAIL: Mapping[str, Any] | None = None
    # Webhooks
    #: How many attempts the scheduler makes at the same time.
    WEBHOOK_CONCURRENCY: int = 32
    #: How many of them may be for one subscription.
    WEBHOOK_CONCURRENCY_PER_SUBSCRIPTION: int = 8
    #: The time of one attempt, everything included, if the subscription sets none (5 to 60).
    WEBHOOK_TIMEOUT: Seconds = 30.0
    #: The times between two attempts. There is one attempt more than delays; the specification asks for at least
    #: five retries.
    WEBHOOK_RETRY_DELAYS: tuple[Seconds, ...] = (30, 120, 600, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
    #: The scheduler disables a subscription whose attempts have all failed for this time. None: never.
    WEBHOOK_DISABLE_AFTER: Seconds | None = 3 * 86_400.0
    #: Whether webhooks may use plain http.
    WEBHOOK_ALLOW_HTTP: bool = False
    #: The ports that webhooks may use. With plain http they may also use 80.
    WEBHOOK_PORTS: tuple[int, ...] = (443, 8443)
    #: Hosts of the site's own network that webhooks may reach, on any port: names, addresses, networks.
    WEBHOOK_ALLOWED_HOSTS: tuple[str, ...] = ()
    #: The largest number of subscriptions.
    WEBHOOK_MAX_SUBSCRIPTIONS: int = 1000
    #: How long the server keeps deliveries that arrived.
    WEBHOOK_RETENTION: Seconds = 7 * 86_400.0
    #: How long it keeps other deliveries.
    WEBHOOK_DEAD_RETENTION: Seconds = 30 * 86_400.0
    # Audit and redaction
    #: How long the audit log keeps entries. None: for ever.
    AUDIT_RETENTION: Seconds | None = 365 * 86_400.0
    #: What the server hides wherever it shows jobs: `{"keys": [...], "types": {...}, "classified": True}`
    #: (docs/security.md).
    REDACT: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: How many jobs, the newest, a list searches for a filter without an index. Over HTTP it searches five times as
    #: many.
    SEARCH_DEPTH: int = 20_000
    #: The time after which such a search begins no further batch.
    SEARCH_SECONDS: Seconds = 1.0
    #: Filters for which the site has added an index, so that they search all jobs, such as `text` or `type`
    #: (docs/dashboard.md). docs/reference/filters.md has their names.
    INDEXED_FILTERS: tuple[str, ...] = ()
    # Tenants
    #: A callable without arguments, or its dotted path, that says whose data the database connection of the current
    #: caller shows, if not all see the same: a role, a variable of row-level security, a `search_path`. It returns
    #: something hashable, and is called for each call. Calls with different keys are not executed together and share no
    #: cache. None: the schema that the connection names (`connection.schema_name`, as with django-tenants), if it does.
    GROUP_KEY: Callable[[], Hashable] | str | None = None
    #: Whether calls that wait at the same moment are executed as one, on the connection of one of them. False: each
    #: executes its own.
    GROUP_CALLS: bool = True
    # The site's code
    #: The middlewares around enqueueing, as dotted paths, outermost first.
    ENQUEUE_MIDDLEWARE: tuple[str, ...] = ()
    #: The middlewares around execution, as dotted paths, outermost first.
    EXECUTION_MIDDLEWARE: tuple[str, ...] = ("django_ojs.worker.middleware.LoggingMiddleware",)
    #: The alias of the database in whose transactions the site enqueues, if the jobs are in another one.
    #: `enqueue()` then writes into a table there, and the scheduler moves the jobs (docs/second-database.md). None:
    #: no outbox.
    OUTBOX: str | None = None
    #: The module of each app with its handlers.
    JOBS_MODULE: str = "jobs"
    #: The module of each app with its tasks, if `TASKS` names `django_ojs.tasks.OJSBackend`.
    TASKS_MODULE: str = "tasks"

    @property
    def anonymous_allowed(self) -> bool:
        return settings.DEBUG if self.ALLOW_ANONYMOUS is None else self.ALLOW_ANONYMOUS

    @property
    def attempts_kept(self) -> int:
        """How many ended attempts a job keeps."""
        return self.ATTEMPT_MAX_COUNT if self.EXECUTION_HISTORY else 0

    @property
    def event_retention(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.EVENT_RETENTION)


FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Settings)}
#: What the `OJS` setting alone decides: kept until that changes. `anonymous_allowed` is asked for anew, as `DEBUG` is.
_KEPT = FIELDS.keys() | {"attempts_kept", "event_retention"}


#: Where the grace period may come from besides the setting, which beats it (orchestration 4).
GRACE_VARIABLE = "OJS_SHUTDOWN_GRACE_PERIOD"


def grace_from_environment() -> dict[str, float]:
    """`SHUTDOWN_GRACE_PERIOD` as the environment gives it, in seconds; nothing where it does not. ValueError for what
    is no length of time."""
    given = os.environ.get(GRACE_VARIABLE, "").strip()
    if not given:
        return {}
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{GRACE_VARIABLE} is {given[:80]!r}; it must be a number of seconds, such as 25.")
    return {"SHUTDOWN_GRACE_PERIOD": seconds}


class LazySettings:
    """Builds `Settings` on first use and again after the `OJS` setting changed."""

    def __init__(self) -> None:
        self._wrapped: Settings | None = None

    def _load(self) -> Settings:
        given: dict[str, Any] = dict(getattr(settings, "OJS", {}) or {})
        known = {name: value for name, value in given.items() if name in FIELDS}
        if isinstance(known.get("RETENTION"), Mapping):
            known["RETENTION"] = {**Settings().RETENTION, **known["RETENTION"]}
        for name in (
            "AUTHENTICATION_CLASSES",
            "ENQUEUE_MIDDLEWARE",
            "EXECUTION_MIDDLEWARE",
            "REALTIME_ALLOWED_ORIGINS",
            "INDEXED_FILTERS",
            "ERROR_REPORTERS",
            "REPLAY_RULES",
        ):
            if name in known:
                known[name] = tuple(known[name])
        if "SHUTDOWN_GRACE_PERIOD" not in known:
            with contextlib.suppress(ValueError):  # `ojs_worker`, which uses it, refuses to start with such a value
                known |= grace_from_environment()
        return Settings(**known)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not in `__dict__`, where what only this setting decides goes when it is first read."""
        wrapped = self._wrapped
        if wrapped is None:
            wrapped = self._wrapped = self._load()
        value = getattr(wrapped, name)
        if name in _KEPT:
            self.__dict__[name] = value
            if self._wrapped is not wrapped:  # reset by another thread meanwhile
                self.__dict__.pop(name, None)
        return value

    def reset(self) -> None:
        self._wrapped = None
        for name in _KEPT:
            self.__dict__.pop(name, None)


#: Typed as what it stands for, so that editors and mypy know each key.
ojs_settings: Settings = LazySettings()  # type: ignore[assignment]


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting in ("OJS", "DEBUG"):
        ojs_settings.reset()  # type: ignore[attr-defined]


setting_changed.connect(_reset, dispatch_uid="django_ojs.conf")


def use_site_prefix() -> None:
    """Let `reverse` put FORCE_SCRIPT_NAME before paths in this thread or context. Django has seen to that only in the
    thread in which a command begins."""
    set_script_prefix(settings.FORCE_SCRIPT_NAME or "/")
