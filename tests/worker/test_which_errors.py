"""Which errors of a handler are retried: the lists of the policy, with classes, and the handler's own `retry_if`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_ojs import Retry, enqueue, job
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import attributes
from django_ojs.registry import InvalidHandler, Registry, registry
from django_ojs.rules import errorobjects
from django_ojs.worker import runs

pytestmark = pytest.mark.django_db(transaction=True)


class Unreachable(OSError):
    """The partner does not answer."""


class Unknown(Unreachable):
    """There is no such partner."""


def state_of(handle: JobHandle) -> str:
    return handle.refresh().state


def raising(error: Exception) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def test_a_class_in_a_list_goes_by_its_name_and_stands_for_its_subclasses(drain: Any) -> None:
    policy = {"retryable_errors": [Unreachable, "Busy"], "non_retryable_errors": (Unknown,)}
    assert attributes({"retry": policy})["retry"] == {
        "retryable_errors": [f"{__name__}.Unreachable", "Busy"],
        "non_retryable_errors": [f"{__name__}.Unknown"],
    }
    errors = {
        "itself": Unreachable(), "subclass": type("Slow", (Unreachable,), {})(), "both": Unknown(), "base": OSError(),
        "other": ValueError(),
    }  # fmt: skip
    jobs = {name: job(f"test.{name}", retry=policy)(raising(error)) for name, error in errors.items()}  # type: ignore[call-overload]
    handles = {name: definition.enqueue() for name, definition in jobs.items()}
    drain()
    assert {name: state_of(handle) for name, handle in handles.items()} == {
        "itself": "retryable", "subclass": "retryable", "both": "discarded", "base": "discarded", "other": "discarded",
    }  # fmt: skip


def test_the_settings_of_the_site_and_the_options_of_a_call_have_the_lists_too(drain: Any, settings: Any) -> None:
    settings.OJS = {"RETRY": {"retryable_errors": ["OSError"]}}
    job("test.slow")(raising(Unreachable()))
    job("test.wrong")(raising(ValueError()))
    known, unknown = enqueue("test.slow"), enqueue("test.wrong")
    own = enqueue("test.wrong", retry={"retryable_errors": [ValueError]})
    drain()
    assert [state_of(handle) for handle in (known, unknown, own)] == ["retryable", "discarded", "retryable"]


def test_an_error_says_what_its_class_is_made_from() -> None:
    (error,) = [errorobjects.from_exception(Unknown("x"))]
    assert error["details"]["error_bases"] == [f"{__name__}.Unreachable", "OSError"]
    assert "error_bases" not in errorobjects.from_exception(ValueError("x"))["details"]


@pytest.mark.parametrize("is_async", [False, True])
def test_retry_if_decides_with_the_exception(drain: Any, is_async: bool) -> None:
    seen: list[BaseException] = []

    def unless_permanent(error: BaseException) -> bool:
        seen.append(error)
        return getattr(error, "status", 500) >= 500

    def fail(status: int | None) -> None:
        if status is None:
            raise Retry("later") from ValueError("mine")
        error = OSError(status)
        error.status = status  # type: ignore[attr-defined]
        raise error

    async def afail(status: int | None) -> None:
        fail(status)

    call = job("test.call", retry_if=unless_permanent)(afail if is_async else fail)
    handles = [call.enqueue(503), call.enqueue(404), call.enqueue(None)]
    drain()
    assert [state_of(handle) for handle in handles] == ["retryable", "discarded", "retryable"]
    assert sorted(error.status for error in seen) == [404, 503]  # type: ignore[attr-defined]
    gone = handles[1].error
    assert gone is not None
    assert gone["retryable"] is False


def test_retry_if_cannot_allow_what_the_policy_refuses_and_a_broken_one_changes_nothing(
    drain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refused = job("test.refused", retry={"non_retryable_errors": ["OSError"]}, retry_if=lambda error: True)
    broken = job("test.broken", retry_if=lambda error: error.status > 500)  # type: ignore[attr-defined]
    one, two = refused(raising(OSError())).enqueue(), broken(raising(OSError())).enqueue()
    drain()
    assert (state_of(one), state_of(two)) == ("discarded", "retryable")
    assert "retry_if" in caplog.text


@pytest.mark.parametrize("wrong", ["OSError", True])
def test_a_retry_if_that_is_no_function_is_found_before_a_worker_starts(handlers: Registry, wrong: Any) -> None:
    definition = job("test.wrong", retry_if=wrong)(raising(OSError()))
    assert "retry_if=" in str(registry.faults()[0])
    with pytest.raises(InvalidHandler, match="retry_if="):
        definition.enqueue()


def test_an_exception_that_is_listed_by_its_own_name_alone() -> None:
    """A class without a module of its own, such as one of `builtins`, is listed as it is written."""
    assert attributes({"retry": {"retryable_errors": [KeyError]}})["retry"] == {"retryable_errors": ["KeyError"]}
    assert isinstance(runs.of_exception(KeyError("x")), runs.Failed)
