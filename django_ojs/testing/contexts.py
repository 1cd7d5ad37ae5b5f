"""A `JobContext` without a worker, for tests that call a handler as the function that it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from asgiref.sync import async_to_sync

from django_ojs import clock, jsontext, spellings
from django_ojs.client.context import JobContext
from django_ojs.client.options import attributes, check_json, decode_arguments
from django_ojs.client.running import running
from django_ojs.client.steps import Durable, MemorySteps, StepError, StepLog
from django_ojs.conf import ojs_settings
from django_ojs.jobs.checkpoints import Kept
from django_ojs.messages import shown
from django_ojs.models.job import blank_row
from django_ojs.registry import registry
from django_ojs.rules import errorobjects, retrypolicy
from django_ojs.rules.ids import new_job_id
from django_ojs.states import State
from django_ojs.testing.jobs import JobType, name_of


def job_context(
    type: JobType = "test.job",
    args: Sequence[Any] = (),
    *,
    queue: str | None = None,
    attempt: int = 1,
    max_attempts: int | None = None,
    meta: Mapping[str, Any] | None = None,
    parent_results: Sequence[Any] | Mapping[str, Any] = (),
    parent_errors: Mapping[str, Mapping[str, Any]] | None = None,
    checkpoint: Any = None,
) -> JobContext:
    """What a worker gives a handler that takes a context, for a call in a test. Needs no database, and stores nothing.

    Args:
        type: the job type, by its name or by its handler.
        args: the `args` of the job. The handler gets its arguments from its caller all the same.
        queue: the name of the job's queue; by default that of the handler.
        attempt: the number of this attempt; 1 is the first. It is the last one if it is `max_attempts`.
        max_attempts: after how many attempts the job is given up; by default as the handler and the site say.
        meta: the job's `meta`.
        parent_results: the results of the jobs before this one in its workflow: a list, or in a graph a dict by the
            names of the steps.
        parent_errors: for a callback, the errors of the jobs that failed, by their places ("0", "1", ...).
        checkpoint: the state that an earlier attempt has saved.

    The context keeps what `context.checkpoint()` saves. The steps of a durable handler are kept in it, too: they run at
    once, and sleeps take no time. It waits for no event: `context.emit("order.paid", 7, payload)` before the call lets
    it find one. Jobs that it runs (`context.run`) are called here, each with a context of its own and tried once.

    `context.cancel()` lets `is_cancelled` be true, `context.take_progress()` is the newest report, `(50.0, "half",
    None)`, and `context.result` what the handler gave to `set_result()`.

    Raises TypeError for arguments and meta that are not JSON.
    """
    name = name_of(type)
    by_step = dict(parent_results) if isinstance(parent_results, Mapping) else {}
    if by_step:
        check_json(by_step, "parent_results")
        parent_results = list(by_step.values())
    for argument, given, kind in (("args", args, Sequence), ("meta", meta or {}, Mapping),
                                  ("parent_results", parent_results or (), Sequence),
                                  ("parent_errors", parent_errors or {}, Mapping)):  # fmt: skip
        if not isinstance(given, kind) or isinstance(given, str | bytes):
            raise TypeError(f"{argument}={shown(given)}: give a {'dict' if kind is Mapping else 'list'}.")
    for argument, number in (("attempt", attempt), ("max_attempts", max_attempts)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise TypeError(f"{argument}={shown(number)}: give a whole number.")
    check_json(list(args), "args")
    check_json(dict(meta or {}), "meta")
    check_json(list(parent_results), "parent_results")
    check_json(dict(parent_errors or {}), "parent_errors")
    now = clock.now()
    definition: Any = registry.get(type) if isinstance(type, str) else type
    options = {} if definition is None else definition._options
    row = blank_row(
        now, id=new_job_id(), type=name, queue=queue or options.get("queue", "default"),
        state=State.ACTIVE.value, args=jsontext.dumps(list(args)), meta=jsontext.dumps(dict(meta or {})),
        attempt=attempt, max_attempts=_most_attempts(options) if max_attempts is None else max_attempts, started_at=now,
    )  # fmt: skip
    results = {"parent_results": list(parent_results), "parent_results_by_step": by_step}
    lineage = {"lineage": {**results, "parent_errors": dict(parent_errors or {})}}
    check_json(checkpoint, "checkpoint")
    kept = {} if checkpoint is None else {"checkpoint": Kept(jsontext.dumps(checkpoint), 1)}
    context = JobContext({**row, **lineage, **kept})
    log = StepLog(MemorySteps(_call), Durable("", "restart"), attempt, sequential=False)
    context.record_steps(log, definition)
    return context


def _most_attempts(options: Mapping[str, Any]) -> int:
    """How often a job with these options is tried: what the site says for all jobs counts where they say nothing."""
    own = attributes({name: value for name, value in options.items() if name == "retry"}).get("retry", {})
    return retrypolicy.merge(spellings.read_retry(ojs_settings.RETRY), spellings.read_retry(own)).max_attempts


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _call(document: dict[str, Any]) -> dict[str, Any]:
    """What becomes of a job that is run here and now, as its parent is told of it."""
    name, args = document["type"], document["args"]
    definition: Any = registry.get(name)
    if definition is None:
        raise StepError(f"The handler runs the job {name!r}, and no handler of that type is known here.")
    context = job_context(name, args, meta=document.get("meta"))
    known = {"id": str(context.id), "type": name}
    given, named = decode_arguments(args)
    if definition.typed is not None:
        given, named = definition.typed.decode(given, named)
    token = running.set(context)
    try:
        result = definition.handler(*([context] if definition.takes_context else []), *given, **named)
        if inspect.isawaitable(result):
            result = async_to_sync(_awaited)(result)
        if context.result is not None:
            result = context.result
        check_json(result, "result")
    except Exception as error:  # noqa: BLE001 - the parent gets it, as it gets that of a job
        said = errorobjects.from_exception(error)
        shown = {word: said.get(word) for word in ("code", "type", "message")}
        return known | {"state": State.DISCARDED.value, "error": shown}
    finally:
        running.reset(token)
    return known | {"state": State.COMPLETED.value, "result": result}
