"""gRPC servers that are killed amid streams of jobs: no job is lost, and none completes twice."""

from __future__ import annotations

import socket
import threading
from collections import Counter

import pytest

from tests.waiting import eventually

grpc = pytest.importorskip("grpc")

from django_ojs.grpc import messages  # noqa: E402
from django_ojs.grpc.definition import Stub  # noqa: E402
from django_ojs.models import Event, Job  # noqa: E402
from tests.processes.conftest import TIMEOUT, Site, enqueue, settled  # noqa: E402

pytestmark = [pytest.mark.wide, pytest.mark.sqlite_too]

JOBS, KILLS, SLOTS = 240, 3, 4


class StreamWorker(threading.Thread):
    """A client that opens its stream again whenever it breaks, and sends a report until it is answered."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        )
        self.stub = Stub(channel)
        self.acknowledged: Counter[str] = Counter()
        self.refused = 0
        self.stopping = threading.Event()
        self.stream: grpc.Call | None = None

    def run(self) -> None:
        wanted = {
            "queues": ["default"], "worker_id": self.name, "max_concurrent": SLOTS, "visibility_timeout_ms": 2000,
        }  # fmt: skip
        while not self.stopping.is_set():
            self.stream = self.stub.StreamJobs(messages.to_message("StreamJobsRequest", wanted))
            try:
                for job in self.stream:
                    self._acknowledge(job)
            except grpc.RpcError:
                self.stopping.wait(0.05)

    def _acknowledge(self, job: object) -> None:
        told = messages.to_document(job)
        report = {"job_id": told["id"], "worker_id": self.name, "attempt": told["attempt"], "result": 1}
        while not self.stopping.is_set():
            try:
                self.stub.Ack(messages.to_message("AckRequest", report), timeout=10)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:  # it was taken away, or the answer was lost
                    self.refused += 1
                    return
                self.stopping.wait(0.05)
            else:
                self.acknowledged[told["id"]] += 1
                return

    def end(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.cancel()
        self.join(TIMEOUT)


def test_a_server_that_is_killed_amid_streams_loses_no_job(site: Site) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    enqueue("load.streamed", JOBS)
    keeper = site.start("ojs_scheduler", ALLOW_ANONYMOUS=True)
    workers = [StreamWorker(address, f"stream-{number}") for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        for kill in range(KILLS + 1):
            server = site.start("ojs_grpc", "--bind", address, ALLOW_ANONYMOUS=True, GRPC=True)
            if kill < KILLS:
                enough = JOBS * (kill + 1) // (KILLS + 2)
                eventually(
                    lambda: Job.objects.filter(state="completed").count() >= enough,  # noqa: B023
                    f"the server that is killed as number {kill} did some work",
                )
                site.kill(server)
        eventually(settled, "all jobs have ended")
    finally:
        for worker in workers:
            worker.end()
    site.stop(server, keeper)

    assert Job.objects.filter(state="completed").count() == JOBS
    done = Event.objects.filter(type="job.completed").values_list("job_id", flat=True)
    assert sorted(done) == sorted(Job.objects.values_list("pk", flat=True)), "each completed once"
    acknowledged = sum((worker.acknowledged for worker in workers), Counter[str]())
    assert max(acknowledged.values()) == 1, "nobody was told twice that a job is done"
    # Only an answer that was lost with its server is missing, at most one for each worker and kill.
    assert JOBS - KILLS * len(workers) <= len(acknowledged) <= JOBS
