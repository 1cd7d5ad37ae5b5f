"""A job in every state, made over HTTP by a client that behaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django_ojs.states import State
from tests.hostile.answers import Answer, Ledger, check
from tests.hostile.calls import V1, Call, Known

Send = Callable[[Call], Answer]


def populate(send: Send, known: Known, ledger: Ledger, each: int = 4) -> None:
    """Several jobs in each of the eight states; dead letters among the discarded ones."""

    def post(path: str, body: dict[str, Any]) -> Any:
        raw = json.dumps(body).encode()
        call = Call("POST", V1 + path, {"Content-Type": "application/json", "Content-Length": str(len(raw))}, raw)
        answer = send(call)
        value = check(call, answer)
        assert answer.status < 300, value
        ledger.note(call, answer, value, known)
        return value

    def push(**attributes: Any) -> str:
        job: str = post("jobs", {"type": "a.b", "args": [1], "queue": "mail"} | attributes)["job"]["id"]
        return job

    def claim() -> dict[str, Any]:
        job: dict[str, Any] = post("workers/fetch", {"queues": ["zoo"], "worker_id": "w1"})["job"]
        return {"job_id": job["id"], "worker_id": "w1"}

    states = set()
    for _ in range(each):
        push()
        push(scheduled_at="2099-01-01T00:00:00Z")
        push(pending=True)
        post(f"jobs/{push()}/cancel", {})
        push(queue="zoo")
        states.add(post("workers/ack", claim())["state"])
        push(queue="zoo")
        states.add(post("workers/nack", claim() | {"error": {"message": "no"}})["state"])
        push(queue="zoo", retry={"max_attempts": 1})
        states.add(post("workers/nack", claim() | {"error": {"message": "no"}})["state"])
        push(queue="zoo")
        claim()
    assert states == {State.COMPLETED, State.RETRYABLE, State.DISCARDED}
