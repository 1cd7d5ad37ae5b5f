"""From prepared jobs to stored ones, through the one door that all bindings use: `operations.push`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, Unpack

from asgiref.sync import sync_to_async
from django.db import connections

from django_ojs.client.definition import PreparedJob
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import Options, checked
from django_ojs.conf import ojs_settings
from django_ojs.registry import registry

#: What `enqueue_many` takes: `send_email.s("a", "b")`, `("report.make", [1])`, `("report.make", [1], {"delay": "5m"})`.
Enqueueable: TypeAlias = PreparedJob | tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], Mapping[str, Any]]


def enqueue(type: str, /, *args: Any, **options: Unpack[Options]) -> JobHandle:
    """Store a job by the name of its type, in the transaction that is open, if there is one.

    For a type with a handler in this site the handler's options and signature hold; for any other (its
    workers may be written in another language) only `options`. Raises as `.enqueue()` of a handler does.
    """
    return push([prepare(type, args, options)])[0]


def enqueue_many(jobs: Iterable[Enqueueable]) -> list[JobHandle]:
    """Store many jobs in order, all or none, in a number of statements that does not grow with theirs."""
    return push([entry if isinstance(entry, PreparedJob) else _from_tuple(entry) for entry in jobs])


enqueue_bulk = enqueue_many


def enqueue_after_commit(type: str, /, *args: Any, **options: Unpack[Options]) -> JobHandle:
    """`enqueue`, for code that wants to say it: no worker sees the job before the outermost commit, and a rollback
    takes it back, to a savepoint as well.

    `enqueue` gives the same, because it writes the job (with `OJS["OUTBOX"]`, what becomes the job) in the transaction
    that is open; no moment is left in which the commit is done and the job could be lost. This one also raises
    RuntimeError where that cannot be: a transaction is open, but not in the database that the job is written to.
    """
    alias = ojs_settings.OUTBOX or _database()
    if not connections[alias].in_atomic_block:
        others = sorted(c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block)
        if others:
            raise RuntimeError(
                f"A transaction is open in {', '.join(map(repr, others))}, but the job would be stored in {alias!r} at "
                f"once. Open one there, or set OJS['OUTBOX'] = {others[0]!r}."
            )
    return enqueue(type, *args, **options)


aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)


def _database() -> str:
    from django_ojs.operations.common import database

    return database(None)


def prepare(type: str, args: Sequence[Any], options: Mapping[str, Any]) -> PreparedJob:
    definition = registry.get(type)
    if definition is None:
        return PreparedJob(type, list(args), checked(options))
    prepared: PreparedJob = definition.options(**options).s(*args)
    return prepared


def push(jobs: Sequence[PreparedJob]) -> list[JobHandle]:
    """The handles of the stored jobs, in order; one that a middleware dropped has `dropped` set."""
    from django_ojs.operations.outbox import put
    from django_ojs.operations.push import push as operation

    if not jobs:
        return []
    documents = [prepared.document() for prepared in jobs]
    pushed = operation(documents) if ojs_settings.OUTBOX is None else put(documents)
    return [JobHandle(done.row, done.status) for done in pushed]


def _from_tuple(entry: Any) -> PreparedJob:
    if not isinstance(entry, tuple) or not 2 <= len(entry) <= 3 or not isinstance(entry[1], list | tuple):
        raise TypeError(
            f"enqueue_many was given {entry!r:.80}: give handler.s(...), (type, [args]) or (type, [args], {{options}})."
        )
    return prepare(entry[0], entry[1], entry[2] if len(entry) == 3 else {})
