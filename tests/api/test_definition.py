"""`@job` keeps the function a function, and records at decoration what could not work later."""

from __future__ import annotations

import datetime as dt
import re
from functools import cache, partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import django_ojs
from django_ojs import JobContext, enqueue, enqueue_many, job
from django_ojs.checks import check_handlers
from django_ojs.client.options import ScheduledOptions
from django_ojs.registry import InvalidHandler, Registry
from django_ojs.testing import job_context


def told(handlers: Registry) -> str:
    """What is wrong with the declarations so far."""
    return "\n".join(map(str, handlers.faults()))


def test_the_help_of_job_lists_every_option() -> None:
    described = re.findall(r"^ +(\w+): ", (job.__doc__ or "").partition("Args:")[2], re.MULTILINE)
    assert sorted(described) == sorted(ScheduledOptions.__annotations__)


def test_a_look_at_the_package_shows_what_is_public() -> None:
    assert dir(django_ojs) == sorted(django_ojs.__all__)


def test_a_job_is_still_a_plain_function(handlers: Registry) -> None:
    @job("math.add")
    def add(a: int, b: int = 2) -> int:
        "Adds."
        return a + b

    assert add(1, b=3) == 4
    assert (add.__name__, add.__doc__, add.type, add.queue) == ("add", "Adds.", "math.add", "default")
    assert handlers.get("math.add") is add
    assert handlers.types() == ["math.add"]


async def test_an_asynchronous_job_is_still_a_coroutine_function(handlers: Registry) -> None:
    @job("math.aadd", queue="slow")
    async def aadd(a: int) -> int:
        return a

    assert await aadd(1) == 1
    assert aadd.is_async
    assert aadd.queue == "slow"


@pytest.mark.parametrize(
    "name,hint",
    [
        ("Send Email", "'send_email'"),
        ("email-send", "'email_send'"),
        ("email..send", "'email.send'"),
        ("", "email.send"),
    ],
)
def test_a_name_that_is_no_job_type_is_refused_with_a_hint(handlers: Registry, name: str, hint: str) -> None:
    job(name)(lambda: None)
    assert hint in told(handlers)


def test_the_published_dialect_allows_hyphens(handlers: Registry, settings: Any) -> None:
    settings.OJS = {"DIALECT": "published"}
    job("email-send")(lambda: None)
    assert handlers.types() == ["email-send"]


def test_a_forgotten_name_is_told(handlers: Registry) -> None:
    @job  # type: ignore[call-overload, arg-type]
    def send() -> int:
        return 7

    assert 'write @job("email.send"), not @job.' in told(handlers)
    assert send() == 7


def test_two_handlers_of_one_type_are_refused(handlers: Registry) -> None:
    @job("email.send")
    def first() -> None: ...

    @job("email.send")
    def second() -> None: ...

    assert re.search(r"two handlers, .*first and .*second", told(handlers))
    assert handlers.get("email.send") is first


def test_two_handlers_without_names_of_their_own_are_two(handlers: Registry) -> None:
    first, second = partial(print, 1), partial(repr, 1)
    for one, other in ((lambda: 1, second), (first, second)):
        with handlers.isolated():
            kept = job("email.send")(one)
            job("email.send")(other)
            assert "two handlers" in told(handlers)
            assert handlers.get("email.send") is kept
    assert "two handlers" not in told(handlers)
    job("email.send")(lambda: 1)
    job("email.send")(lambda: 2)
    assert re.search(r"<lambda> of line \d+ and .*<lambda> of line \d+", told(handlers))


class Sender:
    """What holds something of its own, and has handlers."""

    def __init__(self, server: str) -> None:
        self.server = server

    def send(self) -> str:
        return self.server

    __call__ = send

    @classmethod
    def kind(cls) -> str:
        return cls.__qualname__


class Mailer(Sender):
    """Has the same method as `Sender`."""


@pytest.mark.parametrize(
    "make, other",
    [
        (lambda: partial(print, 1), partial(print, 2)),
        (lambda: partial(print, 1), print),
        (lambda: partial(print, end=""), partial(print, end=" ")),
        (lambda: partial(Sender("a").send), partial(Sender("b").send)),
        (lambda: Sender("a").send, Sender("b").send),
        (lambda: Sender("a"), Sender("b")),
        (lambda: Sender.kind, Mailer.kind),
    ],
    ids=["arguments", "a function", "keywords", "partials of methods", "methods", "objects", "classes"],
)
def test_handlers_of_one_function_are_two_where_they_do_different_things(
    handlers: Registry, make: Any, other: Any
) -> None:
    kept = job("email.send")(make())
    again = job("email.send")(make())  # as where its module is reloaded
    assert told(handlers) == ""
    job("email.send")(other)
    assert "has two handlers, both of " in told(handlers)
    assert handlers.get("email.send") is again is not kept


def test_what_wraps_a_function_may_be_loaded_again(handlers: Registry) -> None:
    def define() -> list[Any]:
        def send(other: Any = None) -> None: ...

        return [cache(send), partial(cache(send), send), Sender(send).send]  # type: ignore[arg-type]

    for first, again in zip(define(), define(), strict=True):
        with handlers.isolated():
            job("email.send")(first)
            assert job("email.send")(again) is handlers.get("email.send")
            assert told(handlers) == ""


@pytest.mark.parametrize("odd", [None, 5, "send", Registry, dict, classmethod(print), property(print)])
def test_what_is_no_function_is_told(handlers: Registry, odd: Any) -> None:
    job("email.send")(odd)
    assert "stands above a function, not " in told(handlers)
    assert handlers.types() == []


def test_a_handler_of_another_type_is_no_function(handlers: Registry) -> None:
    """It took over the other's type, and had none of its own."""
    inner = job("email.inner")(lambda: 1)
    assert job("email.outer")(inner).type == "email.outer"
    assert "it stands above a function, not <job email.inner: " in told(handlers)


def test_what_a_function_has_is_not_taken_for_what_its_job_has(handlers: Registry) -> None:
    def send() -> int:
        return 7

    for name in ("type", "queue", "handler", "options", "enqueue"):
        setattr(send, name, "its own")
    send.note = "its own"  # type: ignore[attr-defined]
    found = job("email.send", queue="mail")(send)
    assert (found.type, found.queue, found.handler, found.note) == ("email.send", "mail", send, "its own")  # type: ignore[attr-defined]
    assert (found.options(queue="q").s().options["queue"], found()) == ("q", 7)


def test_a_partial_is_shown_by_its_function(handlers: Registry) -> None:
    assert repr(job("email.send")(partial(print, 1))) == "<job email.send: builtins.print>"


def test_a_reloaded_module_may_define_its_handlers_again(handlers: Registry) -> None:
    def define() -> Any:
        @job("email.send")
        def send() -> None: ...

        return send

    define()
    again = define()
    assert handlers.get("email.send") is again


def test_functions_that_no_call_runs_to_its_end_are_refused(handlers: Registry) -> None:
    @job("email.list")
    def generate() -> Any:
        yield 1

    assert "is a generator" in told(handlers)
    job("email.none", context=True)(lambda: None)  # type: ignore[arg-type, misc]
    assert "add `context`" in told(handlers)
    assert handlers.types() == []


@pytest.mark.parametrize(
    "options,complaint",
    [
        ({"retry": {"max_attempts": "many"}}, "max_attempts"),
        ({"retry": {"backoff": "linear"}}, "There are "),
        ({"retry": {"backof": 2}}, "Did you mean "),
        ({"unique": {"on_conflict": "skip"}}, "on_conflict"),
        ({"unique": {"keyz": ["args"]}}, "There are "),
        ({"queue": "My Queue"}, "queue"),
        ({"priority": 10**9}, "priority"),
        ({"timeout": "soon"}, "timeout"),
        ({"rate_limit": {"limit": "many"}}, "rate_limit"),
        ({"cron": "0 25 * * *"}, "hour '25'"),
        ({"timezone": "Europe/Paris"}, "give cron="),
        ({"delay": "5m"}, ".options(delay="),
        ({"colour": "red"}, "There is no option colour=."),
        ({"context": "yes"}, "context='yes'"),
        ({"inline": 1}, "inline=1"),
        ({"transactional": 3}, "transactional=3"),
        ({"durable": "a\0"}, "durable='a\\x00'"),
        ({"retry_if": 5}, "retry_if=5"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_mistaken_options_are_told_with_their_place_and_the_job_is_refused(
    handlers: Registry, options: Any, complaint: str
) -> None:
    @job("email.send", **options)
    def send() -> int:
        return 7

    assert complaint in told(handlers)
    (fault, *_) = handlers.faults()
    assert fault.type == "email.send"
    assert re.search(r"tests/api/test_definition\.py:\d+$", fault.place)
    assert handlers.types() == []
    assert send() == 7, "it is still a function"
    for enqueued in (send.enqueue, lambda: enqueue("email.send"), lambda: enqueue_many([send.s()])):
        with pytest.raises(InvalidHandler, match=r"test_definition\.py:\d+: @job\('email\.send'\): "):
            enqueued()
    error = check_handlers()[0]
    assert (error.id, error.msg) == ("django_ojs.E004", str(fault))
    with pytest.raises(CommandError, match=r"test_definition\.py:\d+: @job\('email\.send'\): "):
        call_command("ojs_worker", "--until-empty")


def test_all_that_is_wrong_is_told_at_once(handlers: Registry) -> None:
    job("Send Email", queue="My Queue", retry={"max_attempts": "many"})(lambda: None)
    assert len(handlers.faults()) == 3


def test_what_was_corrected_is_no_fault_any_more(handlers: Registry) -> None:
    def send() -> None: ...

    job("email.send", priority="many")(send)  # type: ignore[call-overload]
    assert handlers.faults()
    job("email.send", priority=1)(send)
    assert not handlers.faults()
    assert handlers.types() == ["email.send"]


def test_a_call_without_a_context_says_how_to_get_one(handlers: Registry) -> None:
    @job("email.send")
    def send(context: JobContext, to: str) -> tuple[str, int]:
        return to, context.attempt

    for wrong in (lambda: send("a"), lambda: send(to="a"), lambda: send({"to": "a"}, "a")):
        with pytest.raises(TypeError, match=r"send\(job_context\(\), \.\.\.\).*send\.enqueue\(\.\.\.\)"):
            wrong()  # type: ignore[no-untyped-call]
    assert send(job_context(attempt=2), "a") == ("a", 2)
    assert send(job_context(send, ["a"], queue="q", meta={"k": 1}), to="a") == ("a", 1)
    with pytest.raises(TypeError, match="args"):
        job_context(args=[object()])


def test_a_context_for_a_test_has_the_attempts_and_the_queue_of_its_handler(handlers: Registry, settings: Any) -> None:
    @job("mail.send", queue="mail", retry={"max_attempts": 5, "initial_interval": dt.timedelta(seconds=1)})
    def send(context: JobContext) -> bool:
        return context.is_last_attempt

    assert [send(job_context(send, attempt=number)) for number in (1, 4, 5)] == [False, False, True]
    assert send(job_context("mail.send", attempt=5))
    assert job_context(send).queue == "mail"
    assert send(job_context(send, max_attempts=1))
    assert send(job_context(send.options(retry={"max_attempts": 1})))
    settings.OJS = {"RETRY": {"max_attempts": 1}}
    assert job_context().is_last_attempt
    assert job_context(send).max_attempts == 5


def test_a_test_calls_a_handler_that_reads_the_jobs_before_it() -> None:
    def total(context: JobContext) -> Any:
        return context.parent_results["mon"] + context.parent_results[-1], list(context.parent_results.values())

    def alarm(context: JobContext) -> Any:
        return {place: error["message"] for place, error in context.parent_errors.items()}

    assert total(job_context(parent_results={"mon": 2, "tue": 3})) == (5, [2, 3])
    assert list(job_context(parent_results=[2, 3]).parent_results.values()) == [2, 3]
    assert not job_context(parent_results={}).parent_results
    assert not job_context().parent_errors
    assert alarm(job_context(parent_errors={"1": {"message": "no"}})) == {"1": "no"}
    with pytest.raises(TypeError, match="parent_results"):
        job_context(parent_results={"mon": object()})
    with pytest.raises(TypeError, match=r"parent_errors=\['no'\]: give a dict"):
        job_context(parent_errors=["no"])  # type: ignore[arg-type]


def test_the_context_is_asked_for_by_name_annotation_or_option(handlers: Registry) -> None:
    @job("a.name")
    def by_name(context: Any, a: int) -> None: ...

    @job("a.annotation")
    def by_annotation(run: JobContext, a: int) -> None: ...

    @job("a.option", context=True)
    def by_option(run: Any, a: int) -> None: ...

    @job("a.refused", context=False)
    def refused(context: Any) -> None: ...

    @job("a.later")
    def later(a: int, context: Any) -> None: ...

    assert [definition.takes_context for definition in (by_name, by_annotation, by_option, refused, later)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert str(by_annotation.signature) == "(a: 'int') -> 'None'"


def test_the_signature_is_checked_at_enqueue(handlers: Registry) -> None:
    @job("email.send")
    def send(context: JobContext, to: str, template: str = "plain") -> None: ...

    assert send.s("a").args == ["a"]
    with pytest.raises(
        TypeError, match=r"email\.send\(to: 'str', template: 'str' = 'plain'\).*missing a required argument"
    ):
        send.s()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional arguments"):
        send.s("a", "b", "c")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'form'"):
        send.s(to="a", form="html")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'queue'\. Options go into \.options\(queue=\.\.\.\)"):
        send.s("a", queue="mail")  # type: ignore[call-arg]


def test_keyword_arguments_follow_the_positional_ones_in_an_object_that_other_languages_can_read(
    handlers: Registry,
) -> None:
    @job("email.send")
    def send(context: JobContext, to: str, *, template: str = "plain") -> None: ...

    assert send.s(to="a").args == [{"$kwargs": {"to": "a"}}]
    assert send.s("a", template="rich").args == ["a", {"$kwargs": {"template": "rich"}}]
    assert send.s({"$kwargs": {}}).args == [{"$kwargs": {}}, {"$kwargs": {}}]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'args\[0\]\["\$kwargs"\]\["to"\] is a datetime.date'):
        send.s(to=dt.date(2026, 1, 1)).document()  # type: ignore[arg-type]


def test_a_jobs_module_that_fails_to_import_is_tried_again(handlers: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def discover(name: str) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise ImportError("broken jobs.py")

    monkeypatch.setattr("django_ojs.registry.autodiscover_modules", discover)
    handlers._discovered = False
    with pytest.raises(ImportError):
        handlers.types()
    assert handlers.types() == []
    assert calls == ["jobs", "jobs"]
