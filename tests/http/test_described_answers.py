"""Every answer of every operation has the members that the OpenAPI document says, with their types, and no others.

The operations are those of the document, the calls those of the table of rights, the rows those of its world.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from django_ojs import http, keys
from django_ojs.http.serializers import AnswerSerializer
from tests.hostile.answers import STREAM
from tests.hostile.places import operations
from tests.hostile.test_in_process import Handler
from tests.hostile.walking import Writes, report
from tests.http.described import Described
from tests.rights.conftest import closed, world
from tests.rights.world import World

pytest.importorskip("drf_spectacular")
__all__ = ["closed", "world"]
pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow, pytest.mark.usefixtures("frozen_clock")]


def test_answers_have_what_the_document_says_and_nothing_else(world: World) -> None:
    described, handler, writes = Described(), Handler(keys.create("everything", ["admin"])[1]), Writes()
    wrong: list[str] = []
    good = set()
    for operation in operations():
        call = operation.request(world.own)
        answer, _ = writes.during(lambda call=call: handler(call), lambda answer: answer.status >= 400)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if media == STREAM or not answer.body or "json" not in media:
            continue
        schema = described.schemas(operation.path, operation.method, answer.status)
        if schema is None:
            wrong.append(f"{operation}: {answer.status} is not declared")
            continue
        found = dict.fromkeys(described.differences(json.loads(answer.body), schema, ""))
        wrong += [f"{operation}: {one}" for one in found]
        good |= {operation} if answer.status < 400 else set()
    assert not wrong, report(wrong)
    assert len(good) > 150, "of the others the answers are no JSON, or the world of the rights has nothing for them"


#: The answers of busy calls, which `show` renders and the fields describe; `test_busy_answers` compares both.
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
