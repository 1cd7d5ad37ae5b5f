"""Every operation sends what the OpenAPI document says, at both doors: each member that it declares, and no other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from django_ojs import http
from django_ojs.http.serializers import AnswerSerializer
from tests.http.conftest import Api, undone
from tests.http.described import Described, Members, Sent, described
from tests.http.stories import STORIES
from tests.http.test_openapi import ANSWERED, called, check_answer

pytest.importorskip("drf_spectacular")
pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]


def test_each_member_of_the_document_is_sent_and_nothing_else(api: Api, described_answers: list[Sent]) -> None:
    """Every operation is called once, and stories lead to what that does not show. `described_answers` compares all of
    it with the document."""
    document, members = described(), Members(described())
    for path, method in ANSWERED:
        with undone():
            answer = called(api, path, method)
            assert 200 <= answer.status_code < 300, (method, path, answer.content)
            check_answer(answer, document.document["paths"][path][method], document.document)
    for story in STORIES:
        with undone():
            story(api)
    for sent in described_answers:
        if (schema := document.schema_of(sent)) is not None:
            members.send(sent.value, schema)
    left = {name for name in members.unsent() if not name.startswith("Envelope")}  # it says what clients may send
    assert not left, "\n".join(sorted(left))
    declared = document.document["components"]["headers"].keys()
    assert sorted(declared - set().union(*(sent.headers for sent in described_answers))) == []


#: The answers of busy calls, which `show` renders and the fields describe.
BUSY = {"JobSerializer", "JobDetailSerializer", "JobLineSerializer", "DeadLetterSerializer", "EventSerializer",
        "FetchAnswerSerializer", "AckAnswerSerializer", "NackAnswerSerializer", "HeartbeatAnswerSerializer",
        "JobBatchAnswerSerializer", "BulkEnqueuedSerializer", "StoredJobSerializer"}  # fmt: skip


def test_only_the_answers_of_busy_calls_are_described_beside_what_makes_them() -> None:
    classes, found = [AnswerSerializer], set()
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        if kind.__module__.startswith("django_ojs.") and "shown" in vars(kind) and kind.shown:
            found.add(kind.__name__)
    assert found == BUSY


def test_views_answer_with_what_serializers_show() -> None:
    found = set()
    for source in sorted(Path(http.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(source.read_text())):
            if isinstance(function, ast.FunctionDef) and any(map(is_made_by_hand, ast.walk(function))):
                found.add(f"{source.stem}.{function.name}")
    assert found == {"base.whole_list"}, "it puts together what serializers have shown"


def is_made_by_hand(node: ast.AST) -> bool:
    """Whether it is a call `Response({...})`, whatever the object is laid over."""
    if not isinstance(node, ast.Call) or not node.args or getattr(node.func, "id", "") != "Response":
        return False
    answer: ast.expr = node.args[0]
    parts = [answer.body, answer.orelse] if isinstance(answer, ast.IfExp) else [answer]
    parts = [side for part in parts for side in ([part.left, part.right] if isinstance(part, ast.BinOp) else [part])]
    return any(isinstance(part, ast.Dict) for part in parts)


@pytest.mark.parametrize(
    "answer,by_hand",
    [("{'a': 1}", True), ("{**a, 'b': 1}", True), ("a | {'b': 1}", True), ("{} if a else b", True),
     ("self.represent({'a': 1})", False), ("a", False)],
)  # fmt: skip
def test_an_answer_that_is_made_by_hand_is_found(answer: str, by_hand: bool) -> None:
    call = ast.parse(f"Response({answer}, status=200)", mode="eval").body
    assert is_made_by_hand(call) is by_hand


def test_a_difference_is_found() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    described = Described()
    assert [*described.differences({"a": 1}, schema, "")] == []
    assert [*described.differences({"b": "x"}, schema, "")] == [" lacks a"]
    assert [*described.differences({"a": 1, "c": 2}, schema, "")] == [" has c, undeclared"]
    assert [*described.differences({"a": True}, schema, "")] == [".a is True, not integer"]
    both = {"allOf": [schema, {"type": "object", "properties": {"c": {"type": "null"}}, "required": ["c"]}]}
    assert [*described.differences({"a": 1, "b": "x", "c": None}, both, "")] == []
    assert [*described.differences({"a": 1, "d": 2}, both, "")] == [" lacks c", " has d, undeclared"]
