"""Words of other queues are answered with ours, in one line."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import django_ojs
from django_ojs import Workflow, chain, job
from django_ojs.client import otherwords
from django_ojs.client.definition import Enqueuer, JobDefinition, PreparedJob
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import NAMES, SCHEDULE_NAMES
from django_ojs.client.workflow import WorkflowHandle
from django_ojs.registry import Registry
from django_ojs.testing import fake, job_context


@pytest.fixture
def pay(handlers: Registry) -> Any:
    @job("order.pay")
    def pay(order: int) -> None: ...

    return pay


@pytest.mark.parametrize(
    "word, ours",
    [
        ("delay", "write .enqueue(...)."),
        ("apply_async", "write .options(delay=..., queue=...).enqueue(...)."),
        ("si", "write .s(...)."),
        ("schedule", "write .options(delay=...).enqueue(...), or at=."),
        ("send", "write .enqueue(...)."),
        ("defer", "write .enqueue(...)."),
        ("configure", "write .options(...)."),
    ],
)
def test_a_handler_names_our_word(pay: Any, word: str, ours: str) -> None:
    for place in (pay, pay.options(queue="a")):
        with pytest.raises(AttributeError) as raised:
            getattr(place, word)
        assert str(raised.value).endswith(f"has no .{word}, a word of another queue: {ours}")
        assert "\n" not in str(raised.value)


def test_a_prepared_job_a_workflow_a_handle_and_a_context_do_so_too(pay: Any) -> None:
    with fake():
        places = [(pay.s(1), "apply"), (pay.s(1), "link"), (chain(pay.s(1)), "apply_async"),
                  (pay.enqueue(1), "get"), (chain(pay.s(1)).enqueue(), "get"),
                  (job_context(), "request")]  # fmt: skip
    for place, word in places:
        with pytest.raises(AttributeError, match="a word of another queue: write"):
            getattr(place, word)


def test_what_is_not_there_is_not_there(pay: Any) -> None:
    with pytest.raises(AttributeError, match="'JobDefinition' object has no attribute 'delayed'"):
        pay.delayed  # noqa: B018
    assert not hasattr(pay, "delay")
    with fake():
        handle, prepared = pay.enqueue(1), pay.s(1)
    assert copy.deepcopy(handle) == handle
    assert pickle.loads(pickle.dumps(prepared)).args == [1]


def test_options_of_other_queues_name_ours(pay: Any) -> None:
    with pytest.raises(TypeError, match=r"^There is no option countdown=, a word of another queue: write delay=\.$"):
        pay.options(countdown=3)
    ours = NAMES | SCHEDULE_NAMES | {"context", "retry_if"}
    assert set(otherwords.OTHER_OPTIONS.values()) <= ours
    assert not otherwords.OTHER_OPTIONS.keys() & ours


@pytest.mark.parametrize(
    "kind, words",
    [
        (JobDefinition, otherwords.OF_HANDLER), (Enqueuer, otherwords.OF_HANDLER),
        (PreparedJob, otherwords.OF_PREPARED), (Workflow, otherwords.OF_WORKFLOW),
        (JobHandle, otherwords.OF_HANDLE), (WorkflowHandle, otherwords.OF_HANDLE),
        (type(job_context()), otherwords.OF_CONTEXT),
    ],
)  # fmt: skip
def test_no_word_of_ours_is_one_of_another_queue(kind: type, words: dict[str, str]) -> None:
    assert kind._other_words is words  # type: ignore[attr-defined]
    assert [word for word in words if hasattr(kind, word)] == []


def test_what_the_table_answers_are_words_of_a_queue() -> None:
    """Each word that an error answers is on the page of all words, and so in what `ojs_moving_in` finds."""
    known = {one.word for queue in otherwords.QUEUES for one in otherwords.words(queue)}
    answered = {word for row in otherwords.rows() for places in row.errors.values()
                for given in places.values() for word in given.split()}  # fmt: skip
    assert answered - known - {"then"} == set()
    assert {place for row in otherwords.rows() for place in row.errors} == set(otherwords.PLACES)
    assert {queue for row in otherwords.rows() for queue in row.theirs} == otherwords.QUEUES.keys()


@pytest.mark.parametrize("word", sorted(otherwords.OF_MODULE))
def test_a_name_of_another_queue_is_answered_where_it_is_imported_and_where_it_is_used(word: str) -> None:
    said = f"django_ojs has no {word}, a word of another queue: write {otherwords.OF_MODULE[word]}."
    with pytest.raises(ImportError) as imported:
        exec(f"from django_ojs import {word}", {})
    with pytest.raises(AttributeError) as used:
        getattr(django_ojs, word)
    assert str(imported.value) == str(used.value) == said
    assert not hasattr(django_ojs, word)


def test_other_names_are_not_there_as_in_any_module() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'django_ojs'"):
        exec("from django_ojs import nothing", {})
    with pytest.raises(AttributeError, match="module 'django_ojs' has no attribute 'nothing'"):
        django_ojs.nothing  # noqa: B018
