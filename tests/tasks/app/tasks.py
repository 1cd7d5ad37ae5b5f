"""Tasks of a site, as they would be written for any backend."""

from __future__ import annotations

import asyncio
from typing import Any

from django.contrib.auth.models import Group

from django_ojs import Retry
from tests.tasks.api import TaskContext, task

#: What the tasks saw, for the test in the same process.
SEEN: list[Any] = []


class UnknownElsewhere(Exception):
    """An exception that a test can make disappear."""


@task
def add(a: int, b: int = 0) -> int:
    SEEN.append((a, b))
    return a + b


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task
def count(*args: Any) -> int:
    return len(args)


@task
def give(kind: str) -> Any:
    """Return values that JSON has, has almost, and has not."""
    return {
        "tuple": lambda: (1, (2, 3)), "bytes": lambda: b"text", "keys": lambda: {1: {2: 3}}, "none": lambda: None,
        "falsy": lambda: 0, "object": object, "nan": lambda: float("nan"), "set": lambda: {1},
        "raw bytes": lambda: b"\xff", "coroutine": lambda: aadd.func(1, 2),
    }[kind]()  # fmt: skip


@task(queue_name="mail", priority=7)
def with_defaults() -> str:
    return "sent"


@task(takes_context=True)
def look(context: TaskContext, word: str) -> dict[str, Any]:
    result = context.task_result
    return {
        "word": word, "attempt": context.attempt, "status": str(result.status), "workers": len(result.worker_ids),
        "id": result.id, "job": context.job.type,
    }  # fmt: skip


@task(backend="patient")
def fail_first(times: int) -> str:
    """Fail so many times, then succeed."""
    SEEN.append("try")
    if SEEN.count("try") <= times:
        raise UnknownElsewhere(f"try {SEEN.count('try')}")
    return "at last"


@task(takes_context=True, backend="patient")
async def afail_first(context: TaskContext, times: int) -> int:
    await asyncio.sleep(0)
    if context.attempt <= times:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task
def fail(message: str = "broken") -> None:
    raise ValueError(message)


@task
def fail_because(key: str) -> None:
    try:
        {}[key]
    except KeyError as error:
        raise ValueError("no such thing") from error


@task
def fail_without_frames() -> None:
    raise ValueError("no such thing") from KeyError("price")


@task
def leave() -> None:
    raise SystemExit(3)


@task
def retry_later() -> None:
    raise Retry("not yet", after="1h")


@task
async def afail() -> None:
    raise KeyError("asynchronous")


@task
async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@task
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@task
def write(name: str) -> None:
    Group.objects.create(name=name)


@task(backend="immediate")
def of_another_backend(word: str) -> str:
    return word.upper()
