"""Make the manifest, in which this server says what it can do (binding 2.2, conformance 4): all that it can, no
more."""

from __future__ import annotations

import importlib.metadata
from typing import Any
from urllib.parse import urlsplit

from django.db import connections, router
from django.urls import get_script_prefix

import django_ojs
from django_ojs import webhooks
from django_ojs.conf import ojs_settings
from django_ojs.http import body, claim
from django_ojs.models import Job
from django_ojs.rules import names, schemas

SPECVERSION = "1.0"
#: What `ojs_conformance --record` has seen pass: no claim is written here by hand.
CLAIM = claim.read()
CONFORMANCE_LEVEL = CLAIM.level if CLAIM else 0
#: How events can be had (events 7.2). What needs more than the URLs of the site is announced when it is put in place.
TRANSPORTS = ["http-polling"]
#: Pushes of one unique key take turns on every database (L4-UNIQ-003, jobs 2.6).
UNIQUE_JOB_STRENGTH = "strong"

CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "cron": True,  # by this name a dashboard looks for it
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": False,
    "unique_jobs": True,
    "workflows": True,
    "pause_resume": True,
    "webhooks": not webhooks.missing(),
    "events": True,
}
#: Extensions that are complete; a partly implemented one must not be named (docs/conformance.md says what is missing in
#: the others). Entries: name, uri, version.
EXTENSIONS: dict[str, list[dict[str, str]]] = {
    "official": [
        {"name": name, "uri": f"urn:ojs:ext:{name}", "version": "1.0.0"}
        for name in (
            *("admin-api", "backpressure", "bulk-operations", "dead-letter", "durable-execution"),
            *("graceful-shutdown", "priority", "progress", "queue-config", "rate-limiting", "results"),
            *([] if webhooks.missing() else ["webhooks"]),
        )
    ],
    "experimental": [],
}
#: Experimental extensions that a site may switch off, by the setting that does it.
SWITCHED = {"EXECUTION_HISTORY": "execution-history"}


def extensions() -> dict[str, list[dict[str, str]]]:
    """The extensions that this site has on."""
    on = [name for setting, name in SWITCHED.items() if getattr(ojs_settings, setting)]
    entries = [{"name": name, "uri": f"urn:ojs:ext:experimental:{name}", "version": "0.1.0"} for name in sorted(on)]
    return {**EXTENSIONS, "experimental": [*EXTENSIONS["experimental"], *entries]}


def _repository() -> str:
    """Where the package says its source is, in the metadata of the installed distribution; '' where it says nothing."""
    try:
        urls = importlib.metadata.metadata("django-ojs").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:  # used from a checkout
        return ""
    named = dict(url.split(", ", 1) for url in urls if ", " in url)
    return next((url for name, url in named.items() if name.lower() in ("repository", "source", "source code")), "")


#: Left out of the manifest while the package names none.
REPOSITORY = _repository()
_BACKENDS = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mysql", "oracle": "oracle"}


def backend() -> str:
    """The kind of database that holds the jobs, in the spec's words."""
    connection = connections[router.db_for_write(Job)]
    if connection.vendor == "mysql" and "mariadb" in type(connection).__module__:
        return "mariadb"
    return _BACKENDS.get(connection.vendor, connection.vendor)


def extension_uris() -> set[str]:
    """The extensions that this server has."""
    return {entry["uri"] for group in extensions().values() for entry in group}


def manifest(base_url: str, extensions: Any, *, streams: bool = False) -> dict[str, Any]:
    """The whole document. `base_url` is where the caller found us, without a slash at its end; `streams` says whether
    the server that brought the request can send answers that do not end, though the process has not announced it."""
    below = urlsplit(base_url).path  # where the site, or a proxy before it, has put us
    return {
        "specversion": SPECVERSION,
        "ojs_version": SPECVERSION,
        "implementation": {
            "name": "django-ojs",
            "version": django_ojs.__version__,
            "language": "python",
            "backend": backend(),
            **({"repository": REPOSITORY} if REPOSITORY else {}),
        },
        "conformance_level": CONFORMANCE_LEVEL,
        "conformance_tier": tier(),
        "protocols": protocols(),
        "backend": backend(),
        "capabilities": CAPABILITIES | {"schema_validation": schemas.available()},
        "extensions": extensions,
        "unique_job_strength": UNIQUE_JOB_STRENGTH,
        "schema_validation": schemas.available(),
        **_suite(),
        "payload_limits": payload_limits(),
        "events": events(streams),
        "endpoints": {
            "base_url": f"{base_url}/ojs/v1",
            "manifest": f"{below}/ojs/manifest",
            "health": f"{below}/ojs/v1/health",
            "events": f"{below}/ojs/v1/events",
            # Not among the site's URLs: only a proxy's prefix is before it.
            **({"websocket": f"{get_script_prefix()}ojs/v1/ws"} if "websocket" in TRANSPORTS else {}),
        },
    }


def protocols() -> list[str]:
    """The bindings that the site offers, from this process or from another."""
    return ["http", "grpc"] if ojs_settings.GRPC else ["http"]


def tier() -> str:
    """`full` where the site offers both bindings and the recorded run passed over both (conformance 3.3)."""
    passed = CLAIM.bindings if CLAIM else {}
    return "full" if ojs_settings.GRPC and "http" in passed and "grpc" in passed else "runtime"


def announce(transport: str) -> None:
    """Say in the manifest that this process serves events this way too."""
    if transport not in TRANSPORTS:
        TRANSPORTS.append(transport)


def events(streams: bool = False) -> dict[str, Any]:
    """The declaration of events 7.2, which the specification demands (events specification 9.1)."""
    others = {"grpc": ojs_settings.GRPC, "sse": streams, "webhook": not webhooks.missing()}
    return {
        "delivery": "at_least_once",
        "delivery_guarantee": "at_least_once",
        "ordering": "per_job",
        "retention_period": f"{ojs_settings.EVENT_RETENTION / 3600:g}h",
        "max_count": ojs_settings.EVENT_MAX_COUNT,
        "transports": [*dict.fromkeys([*TRANSPORTS, *(name for name, there in others.items() if there)])],
    }


def _suite() -> dict[str, str]:
    """Which test suite passed, and when; nothing if none was recorded. The suite is named: a version alone would mean
    that of the specification's authors."""
    if CLAIM is None:
        return {}
    return {"test_suite_version": f"{CLAIM.suite} {CLAIM.test_suite_version}", "test_suite_passed_at": CLAIM.passed_at}


def payload_limits() -> dict[str, Any]:
    return {
        "max_envelope_bytes": ojs_settings.MAX_ENVELOPE_BYTES,
        "max_meta_bytes": ojs_settings.MAX_META_BYTES,
        "max_result_bytes": ojs_settings.MAX_RESULT_BYTES,
        "max_batch_size": ojs_settings.MAX_BATCH_SIZE,
        "max_batch_bytes": ojs_settings.MAX_BATCH_BYTES,
        "max_queue_name_bytes": names.MAX_QUEUE_LENGTH,
        "max_job_type_bytes": names.MAX_TYPE_LENGTH,
        "supported_compression": body.compressions(),
        "external_references": True,
        "chunking": False,
        "per_queue_limits": False,
    }
