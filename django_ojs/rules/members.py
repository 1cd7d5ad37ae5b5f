"""Members of a client's document that no rule of ours reads: slips such as `max_attemps`, which would mean nothing.

Core 5.5 has them kept, so the server names them in `warnings` and goes on; the Python API refuses them. Inside a policy
(`retry`, `unique`, `rate_limit`) every unknown member is named. A job, a workflow or a schedule may carry attributes of
the client's own, so there only those are named whose name is nearly one of ours, or stands in `options` only. Names
that begin with `x_`, `x-` or `ext_` are the client's and never named.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django_ojs.rules import ratelimit, retry, unique
from django_ojs.rules.source import OPTIONS, SYSTEM, TOP_LEVEL

CODE = "unknown_member"

_OWN = ("x_", "x-", "ext_")
#: How alike two names are where one is taken for the other: inside a policy, and where others may stand as well.
_IN_POLICY, _ANYWHERE = 0.6, 0.8
#: Names that other systems use for members of ours, and that are not alike.
_OTHER_NAMES = {
    "retries": "max_attempts", "max_retries": "max_attempts", "attempts": "max_attempts", "delay": "initial_interval",
    "backoff": "backoff_coefficient", "ttl": "period", "per": "period", "max": "limit",
}  # fmt: skip

#: The members of each policy, by the name of the attribute.
POLICIES: Mapping[str, frozenset[str]] = {
    "retry": retry.MEMBERS, "retry_policy": retry.MEMBERS, "unique": unique.MEMBERS, "rate_limit": ratelimit.MEMBERS,
}  # fmt: skip
_JOB = TOP_LEVEL - SYSTEM
_STEP = _JOB | {"name", "depends_on", "steps", "jobs", "callbacks"}
_WORKFLOW = frozenset({"type", "name", "id", "steps", "jobs", "callbacks", "options", "depends_on"})
_WORKFLOW_OPTIONS = OPTIONS | {"callback_type"}
_CRON = _JOB | {"name", "cron", "expression", "schedule", "timezone", "job_template", "overlap_policy", "enabled",
                "description"}  # fmt: skip


class Unknown(NamedTuple):
    """A member that means nothing: where it is, its name, and the name that the client probably wanted ('': none)."""

    path: str
    name: str
    suggestion: str

    def sentence(self) -> str:
        """What is wrong, after the path and without a full stop."""
        return "means nothing here" + (f"; did you mean {self.suggestion}?" if self.suggestion else "")

    def warning(self) -> dict[str, Any]:
        """The entry under `warnings` in an answer."""
        suggestion = {"suggestion": self.suggestion} if self.suggestion else {}
        return {"code": CODE, "path": self.path, "message": f"{self.path}: {self.sentence()}", **suggestion}


def in_policy(name: str, given: object, path: str = "") -> Iterator[Unknown]:
    """The unknown members of one policy: `name` is the attribute, `path` where the client wrote it."""
    if not isinstance(given, Mapping):
        return
    path = path or name
    yield from _strangers(given, POLICIES[name], path, _IN_POLICY, near_only=False)
    for part in ("rate", "throttle") if name == "rate_limit" else ():
        if isinstance(given.get(part), Mapping):
            window = ratelimit.WINDOW_MEMBERS
            yield from _strangers(given[part], window, f"{path}.{part}", _IN_POLICY, near_only=False)


def in_job(document: Mapping[str, Any], prefix: str = "", known: frozenset[str] = _JOB) -> Iterator[Unknown]:
    """The unknown members of an envelope, its `options` and its policies; every path begins with `prefix`."""
    yield from _attributes(document, known, prefix)
    options = document.get("options")
    if isinstance(options, Mapping):
        yield from _attributes(options, OPTIONS, f"{prefix}options.")


def in_workflow(document: Mapping[str, Any], path: str = "$") -> Iterator[Unknown]:
    """The unknown members of a workflow, of its options and of its steps, however deep."""
    yield from _strangers(document, _WORKFLOW, path, _ANYWHERE, near_only=True)
    options = document.get("options")
    if isinstance(options, Mapping):
        yield from _attributes(options, _WORKFLOW_OPTIONS, f"{path}.options.")
    for name in ("steps", "jobs"):
        items = document.get(name)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, Mapping):
                nested = any(item.get(part) is not None for part in ("steps", "jobs", "callbacks"))
                place = f"{path}.{name}[{index}]"
                yield from in_workflow(item, place) if nested else in_job(item, f"{place}.", _STEP)
    callbacks = document.get("callbacks")
    for name, item in callbacks.items() if isinstance(callbacks, Mapping) else ():
        if isinstance(item, Mapping):
            yield from in_job(item, f"{path}.callbacks.{name}.", _STEP)


def in_schedule(body: Mapping[str, Any]) -> Iterator[Unknown]:
    """The unknown members of the registration of a schedule and of the job in it."""
    yield from in_job(body, known=_CRON)
    template = body.get("job_template")
    if isinstance(template, Mapping):
        yield from in_job(template, "job_template.")


def warnings(found: Iterator[Unknown]) -> tuple[dict[str, Any], ...]:
    return tuple(unknown.warning() for unknown in found)


def _attributes(given: Mapping[str, Any], known: frozenset[str], prefix: str) -> Iterator[Unknown]:
    yield from _strangers(given, known, prefix.rstrip("."), _ANYWHERE, near_only=True)
    for name in POLICIES:
        if name in given and name in known:
            yield from in_policy(name, given[name], f"{prefix}{name}")


def _strangers(
    given: Mapping[str, Any], known: frozenset[str], path: str, alike: float, *, near_only: bool
) -> Iterator[Unknown]:
    if given.keys() <= known:
        return
    for name in given:
        if name not in known and name not in SYSTEM and not name.startswith(_OWN):
            in_options = near_only and name in OPTIONS
            suggestion = f"options.{name}" if in_options else _nearest(name[:100], known, alike)
            if suggestion or not near_only:
                yield Unknown(f"{path}.{name[:100]}" if path else name[:100], name[:100], suggestion)


@lru_cache(maxsize=1024)
def _nearest(name: str, known: frozenset[str], alike: float) -> str:
    if alike == _IN_POLICY and _OTHER_NAMES.get(name) in known:
        return _OTHER_NAMES[name]
    near = difflib.get_close_matches(name.lower(), known, 1, alike)
    return near[0] if near else ""
