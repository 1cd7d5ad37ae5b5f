"""What is remembered of envelopes that differ in `id`, `args` and `meta` only gives what reading each would."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_ojs.errors import InvalidPayload, OJSError
from django_ojs.jsontext import ExactNumber
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)

_values: dict[str, list[Any]] = {
    "type": ["a.b", "a.c", "a.b@2", "a.b@2.0", "A B", 5],
    "queue": ["default", "mail", "a b", None],
    "args": [[], [1], [{"a": [1, 2]}, "x"], ["é" * 40], "no", [float("nan")]],
    "meta": [{}, {"a": 1}, {"trace_id": "t-1"}, {"ojs_encoded": True}, 5],
    "priority": [1, True, 1.0, "HIGH", 1000, ExactNumber("1.5000000000000000000001"), None],
    "specversion": ["1.0", "2.0"],
    "unique": [{"keys": ["type", "args"]}, {"keys": ["meta"], "meta_keys": ["a"]}, {"args_keys": ["a"]}, True],
    "retry": [{"max_attempts": 2}, {"max_attempts": -1}],
    "timeout": [5, "5s"],
    "tags": [["a"], [1]],
    "rate_limit": [{"key": "k", "concurrency": 1}],
    "scheduled_at": ["2026-06-01T00:00:00Z"],
    "options": [
        {"queue": "other"}, {"meta": {"b": 2}}, {"meta": 3}, {"scheduled_at": "+1h"}, {"priority": 2}, [[1]], 7,
    ],
    "another": [1, [1, {"b": None}]],
}  # fmt: skip
documents = st.fixed_dictionaries(
    {"type": st.sampled_from(_values["type"]), "args": st.sampled_from(_values["args"])},
    optional={name: st.sampled_from(choice) for name, choice in _values.items() if name not in ("type", "args")},
)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    envelope.forget()
    yield
    envelope.forget()


def outcome(document: dict[str, Any]) -> Any:
    """The job that a document asks for, without the id that it gets, or what refuses it."""
    try:
        spec = envelope.parse(document, now=NOW)
    except OJSError as error:
        return type(error), error.message, error.details
    return {name: value for name, value in vars(spec).items() if name not in ("id", "form")}


@settings(max_examples=400)
@given(documents, st.lists(st.sampled_from(_values["args"]), max_size=3), st.sampled_from(_values["meta"]))
def test_a_document_means_the_same_whatever_was_read_before(
    document: dict[str, Any], others: list[Any], meta: Any
) -> None:
    envelope.forget()
    alone = repr(outcome(document))
    for args in (*others, *_values["args"], document["args"]):
        outcome({**document, "args": args, "meta": meta})
        outcome({"type": "a.b", "args": args, "priority": 1})
    assert repr(outcome(document)) == alone


def test_jobs_of_one_form_have_ids_arguments_and_keys_of_their_own() -> None:
    documents = [{"type": "a.b", "args": [i], "unique": {"keys": ["type", "args"]}} for i in range(5)]
    specs = [envelope.parse(document, now=NOW) for document in documents]
    assert specs[1].form is None
    assert specs[2].form is specs[4].form is not None  # remembered when it had come twice
    assert [spec.args_text for spec in specs] == ["[0]", "[1]", "[2]", "[3]", "[4]"]
    assert len({spec.id for spec in specs}) == len({spec.unique_key for spec in specs}) == 5


def test_a_clients_id_is_its_own() -> None:
    wanted = [str(new_job_id()) for _ in range(4)]
    assert [str(envelope.parse({"type": "a.b", "args": [], "id": i}, now=NOW).id) for i in wanted] == wanted


def test_a_caller_who_changes_a_document_changes_no_other_job() -> None:
    document = {"type": "a.b", "args": [], "retry": {"max_attempts": 2}, "another": ["x"]}
    sent = copy.deepcopy(document)
    for _ in range(3):
        envelope.parse(document, now=NOW)
    document["retry"]["max_attempts"] = 9  # type: ignore[index]
    document["another"].append("y")  # type: ignore[attr-defined]
    spec = envelope.parse(sent, now=NOW)
    assert (spec.retry["max_attempts"], spec.extra["another"]) == (2, ["x"])


def test_a_relative_time_counts_from_each_push() -> None:
    document = {"type": "a.b", "args": [], "options": {"scheduled_at": "+1h"}}
    starts = [envelope.parse(document, now=NOW + dt.timedelta(minutes=i)).scheduled_at for i in range(4)]
    assert starts == [NOW + dt.timedelta(minutes=i, hours=1) for i in range(4)]


def test_a_changed_setting_is_heeded(settings: Any) -> None:
    document = {"type": "a.b", "args": [], "priority": "HIGH"}
    for _ in range(3):
        assert envelope.parse(document, now=NOW).priority == 3
    settings.OJS = {"PRIORITY_LEVELS": {"HIGH": 7}}
    assert envelope.parse(document, now=NOW).priority == 7


def test_no_more_than_so_many_forms_are_remembered() -> None:
    for number in range(3 * envelope.MOST_FORMS):
        envelope.parse({"type": "a.b", "args": [], "another": number}, now=NOW)
    assert len(envelope._forms) <= envelope.MOST_FORMS
    long = {"type": "a.b", "args": [], "another": "x" * 10_000}
    known = len(envelope._forms)
    for _ in range(3):
        envelope.parse(long, now=NOW)
    assert len(envelope._forms) == known


def test_arguments_that_are_no_json_are_refused_before_a_key_is_made_of_them() -> None:
    with pytest.raises(InvalidPayload) as caught:
        envelope.parse({"type": "a.b", "args": [float("nan")], "unique": {"keys": ["args"]}}, now=NOW)
    assert caught.value.details["field"] == "args"
