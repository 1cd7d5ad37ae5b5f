"""Mistakes that mypy must find; each line says with which error code."""

from __future__ import annotations

from django_ojs import JobContext, batch, chain, enqueue, job
from django_ojs.testing import fake


@job("email.send")
def send_email(to: str, template: str) -> None: ...


@job("file.hash")
def hash_file(context: JobContext, path: str) -> None: ...


@job("email.other", quue="email")  # E: call-overload
def other() -> None: ...


@job("email.late", delay="10m")  # E: call-overload
def late() -> None: ...


@job("email.again", retry={"max_attemps": 5})  # E: call-overload
def again() -> None: ...


@job("email.grow", retry={"backoff_strategy": "zigzag"})  # E: call-overload
def grow() -> None: ...


@job("email.once", unique={"on_conflict": "forget"})  # E: call-overload
def once() -> None: ...


send_email.options(unique={"states": ["running"]}).enqueue("a", "b")  # E: arg-type
send_email.options(rate_limit={"rate": {"limit": 1}}).enqueue("a", "b")  # E: typeddict-item
send_email.enqueue("a")  # E: call-arg
send_email.enqueue("a", 1)  # E: arg-type
send_email.enqueue("a", "b", "c")  # E: call-arg
send_email.s(1, "b")  # E: arg-type
send_email.options(dellay="10m").enqueue("a", "b")  # E: call-arg
send_email.options(delay=[]).enqueue("a", "b")  # E: arg-type
send_email.options(delay=1).enqueue("a")  # E: call-arg
hash_file.enqueue(1)  # E: arg-type
hash_file("a", "b")  # E: arg-type
enqueue("email.send", 1, queue=5)  # E: arg-type

chain(send_email.s("a"))  # E: call-arg
chain(send_email)  # E: arg-type
chain(send_email.s("a", "b")).enqueue(dellay="10m")  # E: call-arg
chain(send_email.s("a", "b")).enqueue(queue=5)  # E: arg-type
batch(send_email.s("a", "b"), on_end=send_email.s("a", "b"))  # E: call-arg


async def asynchronous() -> None:
    await send_email.aenqueue("a")  # E: call-arg
    await send_email.options(priority=[]).aenqueue("a", "b")  # E: arg-type
    send_email.aenqueue("a", "b")  # E: unused-coroutine


with fake() as jobs:
    jobs.assert_enqueued("email.send", que="email")  # E: call-arg
    jobs.assert_enqueued("email.send", delay=[])  # E: arg-type
    jobs.assert_enqueued(5)  # E: arg-type
    jobs.drain()  # E: attr-defined
