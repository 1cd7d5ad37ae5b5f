"""`@job` keeps the function a function, and refuses at decoration what could not work later."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs import JobContext, job
from django_ojs.errors import InvalidRetryPolicy
from django_ojs.registry import InvalidHandler, Registry


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
    with pytest.raises(InvalidHandler, match=hint):
        job(name)


def test_the_published_dialect_allows_hyphens(handlers: Registry, settings: Any) -> None:
    settings.OJS = {"DIALECT": "published"}
    job("email-send")(lambda: None)
    assert handlers.types() == ["email-send"]


def test_a_forgotten_name_is_told(handlers: Registry) -> None:
    with pytest.raises(InvalidHandler, match=r'write @job\("email\.send"\)'):

        @job  # type: ignore[call-overload, arg-type]
        def send() -> None: ...


def test_two_handlers_of_one_type_are_refused(handlers: Registry) -> None:
    @job("email.send")
    def first() -> None: ...

    with pytest.raises(InvalidHandler, match=r"two handlers, .*first and .*second"):

        @job("email.send")
        def second() -> None: ...


def test_a_reloaded_module_may_define_its_handlers_again(handlers: Registry) -> None:
    def define() -> Any:
        @job("email.send")
        def send() -> None: ...

        return send

    define()
    again = define()
    assert handlers.get("email.send") is again


def test_functions_that_no_call_runs_to_its_end_are_refused(handlers: Registry) -> None:
    with pytest.raises(InvalidHandler, match="is a generator"):

        @job("email.list")
        def generate() -> Any:
            yield 1

    with pytest.raises(InvalidHandler, match="add `context`"):
        job("email.none", context=True)(lambda: None)  # type: ignore[arg-type, misc]


def test_mistaken_options_are_told_at_decoration(handlers: Registry) -> None:
    with pytest.raises(InvalidRetryPolicy):
        job("email.send", retry={"max_attempts": "many"})
    with pytest.raises(TypeError, match=r"\.options\(delay"):
        job("email.send", delay="5m")  # type: ignore[call-overload]
    assert handlers.types() == []


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
