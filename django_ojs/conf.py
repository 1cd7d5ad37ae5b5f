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
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from django.conf import settings
from django.core.signals import setting_changed

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

    #: `spec` follows the specification's documents to the letter; `published` follows the published
    #: conformance suite where the two cannot both be had (hyphens in job types, 409 for cancelling a
    #: cancelled job, no `completed_at` on an expired job).
    DIALECT: Literal["spec", "published"] = "spec"
    #: The service name in the `source` of events: `ojs://<SERVICE_NAME>/api`.
    SERVICE_NAME: str = "django-ojs"
    #: Whether requests without credentials may do everything. None: only while DEBUG is on.
    ALLOW_ANONYMOUS: bool | None = None
    #: DRF authentication classes of the HTTP binding, as dotted paths.
    AUTHENTICATION_CLASSES: tuple[str, ...] = (
        "django_ojs.http.authentication.APIKeyAuthentication",
        "django_ojs.http.authentication.StaffSessionAuthentication",
    )
    # Jobs
    #: What the priority names mean (L4-PRI-003). An absent priority stays 0.
    PRIORITY_LEVELS: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"HIGH": 3, "NORMAL": 2, "LOW": 1})
    #: Execution timeout of a job that names none.
    DEFAULT_TIMEOUT: WholeSeconds = 1800
    #: How long a claim holds when neither request, job nor queue says (the protocol's default: 1800).
    VISIBILITY_TIMEOUT: WholeSeconds = 1800
    #: What our own worker asks for and renews, for jobs without a value of their own.
    WORKER_VISIBILITY_TIMEOUT: WholeSeconds = 60
    #: Overrides of the default retry policy, in the wire's spelling: `{"max_attempts": 5}`.
    RETRY: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: After so many reservations in a row that expired unanswered a job is discarded.
    POISON_LIMIT: int = 5
    #: Demand `worker_id` on ACK and FAIL.
    STRICT_OWNERSHIP: bool = False
    # Workers
    #: How often our own worker beats.
    HEARTBEAT_INTERVAL: Seconds = 5.0
    #: A worker that was silent for so long is dead and its jobs are handed back.
    HEARTBEAT_TIMEOUT: Seconds = 45.0
    #: How long a stopping worker lets its jobs finish. Where the setting is left out, the environment variable
    #: `OJS_SHUTDOWN_GRACE_PERIOD` says it, in seconds.
    SHUTDOWN_GRACE_PERIOD: Seconds = 25.0
    #: Directory on the worker's machine for the outcomes of jobs that a worker could not report, because it stopped
    #: while the database was away. The next worker that starts there reports them. Empty: none are kept.
    WORKER_SPOOL: str = ""
    # Maintenance
    #: Whether maintenance mode with an estimated end ends by itself then, unless the operator chose when starting it.
    MAINTENANCE_AUTO_END: bool = False
    # Limits
    #: Largest serialised envelope.
    MAX_ENVELOPE_BYTES: Bytes = 1_048_576
    #: Largest serialised `meta`.
    MAX_META_BYTES: Bytes = 65_536
    #: Most jobs in one batch.
    MAX_BATCH_SIZE: int = 10_000
    #: Largest body of a batch request.
    MAX_BATCH_BYTES: Bytes = 16 * 1_048_576
    #: Largest serialised result.
    MAX_RESULT_BYTES: Bytes = 1_048_576
    #: Most jobs that one FETCH hands out; a larger count is clamped.
    MAX_FETCH_COUNT: int = 1_000
    #: How many of its latest errors a job keeps (the spec asks for at least 10).
    ERROR_HISTORY: int = 20
    #: Whether backtraces are stored (core section 14.2).
    STORE_BACKTRACES: bool = True
    # Results and arguments
    #: How long results are kept after the end of their jobs, None: for ever. A job's `result_ttl` beats it.
    RESULT_TTL: WholeSeconds | None = 604_800
    #: What happens where the registry knows a schema for a job type and the job names none: `off` looks at
    #: nothing, `warn` accepts with warnings, `strict` refuses. A job that names a registered schema must fit it.
    SCHEMA_VALIDATION: Literal["off", "warn", "strict"] = "warn"
    # Events
    #: Whether `job.completed` events carry the job's result.
    RESULTS_IN_EVENTS: bool = True
    #: Whether the log also holds the extension events that come with every workflow and every result
    #: (`events.catalogue.ON_REQUEST`). As with all extensions, only readers that name them exactly get them.
    EXTENSION_EVENTS: bool = False
    #: Age at which events are pruned.
    EVENT_RETENTION: Seconds = 168 * 3600.0
    #: Number of events above which the oldest are pruned.
    EVENT_MAX_COUNT: int = 1_000_000
    # Metrics and traces
    #: Whether the log is counted for the metrics, and `/metrics` answers.
    METRICS: bool = True
    #: How many pairs of job type and queue the metrics tell apart. Further ones are counted as the type `other`
    #: of their queue, and beyond twice as many of the queue `other`.
    METRICS_MAX_SERIES: int = 500
    #: Whether metrics are for everybody, as monitoring expects; if not, they need the scope `read`.
    METRICS_PUBLIC: bool = True
    #: Spans, where an SDK of OpenTelemetry is at work: `parent` makes the enqueue span the parent of each attempt's
    #: (and links it); `link` links only and names spans by queue, as the messaging conventions do; `off` makes none.
    #: The trace context is carried in `meta` in any case.
    TRACING: Literal["parent", "link", "off"] = "parent"
    # Realtime channels
    #: Events that wait in memory for one slow subscriber, before it reads on from the log.
    REALTIME_BUFFER_SIZE: int = 1_000
    #: Most events that one connection gets, None: as many as there are. What is above waits.
    REALTIME_RATE_LIMIT: PerSecond | None = 1_000.0
    #: Most connections of one client (key, user or, for anonymous ones, address) to one server process, None: any.
    REALTIME_MAX_CONNECTIONS: int | None = 100
    #: Most subscriptions of one connection.
    REALTIME_MAX_SUBSCRIPTIONS: int = 100
    #: How long a frame may take to be sent before the connection is closed.
    REALTIME_WRITE_TIMEOUT: Seconds = 5.0
    #: Silence after which a stream over HTTP sends a heartbeat; the spec wants one in 15 at least.
    REALTIME_HEARTBEAT: Seconds = 12.0
    #: Time after which the rights of a connected client are looked at again.
    REALTIME_RECHECK_INTERVAL: Seconds = 30.0
    #: How long connected clients have when the server shuts down; the spec allows 5.
    REALTIME_SHUTDOWN_GRACE: Seconds = 5.0
    #: How long a ticket for a WebSocket may wait for its only use.
    REALTIME_TICKET_TTL: Seconds = 30.0
    #: Origins (`https://app.example.com`) whose pages may connect, besides the site's own and ALLOWED_HOSTS.
    REALTIME_ALLOWED_ORIGINS: tuple[str, ...] = ()
    #: Where browsers find the WebSocket, as a path or URL, if another server has it than the one that serves the pages,
    #: or at another path. None: at `ojs/v1/ws` of this one, if it is there; "": nowhere, pages of the admin poll.
    REALTIME_URL: str | None = None
    # Retention
    #: Age at which finished jobs are pruned, by state; `dead_letter` is for discarded jobs in the dead
    #: letter queue, `discarded` for those that were kept out of it. None keeps them for ever.
    RETENTION: Mapping[str, Seconds | None] = dataclasses.field(
        default_factory=lambda: {
            "completed": 7 * 86400.0,
            "cancelled": 7 * 86400.0,
            "discarded": 30 * 86400.0,
            "dead_letter": 180 * 86400.0,
        }
    )
    #: How many jobs the dead letter queue keeps, newest first.
    DEAD_LETTER_MAX_COUNT: int = 10_000
    #: Rules by which the scheduler retries dead letters, such as
    #: `{"name": "payments", "filter": {"queue": "payments"}, "delay": "PT1H", "max_replays": 3}`.
    #: Rules that operators make come after these (docs/dead-letters.md).
    REPLAY_RULES: tuple[Mapping[str, Any], ...] = ()
    #: How long an idempotency key is remembered.
    IDEMPOTENCY_TTL: Seconds = 86_400.0
    # Webhooks
    #: How many are sent at once.
    WEBHOOK_CONCURRENCY: int = 32
    #: How many are sent at once to one subscription.
    WEBHOOK_CONCURRENCY_PER_SUBSCRIPTION: int = 8
    #: Time for one attempt, everything included, where the subscription says nothing (5 to 60).
    WEBHOOK_TIMEOUT: Seconds = 30.0
    #: Times from one attempt to the next; one more attempt than delays. The spec asks for five retries at least.
    WEBHOOK_RETRY_DELAYS: tuple[Seconds, ...] = (30, 120, 600, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
    #: A subscription none of whose attempts went well for so long is switched off. None: never.
    WEBHOOK_DISABLE_AFTER: Seconds | None = 3 * 86_400.0
    #: Whether receivers may be called over plain http.
    WEBHOOK_ALLOW_HTTP: bool = False
    #: Ports that receivers may use; for plain http also 80.
    WEBHOOK_PORTS: tuple[int, ...] = (443, 8443)
    #: Hosts of the site's own network that webhooks may reach all the same, on any port: names, addresses, networks.
    WEBHOOK_ALLOWED_HOSTS: tuple[str, ...] = ()
    #: Most subscriptions there may be.
    WEBHOOK_MAX_SUBSCRIPTIONS: int = 1000
    #: How long deliveries that arrived are kept.
    WEBHOOK_RETENTION: Seconds = 7 * 86_400.0
    #: How long other deliveries are kept.
    WEBHOOK_DEAD_RETENTION: Seconds = 30 * 86_400.0
    # Audit and redaction
    #: How long the audit log keeps what operators did, None: for ever.
    AUDIT_RETENTION: Seconds | None = 365 * 86_400.0
    #: What is hidden wherever jobs are shown: `{"keys": [...], "types": {...}, "classified": True}`; see
    #: `rules.redaction`.
    REDACT: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: Lists of jobs: a filter that no index helps looks at so many jobs, the newest; over HTTP at five times as many.
    SEARCH_DEPTH: int = 20_000
    #: Time after which such a filter begins no further slice of them.
    SEARCH_SECONDS: Seconds = 1.0
    #: Filters for which the site has made an index of its own, so that they look at all jobs: some of `text`, `error`,
    #: `type`, `queue` and `worker` (docs/dashboard.md).
    INDEXED_FILTERS: tuple[str, ...] = ()
    # The site's code
    #: Middlewares around enqueueing as dotted paths, outermost first.
    ENQUEUE_MIDDLEWARE: tuple[str, ...] = ()
    #: Middlewares around execution as dotted paths, outermost first.
    EXECUTION_MIDDLEWARE: tuple[str, ...] = ("django_ojs.worker.middleware.LoggingMiddleware",)
    #: The alias of the database in whose transactions the site enqueues, where the jobs are in another one: jobs go
    #: into a table there first, and the scheduler takes them over (docs/second-database.md). None: no detour.
    OUTBOX: str | None = None
    #: The module of each app that holds its handlers.
    JOBS_MODULE: str = "jobs"
    #: The module of each app that holds tasks, where `TASKS` names `django_ojs.tasks.OJSBackend`.
    TASKS_MODULE: str = "tasks"

    @property
    def anonymous_allowed(self) -> bool:
        return settings.DEBUG if self.ALLOW_ANONYMOUS is None else self.ALLOW_ANONYMOUS

    @property
    def event_retention(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.EVENT_RETENTION)


FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Settings)}


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
            "REPLAY_RULES",
        ):
            if name in known:
                known[name] = tuple(known[name])
        if "SHUTDOWN_GRACE_PERIOD" not in known:
            with contextlib.suppress(ValueError):  # `ojs_worker`, which uses it, refuses to start with such a value
                known |= grace_from_environment()
        return Settings(**known)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not in `__dict__`, where each key goes when it is first read."""
        wrapped = self._wrapped
        if wrapped is None:
            wrapped = self._wrapped = self._load()
        value = getattr(wrapped, name)
        if name in FIELDS:
            self.__dict__[name] = value
            if self._wrapped is not wrapped:  # reset by another thread meanwhile
                self.__dict__.pop(name, None)
        return value

    def reset(self) -> None:
        self._wrapped = None
        for name in FIELDS:
            self.__dict__.pop(name, None)


#: Typed as what it stands for, so that editors and mypy know each key.
ojs_settings: Settings = LazySettings()  # type: ignore[assignment]


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting in ("OJS", "DEBUG"):
        ojs_settings.reset()  # type: ignore[attr-defined]


setting_changed.connect(_reset, dispatch_uid="django_ojs.conf")
