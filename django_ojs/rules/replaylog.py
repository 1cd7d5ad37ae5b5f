"""Write the steps of a durable job as the log that other OJS clients keep in a checkpoint, and read such a log.

The log is the JSON text of an array, in the checkpoint's `metadata._replay_log`. An entry has `seq`, `type` (`call`,
`time` or `random`), `key` (the name) and `result`. So a handler in one language goes on where one in another was.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from django_ojs import jsontext
from django_ojs.rules.durations import format_instant
from django_ojs.rules.steps import Step, StepKind

#: Where the log and the attempt stand in the metadata of a checkpoint.
LOG, ATTEMPT = "_replay_log", "attempt"
#: What the log has words for: a sleep is no entry of it, since it comes to its end by itself.
KINDS = (StepKind.CALL, StepKind.TIME, StepKind.RANDOM)
#: The steps that a log may bring: more are not read.
MOST = 10_000


def write(steps: Iterable[Step]) -> str:
    """The log of these steps, of those that have ended and have a word there."""
    told = [step for step in steps if step.has_ended and step.kind in KINDS]
    return jsontext.dumps([_entry(number, step) for number, step in enumerate(told, start=1)])


def read(text: object, now: dt.datetime) -> list[Step]:
    """The steps of a log in its order, as of `now`; none where the text is no such log."""
    if not isinstance(text, str):
        return []
    try:
        entries = jsontext.loads(text)
    except jsontext.JSONTextError:
        return []
    if not isinstance(entries, list) or len(entries) > MOST:
        return []
    return list(_steps(entries, now))


def _entry(number: int, step: Step) -> dict[str, Any]:
    result = jsontext.loads(step.result) if step.result else None
    if step.kind != StepKind.CALL and isinstance(result, dict):
        result = result.get("value")  # an instant or a UUID of ours, as text
        result = format_instant(dt.datetime.fromisoformat(str(result))) if step.kind == StepKind.TIME else result
    return {"seq": number, "type": step.kind, "key": step.name, "result": result}


def _steps(entries: list[Any], now: dt.datetime) -> Iterator[Step]:
    numbers: Counter[str] = Counter()
    seen: set[str] = set()
    for entry in entries:
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind not in KINDS:
            continue
        numbers[kind] += 1
        key = entry.get("key")
        name = key if isinstance(key, str) and 0 < len(key) <= 200 else f"${kind}-{numbers[kind]}"
        if name in seen:
            continue
        seen.add(name)
        result = jsontext.dumps(entry.get("result"))
        yield Step(name, kind, now, 0, code=None, ended_at=now, result=result)
