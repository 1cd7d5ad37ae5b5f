"""The timeouts of a job: in seconds or, with `_ms`, in milliseconds (binding 3.1, 3.2 and 5)."""

from __future__ import annotations

from typing import Any

from django_ojs.jsontext import is_integer
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import checked, job_fault
from django_ojs.rules.source import OTHER_TIMEOUTS, Found, Source


def execution(source: Source, extra: dict[str, Any]) -> int | None:
    """Milliseconds one attempt may run; None where the default applies, which an explicit 0 asks for too.

    `timeout` is echoed only to a producer that used it, `timeout_ms` to every one that set a limit: there
    are workers that read `timeout` as milliseconds.
    """
    found = source.find("timeout_ms", "timeout", top=("timeout", "timeout_ms"))
    if found.value is None:
        return None
    ms = _milliseconds(found, least=0)
    if not found.path.endswith("_ms"):
        extra["timeout"] = found.value
    if not ms:
        return None
    extra["timeout_ms"] = ms
    return ms


def visibility(source: Source, extra: dict[str, Any]) -> int | None:
    """Milliseconds a claim holds, None where queue or server decide; a string is a duration."""
    in_options = ("visibility_timeout_ms", "visibility_timeout")
    found = source.find(*in_options, top=("visibility_timeout", "visibility_timeout_ms"))
    if found.value is None:
        return None
    ms = _milliseconds(found, least=1, or_duration=True)
    if not found.path.endswith("_ms"):
        extra["visibility_timeout"] = found.value
    extra["visibility_timeout_ms"] = ms
    return ms


def others(source: Source, extra: dict[str, Any], timeout_ms: int | None) -> dict[str, int]:
    """Total, enqueue, heartbeat and grace timeouts in milliseconds, those that were given; echoed as sent."""
    limits: dict[str, int] = {}
    for name in OTHER_TIMEOUTS:
        found = source.find(f"{name}_ms", name, top=(name, f"{name}_ms"))
        if found.value is None:
            continue
        ms = _milliseconds(found, least=0 if name == "grace_period" else 1)
        if name == "total_timeout" and timeout_ms is not None and ms < timeout_ms:
            raise job_fault(
                found.path,
                phrase("must not be shorter than the execution timeout (%(timeout_ms)s ms)", timeout_ms=timeout_ms),
                found.value,
            )
        extra[found.path.removeprefix("options.")] = found.value
        limits[name] = ms
    return limits


def _milliseconds(found: Found, least: int, or_duration: bool = False) -> int:
    value, path = found
    in_ms = path.endswith("_ms")
    if or_duration and not in_ms and isinstance(value, str):
        return checked(durations.parse_length_ms, value, path, job_fault)
    factor, unit = (1, "milliseconds") if in_ms else (1_000, "seconds")
    if not is_integer(value) or value < least:
        raise job_fault(
            path, phrase("must be an integer of %(unit)s, at least %(least)s", unit=unit, least=least), value
        )
    if value > (most := durations.MAX_MS // factor):
        raise job_fault(path, phrase("must be an integer of %(unit)s, at most %(most)s", unit=unit, most=most), value)
    return int(value) * factor
