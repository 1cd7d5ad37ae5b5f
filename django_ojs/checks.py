"""System checks. Each has a number that stays its own, says what is wrong, and how to put it right.

E001 unknown setting            W001 anonymous callers allowed       W101 SQLite journal is not WAL
E002 mistyped setting           W002 URLs are not included           W102 SQLite locks too late
E003 bad middleware, reporter   W003 channels is not installed       W103 SQLite gives up early
E004 bad handler                                                     W104 PostgreSQL isolation level
E005 rest_framework missing     W005 heartbeats too rare             W105 MariaDB isolation level
E006 USE_TZ is off              W006 a connection per request        W106 database without SKIP LOCKED
E007 no users and permissions   W008 webhooks over plain http
                                W009 webhooks cannot be sent
                                W012 a pool that waits too long
                                W013 gRPC cannot be served
                                W010 enqueue is not transactional    W110 the outbox's table is missing
E010 OUTBOX names no database   W011 the outbox is a needless detour W111 schedules are not synchronised
E011 half of a TLS setup        W014 tenants that are not told apart
E012 bad GROUP_KEY              W015 no logger has such a name       W107 database without all of Unicode
E013 the database's own zone    W016 no admin site has our pages
E014 approvals cannot be mailed W017 psycopg 3 is not installed
I001 no packages for webhooks

In `tasks/discovery.py`, about the backend of Django's Tasks:

E201 queue name in TASKS        W201 unknown OPTIONS in TASKS
E202 bad OPTIONS in TASKS       W202 waiting jobs without a handler
E203 no Tasks framework         W203 django_tasks is not installed

What asks the database runs with `check --database default` and with `migrate`, as Django has it.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.conf import global_settings, settings
from django.core.checks import CheckMessage, Error, Info, Tags, register
from django.core.checks import Warning as Caution
from django.db import connections, router
from django.db.migrations.recorder import MigrationRecorder
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from django_ojs import grpc, tenants, webhooks
from django_ojs.client.sync import NotSynchronised, declarations, out_of_date
from django_ojs.conf import FIELDS, Settings, ojs_settings
from django_ojs.database import POOL_OPTIONS, SQLITE_OPTIONS, database
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.middleware import Chain
from django_ojs.models import CronSchedule, Job, OutboxEntry
from django_ojs.registry import registry
from django_ojs.rules import alertrules, approvals, redaction, replayrules, suggest
from django_ojs.rules.problems import POLICY_MEMBERS, unknown_in_policy
from django_ojs.spellings import not_spellings, read_retry

_CheckResult = list[CheckMessage]


@register(Tags.compatibility)
def check_settings(**kwargs: Any) -> _CheckResult:
    """E001, E002: the keys of the `OJS` dict and the types of their values."""
    given = getattr(settings, "OJS", None) or {}
    if not isinstance(given, Mapping):
        return [Error("OJS is not a dict.", hint='Write OJS = {"SERVICE_NAME": "shop"}.', id="django_ojs.E002")]
    return [problem for key, value in given.items() for problem in _check_setting(key, value)]


@register(Tags.compatibility)
def check_middleware(**kwargs: Any) -> _CheckResult:
    """E003: the middlewares that the settings name can be imported, made and called where they stand."""
    problems: _CheckResult = []
    for name, takes_async in (("ENQUEUE_MIDDLEWARE", False), ("EXECUTION_MIDDLEWARE", True)):
        for path in _strings(name):
            try:
                Chain.inspect(path, takes_async=takes_async)
            except Exception as error:  # noqa: BLE001 - whatever the site's own code raises is what is wrong
                message = f"OJS['{name}']: {path!r} cannot be used: {error}"
                problems.append(
                    Error(message, hint="Name a function or class by its dotted path.", id="django_ojs.E003")
                )
    return problems


@register(Tags.compatibility)
def check_reporters(**kwargs: Any) -> _CheckResult:
    """E003: the error reporters that the settings name can be imported and called."""
    problems: _CheckResult = []
    for path in _strings("ERROR_REPORTERS"):
        try:
            found = import_string(path)
        except Exception as error:  # noqa: BLE001 - whatever the site's own code raises is what is wrong
            why = str(error)
        else:
            why = "" if callable(found) else "it cannot be called"
        if why:
            message = f"OJS['ERROR_REPORTERS']: {path!r} cannot be used: {why}"
            problems.append(Error(message, hint="Name a function by its dotted path.", id="django_ojs.E003"))
    return problems


@register(Tags.compatibility)
def check_handlers(**kwargs: Any) -> _CheckResult:
    """E004: every handler has a job type of its own, options that can be kept, and can be called as jobs call it."""
    hint = "Correct the place that the message names. Until then no worker starts, and these jobs cannot be enqueued."
    problems: _CheckResult = [Error(str(fault), hint=hint, id="django_ojs.E004") for fault in registry.faults()]
    if not problems:
        try:
            declarations()
        except NotSynchronised as error:
            hint = "A schedule's name is its job type, or what @job(cron_name=...) says."
            problems.append(Error(str(error), hint=hint, id="django_ojs.E004"))
    return problems


@register(Tags.compatibility)
def check_apps(**kwargs: Any) -> _CheckResult:
    """E005, E006, W003: what else belongs into the settings."""
    problems: _CheckResult = []
    if not apps.is_installed("rest_framework"):
        hint = "Add 'rest_framework' to INSTALLED_APPS."
        problems.append(Error("The HTTP binding needs Django REST framework.", hint=hint, id="django_ojs.E005"))
    if not settings.USE_TZ:
        hint = "Set USE_TZ = True: an instant without a time zone is not the same instant on every worker."
        problems.append(Error("django-ojs needs time zone support.", hint=hint, id="django_ojs.E006"))
    if not apps.is_installed("channels"):
        hint = "Add 'channels' to INSTALLED_APPS, or silence django_ojs.W003 if you do without."
        problems.append(Caution("Without channels there is no WebSocket.", hint=hint, id="django_ojs.W003"))
    return problems


@register(Tags.compatibility)
def check_database_zone(**kwargs: Any) -> _CheckResult:
    """E013: where a database keeps times without a zone, it keeps them in UTC."""
    alias = database(None)
    zone = settings.DATABASES[alias].get("TIME_ZONE")
    if zone in (None, "", "UTC", "Etc/UTC") or connections[alias].features.supports_timezones:
        return []
    message = f"DATABASES[{alias!r}]['TIME_ZONE'] is {zone!r}: delays and timeouts would be off by its offset."
    hint = "Leave it out: the jobs are kept in UTC. TIME_ZONE outside of DATABASES is for what people see."
    return [Error(message, hint=hint, id="django_ojs.E013")]


#: Words in the names of apps, backends, middlewares and routers that give each caller data of its own.
_TENANCY = re.compile(r"tenant|pgschemas|row_?level_?security|\brls\b", re.IGNORECASE)


@register(Tags.compatibility)
def check_tenants(**kwargs: Any) -> _CheckResult:
    """E012, W014: calls are executed together only where they see the same data."""
    if check_settings():
        return []
    given = ojs_settings.GROUP_KEY
    if isinstance(given, str):
        try:
            found = import_string(given)
        except ImportError as error:
            why = str(error)
        else:
            why = "" if callable(found) else "it cannot be called"
        if why:
            message = f"OJS['GROUP_KEY']: {given!r} cannot be used: {why}"
            return [Error(message, hint="Name a function by its dotted path.", id="django_ojs.E012")]
    alias = database(None)
    if given is not None or not ojs_settings.GROUP_CALLS or tenants.has_schemas(alias):
        return []
    named = [
        *settings.INSTALLED_APPS, *settings.MIDDLEWARE, settings.DATABASES.get(alias, {}).get("ENGINE", ""),
        *(name if isinstance(name, str) else type(name).__module__ for name in settings.DATABASE_ROUTERS),
    ]  # fmt: skip
    if (seen := next(filter(_TENANCY.search, named), None)) is None:
        return []
    message = f"{seen!r} looks as if callers see different data, and the connection does not say whose data it shows."
    hint = (
        "Set OJS['GROUP_KEY'] to a function that says it, or OJS['GROUP_CALLS'] to False: calls that wait at the same"
        " moment are executed on the connection of one of them. Silence django_ojs.W014 if all callers see the same."
    )
    return [Caution(message, hint=hint, id="django_ojs.W014")]


@register(Tags.compatibility)
def check_heartbeats(**kwargs: Any) -> _CheckResult:
    """W005: a living worker must not be taken for dead, nor lose its jobs between two beats."""
    if check_settings():
        return []
    beat = ojs_settings.HEARTBEAT_INTERVAL
    limits = {
        "HEARTBEAT_TIMEOUT": ojs_settings.HEARTBEAT_TIMEOUT,
        "WORKER_VISIBILITY_TIMEOUT": ojs_settings.WORKER_VISIBILITY_TIMEOUT,
    }
    return [
        Caution(
            f"OJS['{name}'] is {limit:g} s, less than three heartbeats of {beat:g} s.",
            hint=f"Raise it to at least {3 * beat:g}, or lower OJS['HEARTBEAT_INTERVAL'].",
            id="django_ojs.W005",
        )
        for name, limit in limits.items()
        if limit < 3 * beat
    ]


@register(Tags.compatibility, deploy=True)
def check_webhooks(**kwargs: Any) -> _CheckResult:
    """I001: webhooks can be sent, and their secrets kept. A site without webhooks has nothing to mend, so only
    `check --deploy` says it."""
    if not (missing := webhooks.missing()):
        return []
    message = f"Without {' and '.join(missing)} there are no webhooks."
    return [Info(message, hint=f"{webhooks.HINT} Silence django_ojs.I001 if you do without.", id="django_ojs.I001")]


@register(Tags.compatibility)
def check_grpc(**kwargs: Any) -> _CheckResult:
    """E011, W013: what the settings say of gRPC can be served."""
    if check_settings():
        return []
    problems: _CheckResult = []
    needs = {"GRPC_TLS_CERTIFICATE": "GRPC_TLS_KEY", "GRPC_TLS_KEY": "GRPC_TLS_CERTIFICATE",
             "GRPC_TLS_CLIENT_CA": "GRPC_TLS_CERTIFICATE"}  # fmt: skip
    for name, other in needs.items():
        if getattr(ojs_settings, name) and not getattr(ojs_settings, other):
            hint = f"Set OJS['{other}'] too, or neither of them."
            problems.append(Error(f"OJS['{name}'] is set without {other}.", hint=hint, id="django_ojs.E011"))
    if ojs_settings.GRPC and (missing := grpc.missing()):
        message = f"OJS['GRPC'] says that this site offers gRPC, and {' and '.join(missing)} is not installed."
        hint = f"{grpc.HINT} Silence django_ojs.W013 if gRPC is served from another installation."
        problems.append(Caution(message, hint=hint, id="django_ojs.W013"))
    return problems


@register(Tags.database)
def check_subscriptions(databases: Sequence[str] | None = None, **kwargs: Any) -> _CheckResult:
    """W009: there are subscriptions to webhooks that this installation cannot send."""
    alias = database(None)
    if alias not in (databases or ()) or not (missing := webhooks.missing()):
        return []
    model = apps.get_model("django_ojs", "WebhookSubscription")
    if model._meta.db_table not in connections[alias].introspection.table_names():  # before the first migrate
        return []
    if not model._default_manager.using(alias).filter(active=True).exists():
        return []
    message = f"There are webhooks, and without {' and '.join(missing)} none is sent."
    return [Caution(message, hint=f"{webhooks.HINT} Or delete the subscriptions.", id="django_ojs.W009")]


@register(Tags.compatibility)
def check_logger_names(**kwargs: Any) -> _CheckResult:
    """W015: a name in JOB_LOG_LEVELS that no logger has changes nothing."""
    levels = (getattr(settings, "OJS", None) or {}).get("JOB_LOG_LEVELS") or {}
    if not isinstance(levels, Mapping):
        return []  # E002 says so
    hint = (
        "Write the name of a logger, such as 'shop.orders': it stands for the loggers below it, too. The level of all "
        "others is OJS['JOB_LOG_LEVEL']."
    )
    return [
        Caution(
            f"OJS['JOB_LOG_LEVELS'] names {name!r}, which is no logger, so its level changes nothing.",
            hint=hint,
            id="django_ojs.W015",
        )
        for name in levels
        if isinstance(name, str) and ("*" in name or not all(name.split(".")) or name != name.strip())
    ]


@register(Tags.security, deploy=True)
def check_webhook_transport(**kwargs: Any) -> _CheckResult:
    """W008: outside a site's own network every host on the way can read what plain http carries."""
    if not ojs_settings.WEBHOOK_ALLOW_HTTP:
        return []
    hint = "Leave it out; put receivers of your own network behind TLS, too, or silence django_ojs.W008."
    return [Caution("OJS['WEBHOOK_ALLOW_HTTP'] sends events unencrypted.", hint=hint, id="django_ojs.W008")]


@register(Tags.security, deploy=True)
def check_anonymous(**kwargs: Any) -> _CheckResult:
    """W001: outside DEBUG every caller needs credentials."""
    if ojs_settings.ALLOW_ANONYMOUS and not settings.DEBUG:
        return [
            Caution(
                "OJS['ALLOW_ANONYMOUS'] lets everybody enqueue, run and delete jobs.",
                hint="Leave it out, and give callers keys: manage.py ojs_apikey create.",
                id="django_ojs.W001",
            )
        ]
    return []


@register(Tags.compatibility, deploy=True)
def check_pool(**kwargs: Any) -> _CheckResult:
    """W006: under ASGI only a pool, or the threads of ASGI_THREADS with CONN_MAX_AGE, keep a connection."""
    alias = database(None)
    config = settings.DATABASES.get(alias, {})
    postgres = "postgresql" in config.get("ENGINE", "")
    if not postgres or not getattr(settings, "ASGI_APPLICATION", None) or config.get("OPTIONS", {}).get("pool"):
        return []
    if ojs_settings.ASGI_THREADS > 0 and config.get("CONN_MAX_AGE", 0) != 0:
        return []
    return [
        Caution(
            f"Under ASGI every request opens a connection of its own to the database {alias!r}: OJS over HTTP is slow.",
            hint=_options_hint(alias, pool=POOL_OPTIONS)
            + " It takes psycopg[pool] and CONN_MAX_AGE = 0. Or set CONN_MAX_AGE = 60, if Django serves few other pages"
            " under ASGI. Silence django_ojs.W006 if only WSGI serves this site.",
            id="django_ojs.W006",
        )
    ]


@register(Tags.compatibility, deploy=True)
def check_pool_patience(**kwargs: Any) -> _CheckResult:
    """W012: a pool that waits for long lets requests stall after the database has cut connections."""
    alias = database(None)
    pool = settings.DATABASES.get(alias, {}).get("OPTIONS", {}).get("pool")
    if not pool:
        return []
    given = pool if isinstance(pool, Mapping) else {}
    waits = {"timeout": given.get("timeout", 30), "reconnect_timeout": given.get("reconnect_timeout", 300)}
    long = [f"{name} is {seconds:g} s" for name, seconds in waits.items() if seconds > _POOL_PATIENCE]
    if not long:
        return []
    return [
        Caution(
            f"The pool of the database {alias!r} is too patient ({' and '.join(long)}): requests stall for that long "
            "after connections were cut.",
            hint=_options_hint(alias, pool=POOL_OPTIONS),
            id="django_ojs.W012",
        )
    ]


#: Seconds of a pool's timeouts from which on it is too patient.
_POOL_PATIENCE = 10


@register(Tags.urls)
def check_urls(**kwargs: Any) -> _CheckResult:
    """W002, E007: the HTTP binding is reachable, and can tell who calls."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    if _includes_us(_patterns()):
        return _check_auth()
    hint = (
        'Add path("", include("django_ojs.urls")) to the root URLconf, '
        "or silence django_ojs.W002 if only Python enqueues."
    )
    return [Caution("The URLs of django-ojs are not included.", hint=hint, id="django_ojs.W002")]


def _check_auth() -> _CheckResult:
    needed = ("django.contrib.auth", "django.contrib.contenttypes")
    if not (missing := [app for app in needed if not apps.is_installed(app)]):
        return []
    hint = f"Add {' and '.join(map(repr, missing))} to INSTALLED_APPS; sessions and their middleware can stay away."
    return [Error("The HTTP binding needs Django's users and permissions.", hint=hint, id="django_ojs.E007")]


@register(Tags.admin)
def check_admin(**kwargs: Any) -> _CheckResult:
    """W016: where the URLs lead to an admin, one of its sites has our pages."""
    if not apps.is_installed("django.contrib.admin") or not getattr(settings, "ROOT_URLCONF", None):
        return []
    sites = list(_admin_sites(_patterns()))
    if not sites or any(model._meta.app_label == "django_ojs" for site in sites for model in site._registry):
        return []
    message = f"The admin site {sites[0].name!r} has none of the pages of django-ojs."
    hint = (
        "Call django_ojs.admin.register_all(site) with your AdminSite (docs/dashboard.md), "
        "or silence django_ojs.W016 if operators do without."
    )
    return [Caution(message, hint=hint, id="django_ojs.W016")]


@register(Tags.urls)
def check_approval_pages(**kwargs: Any) -> _CheckResult:
    """E014: the links in mails about approvals lead to pages of the admin."""
    if not _mails_approvals() or not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        reverse("admin:django_ojs_approval_link")
    except NoReverseMatch:
        message = "OJS['APPROVAL_MAIL'] is set, and the admin has no pages of approvals to which a mail could lead."
        hint = "Include the URLs of an admin site that has the pages of django-ojs (docs/dashboard.md)."
        return [Error(message, hint=hint, id="django_ojs.E014")]
    return []


@register(Tags.security, deploy=True)
def check_approval_sender(**kwargs: Any) -> _CheckResult:
    """E014: mails about approvals come from an address of the site's own, where they leave the machine."""
    placeholder = global_settings.DEFAULT_FROM_EMAIL
    if not _mails_approvals() or placeholder != settings.DEFAULT_FROM_EMAIL or _mail_backend() in _LOCAL_MAIL:
        return []
    message = f"OJS['APPROVAL_MAIL'] is set, and its mails come from {placeholder}, which mail servers refuse."
    hint = "Set DEFAULT_FROM_EMAIL to an address from which your site may send."
    return [Error(message, hint=hint, id="django_ojs.E014")]


def _mail_backend() -> str:
    """What the site names to send its mails; '' where it names nothing. Who asks Django 6.1 for a setting that has been
    replaced by `MAILERS` gets a warning, also where only its default is there."""
    if mailers := getattr(settings, "MAILERS", None):
        return str(mailers.get("default", {}).get("BACKEND", ""))
    return settings.EMAIL_BACKEND if settings.is_overridden("EMAIL_BACKEND") else ""


#: Backends whose mails do not leave the machine.
_LOCAL_MAIL = {f"django.core.mail.backends.{name}.EmailBackend" for name in ("console", "dummy", "filebased", "locmem")}


def _mails_approvals() -> bool:
    try:
        return approvals.parse_mail(ojs_settings.APPROVAL_MAIL) is not None
    except InvalidRequest:
        return False  # E002 says so


@register(Tags.compatibility)
def check_driver(**kwargs: Any) -> _CheckResult:
    """W017: PostgreSQL wakes workers through psycopg 3 only."""
    alias = database(None)
    if connections[alias].vendor != "postgresql":
        return []
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # sites on another database have no driver

    if is_psycopg3:
        return []
    message = f"Django uses psycopg2 for the database {alias!r}, and only psycopg 3 wakes workers that sleep."
    hint = (
        "Install psycopg 3 beside it: pip install 'django-ojs[postgres]'. Django then uses it. Until then workers look "
        "for jobs twice a second; silence django_ojs.W017 if that is enough."
    )
    return [Caution(message, hint=hint, id="django_ojs.W017")]


@register(Tags.database)
def check_databases(databases: Sequence[str] | None = None, **kwargs: Any) -> _CheckResult:
    """W101 to W107: the database that holds the jobs is set up for many workers, and for every text."""
    alias = database(None)
    if alias not in (databases or ()):
        return []
    connection = connections[alias]
    check = _VENDORS.get(connection.vendor)
    return list(check(alias, connection)) if check else []


def _read_retention(value: Mapping[str, float | None]) -> None:
    for state, age in value.items():
        if state not in (known := Settings().RETENTION):
            raise InvalidRequest(f"There is no {state!r}: there are {', '.join(known)}.")
        if age is not None and age < 0:
            raise InvalidRequest(f"{state} is {age!r}, and must not be negative. None keeps jobs for ever.")


#: Settings with a form of their own: what reads them, and the page that describes them.
_READ: dict[str, tuple[Callable[[Any], object], str]] = {
    "REPLAY_RULES": (replayrules.parse_all, "docs/dead-letters.md"),
    "ALERTS": (alertrules.parse, "docs/how-to/alerts.md"),
    "APPROVAL_MAIL": (approvals.parse_mail, "docs/durable.md"),
    "RETRY": (read_retry, "docs/options.md"),
    "RETENTION": (_read_retention, "docs/retention.md"),
}


def _check_setting(key: Any, value: Any) -> Iterator[CheckMessage]:
    if key not in FIELDS:
        near = suggest.nearest(str(key), FIELDS.keys())
        hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(sorted(FIELDS))}."
        yield Error(f"OJS has no setting {key!r}.", hint=hint, id="django_ojs.E001")
        return
    wanted = typing.get_type_hints(Settings)[key]
    if not _fits(value, wanted):
        yield Error(f"OJS[{key!r}] is {value!r:.80}.", hint=f"It must be {_describe(wanted)}.", id="django_ojs.E002")
    elif key == "REDACT":
        for problem in redaction.problems(value):
            yield Error(f"OJS['REDACT'] is wrong. {problem}", hint="See docs/security.md.", id="django_ojs.E002")
    elif key == "RETRY" and (found := [*not_spellings(unknown_in_policy("retry", value, "OJS['RETRY']"))]):
        for unknown in found:
            hint = f"There are {', '.join(sorted(POLICY_MEMBERS['retry']))}."
            yield Error(f"{unknown.path} {unknown.sentence()}", hint=hint, id="django_ojs.E002")
    elif key in _READ:
        read, page = _READ[key]
        try:
            read(value)
        except OJSError as error:
            yield Error(f"OJS[{key!r}] is wrong. {error}", hint=f"See {page}.", id="django_ojs.E002")
    elif isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        yield Error(f"OJS[{key!r}] is {value!r}.", hint="It must not be negative.", id="django_ojs.E002")


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a setting has the type that `Settings` declares; a list serves where a tuple is asked for."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in arguments)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(name, arguments[0]) and _fits(item, arguments[1]) for name, item in value.items()
        )
    if wanted is Any:
        return True
    if origin is not None:
        return callable(value)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _describe(wanted: Any) -> str:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Literal:
        return " or ".join(repr(word) for word in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(option) for option in arguments)
    if origin is tuple:
        return "a list of strings" if arguments[0] is str else "a list of dicts"
    if origin is Callable:
        return "a callable"
    if origin is not None and len(arguments) == 2 and typing.get_origin(arguments[1]) is typing.Literal:
        return f"a dict whose values are {_describe(arguments[1])}"
    if origin is not None:
        return "a dict"
    names = {str: "a string", int: "a whole number", float: "a number", bool: "True or False", type(None): "None"}
    return names.get(wanted, str(wanted))


def _strings(name: str) -> list[str]:
    """The dotted paths of a setting, whatever else is wrong with it."""
    given = (getattr(settings, "OJS", None) or {}).get(name, FIELDS[name].default)
    return [path for path in given if isinstance(path, str)] if isinstance(given, list | tuple) else []


def _patterns() -> Iterable[Any]:
    from django.urls import get_resolver

    return get_resolver().url_patterns


def _includes_us(patterns: Iterable[Any]) -> bool:
    for pattern in patterns:
        module = getattr(pattern, "urlconf_name", None)
        if getattr(module, "__name__", module) == "django_ojs.urls":
            return True
        if hasattr(pattern, "url_patterns") and _includes_us(pattern.url_patterns):
            return True
    return False


def _admin_sites(patterns: Iterable[Any]) -> Iterator[Any]:
    """The admin sites that these URLs lead to: their views name them."""
    for pattern in patterns:
        if getattr(pattern, "app_name", None) == "admin":
            found = (
                getattr(one.callback, "admin_site", None) for one in pattern.url_patterns if hasattr(one, "callback")
            )
            yield from {site for site in found if site is not None}
        elif hasattr(pattern, "url_patterns"):
            yield from _admin_sites(pattern.url_patterns)


def _options_hint(alias: str, **options: Any) -> str:
    inside = ", ".join(f'"{name}": {value!r}' for name, value in options.items())
    return f'Set DATABASES["{alias}"]["OPTIONS"] = {{{inside}}}.'


def _check_sqlite(alias: str, connection: Any) -> Iterator[CheckMessage]:
    hint = _options_hint(alias, **SQLITE_OPTIONS)
    with connection.cursor() as cursor:
        journal = cursor.execute("PRAGMA journal_mode").fetchone()[0]
        patience = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
    if journal not in ("wal", "memory"):  # a database in memory has no journal to speak of
        message = f"SQLite's journal mode is {journal}: every write stops all readers."
        yield Caution(message, hint=hint, id="django_ojs.W101")
    if (connection.transaction_mode or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        message = "SQLite transactions take the write lock late: two workers fail with 'database is locked'."
        yield Caution(message, hint=hint, id="django_ojs.W102")
    if patience < 10_000:
        message = f"SQLite waits {patience} ms for a lock, too little beside several workers."
        yield Caution(message, hint=hint, id="django_ojs.W103")


def _check_postgresql(alias: str, connection: Any) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = cursor.fetchone()[0]
    if "isolation_level" in connection.settings_dict["OPTIONS"]:  # the driver asks for it where a transaction begins
        level = connection.isolation_level.name.lower().replace("_", " ")
    if level != "read committed":
        yield Caution(
            f"PostgreSQL runs at isolation level {level}: what meets a change that another transaction has just made "
            "fails. Workers and calls do it again by themselves; an enqueue() inside a transaction of the site cannot.",
            hint=f'Leave "isolation_level" out of DATABASES["{alias}"]["OPTIONS"]; read committed is the default.',
            id="django_ojs.W104",
        )
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_encoding")
        encoding = cursor.fetchone()[0]
    if encoding != "UTF8":
        message = f"PostgreSQL keeps texts as {encoding}: jobs with characters that it lacks are refused with an error."
        hint = "Move the site to a database that was made with ENCODING 'UTF8'."
        yield Caution(message, hint=hint, id="django_ojs.W107")


def _check_mysql(alias: str, connection: Any) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@tx_isolation" if connection.mysql_is_mariadb else "SELECT @@transaction_isolation")
        level = cursor.fetchone()[0]
    if level.upper() != "READ-COMMITTED":
        yield Caution(
            f"The database runs at isolation level {level}: its gap locks make workers wait for each other.",
            hint=_options_hint(alias, isolation_level="read committed"),
            id="django_ojs.W105",
        )
    if not connection.features.has_select_for_update_skip_locked:
        message = "This database has no SKIP LOCKED: workers claim one after the other."
        yield Caution(message, hint="Use MariaDB 10.6 or newer.", id="django_ojs.W106")
    with connection.cursor() as cursor:
        cursor.execute(_CHARACTER_SET)
        encoding = cursor.fetchone()[0]
    if encoding != "utf8mb4":
        message = f"The tables keep texts as {encoding}: jobs with characters that it lacks are refused with an error."
        hint = (
            "ALTER DATABASE ... CHARACTER SET utf8mb4, and make the tables again: dumpdata django_ojs, "
            "migrate django_ojs zero, migrate, loaddata."
        )
        yield Caution(message, hint=hint, id="django_ojs.W107")


#: That of the arguments of jobs; before the first migrate, that which new tables get.
_CHARACTER_SET = (
    "SELECT coalesce((SELECT character_set_name FROM information_schema.columns WHERE table_schema = database() "  # noqa: S608
    f"AND table_name = '{Job._meta.db_table}' AND column_name = 'args'), @@character_set_database)"
)


_VENDORS: dict[str, Callable[[str, Any], Iterator[CheckMessage]]] = {
    "sqlite": _check_sqlite,
    "postgresql": _check_postgresql,
    "mysql": _check_mysql,
}


# Jobs in another database than the site's data (docs/second-database.md).


@register(Tags.compatibility)
def check_second_database(**kwargs: Any) -> _CheckResult:
    """E010, W010, W011: where the jobs are in another database than the site's data, an outbox joins them."""
    outbox, jobs = (getattr(settings, "OJS", None) or {}).get("OUTBOX"), database(None)
    if outbox is not None and outbox not in list(settings.DATABASES):
        hint = f"DATABASES has {', '.join(sorted(settings.DATABASES))}."
        return [Error(f"OJS['OUTBOX'] is {outbox!r}, which is no database.", hint=hint, id="django_ojs.E010")]
    if outbox == jobs:
        hint = "Set OJS['OUTBOX'] to None: enqueue() is in the caller's transaction as it is."
        return [Caution(f"The outbox is in {jobs!r}, where the jobs are.", hint=hint, id="django_ojs.W011")]
    callers = _callers()
    if jobs in callers:
        return []  # they share it with the site's data; other databases are beside it on purpose
    return [
        Caution(
            f"enqueue() does not join the transactions of {', '.join(names[:3])}{' and others' * (len(names) > 3)}, "
            f"whose data is in {alias!r} while the jobs are in {jobs!r}: a rollback leaves the job, and a worker may "
            "run it before the data is committed.",
            hint=f"Set OJS['OUTBOX'] = {alias!r} and migrate it (docs/second-database.md), or route both to one "
            "database. Silence django_ojs.W010 if no code enqueues inside these transactions.",
            id="django_ojs.W010",
        )
        for alias, names in sorted(callers.items())
        if alias != outbox
    ]


def _callers() -> dict[str, list[str]]:
    """The databases that the site's own models are written to, and the apps that do, those of Django last."""
    found: dict[str, list[str]] = {}
    for config in sorted(apps.get_app_configs(), key=lambda config: config.name.startswith("django.")):
        if config.name == "django_ojs":
            continue
        for model in config.get_models(include_auto_created=True):
            names = found.setdefault(router.db_for_write(model), [])
            if model._meta.managed and config.label not in names:
                names.append(config.label)
    return {alias: names for alias, names in found.items() if names}


@register(Tags.database)
def check_schedules(databases: Sequence[str] | None = None, **kwargs: Any) -> _CheckResult:
    """W111: where the scheduler does not synchronise schedules, the database has those of the code."""
    alias, table = database(None), CronSchedule._meta.db_table
    if alias not in (databases or ()) or check_settings() or ojs_settings.SYNC_SCHEDULES or check_handlers():
        return []
    with connections[alias].cursor() as cursor:
        introspection = connections[alias].introspection
        if table not in introspection.table_names(cursor):
            return []
        if "declared" not in [column.name for column in introspection.get_table_description(cursor, table)]:
            return []
    try:
        names = ", ".join(out_of_date(alias))
    except NotSynchronised as error:
        names = str(error)
    if not names:
        return []
    hint = "Run manage.py ojs_cron sync at each deploy, after migrate, or leave OJS['SYNC_SCHEDULES'] on."
    message = f"Schedules are not in the database as the code says (@job with cron=): {names}"
    return [Caution(message, hint=hint, id="django_ojs.W111")]


@register(Tags.database)
def check_outbox(databases: Sequence[str] | None = None, **kwargs: Any) -> _CheckResult:
    """W110: the table of the outbox is where the setting says, or `migrate` is going to make it there. A warning, or
    `migrate` would refuse to."""
    alias = (getattr(settings, "OJS", None) or {}).get("OUTBOX")
    if alias is None or alias not in (databases or ()) or alias not in list(settings.DATABASES):
        return []
    table = OutboxEntry._meta.db_table
    if table in connections[alias].introspection.table_names():
        return []
    migrated = any(app == "django_ojs" for app, _ in MigrationRecorder(connections[alias]).applied_migrations())
    if not migrated and router.allow_migrate_model(alias, OutboxEntry):
        return []
    first = f" after manage.py migrate django_ojs zero --fake --database {alias}" if migrated else ""
    hint = (
        "A router must let it be made there (django_ojs.routers.JobsRouter). Then run manage.py migrate django_ojs "
        f"--database {alias}{first}."
    )
    message = f"The database {alias!r} has no table {table}: every enqueue() fails."
    return [Caution(message, hint=hint, id="django_ojs.W110")]
