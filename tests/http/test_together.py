"""Workers that call at the same moment over HTTP: each has its own answer, and no job is given out twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from django_ojs.jobs import fetch as fetching
from django_ojs.jobs import finish
from django_ojs.jobs.push import push
from django_ojs.models import Event
from django_ojs.workerregistry import heartbeat
from tests.gathering import SECONDS, gathering
from tests.http.conftest import Api

pytestmark = pytest.mark.django_db(transaction=True)


def jobs(count: int) -> list[str]:
    found = push([{"type": "a.b", "args": [number]} for number in range(count)])
    return [str(each.row["id"]) for each in found if each.row is not None]


def test_each_caller_has_its_own_answer() -> None:
    made = jobs(8)
    asks = [{"queues": ["default"], "worker_id": f"w{number}"} for number in range(8)]

    def post(path: str, body: Any) -> Callable[[], Any]:
        return lambda: Api().post(path, body)

    with gathering(fetching._fetches) as meeting:
        done = meeting.together(*(post("/workers/fetch", ask) for ask in asks))
        found = [future.result().json()["job"] for future in done]
        assert len(meeting.batches) == 2
    assert [(job["id"], job["worker_id"]) for job in found] == [(job, f"w{n}") for n, job in enumerate(made)]
    with gathering(heartbeat._beats) as meeting:
        beats = [{"worker_id": f"w{n}", "active_jobs": [job]} for n, job in enumerate(made)]
        done = meeting.together(*(post("/workers/heartbeat", body) for body in beats))
        assert [future.result().json()["jobs_extended"] for future in done] == [[job] for job in made]
    with gathering(finish._acks) as meeting:
        acks = [{"job_id": job, "worker_id": f"w{n % 5}", "result": n} for n, job in enumerate(made[:6])]
        done = meeting.together(*(post("/workers/ack", body) for body in acks))
        answers = [future.result() for future in done]
        assert len(meeting.batches) == 2
    assert [answer.status_code for answer in answers] == [200] * 5 + [409]
    assert [(body["id"], body["job"]["result"]) for body in (answer.json() for answer in answers[:5])] == [
        (job, n) for n, job in enumerate(made[:5])
    ]
    assert answers[5].json()["error"]["details"]["job_id"] == made[5]
    with gathering(finish._failures) as meeting:
        nacks = [{"job_id": job, "error": {"message": job}} for job in made[5:]]
        done = meeting.together(*(post("/workers/nack", body) for body in nacks))
        assert [future.result().json()["job"]["error"]["message"] for future in done] == made[5:]


def test_many_workers_without_order_get_each_job_once() -> None:
    made = jobs(120)
    found: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        api, mine = Api(), []
        try:
            while jobs_ := api.post("/workers/fetch", {"queues": ["default"], "worker_id": name}).json()["jobs"]:
                (job,) = jobs_
                assert job["worker_id"] == name
                body = {"job_id": job["id"], "worker_id": name, "result": name}
                answer = api.post("/workers/ack", body).json()
                assert (answer["id"], answer["job"]["result"]) == (job["id"], name)
                mine.append(job["id"])
        finally:
            connections.close_all()
        with lock:
            found.extend(mine)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(found) == sorted(made)
    assert Event.objects.filter(type="job.started").count() == 120
