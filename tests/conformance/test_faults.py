"""Our cases can fail: a server with a fault planted in it is caught by the case that is there for it.

The faults are planted between the runner and a real server: a proxy forgets attributes of requests, or falsifies
answers, as a server would that does not implement the requirement.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command

from django_ojs.http import claim
from ojs_conformance.cases import Case, load_path, select
from ojs_conformance.djangoapp import servers
from ojs_conformance.suite import Target, run_case

SUITE = Path(__file__).parent / "cases"

pytestmark = [pytest.mark.wide]  # servers of their own


def same(text: str) -> str:
    return text


@dataclass
class Fault:
    """What is wrong with a server: of a request's JSON, of its path, or of an answer."""

    forgets: tuple[str, ...] = ()
    path: Callable[[str], str] = same
    method: Callable[[str], str] = same
    request: Callable[[str], str] = same
    answer: Callable[[str, str], str] = field(default=lambda path, text: text)
    status: Callable[[int], int] = field(default=lambda status: status)

    def spoil(self, body: bytes) -> bytes:
        text = self.request(body.decode())
        if not self.forgets or not text.startswith("{"):
            return text.encode()
        return json.dumps(self._without(json.loads(text)), ensure_ascii=False).encode()

    def _without(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without(each) for each in value]
        if isinstance(value, dict):
            return {key: self._without(each) for key, each in value.items() if key not in self.forgets}
        return value


class Proxy:
    """A server with a fault, in front of one without."""

    def __init__(self, url: str, fault: Fault) -> None:
        place = urlsplit(url)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(place.hostname or "", place.port)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                sent = fault.spoil(body) if body else None
                connection.request(fault.method(self.command), fault.path(self.path), sent, headers)
                response = connection.getresponse()
                content = fault.answer(self.path, response.read().decode()).encode()
                connection.close()
                self.send_response(fault.status(response.status))
                for name, value in response.getheaders():
                    if name.lower() in ("content-type", "ojs-version", "location"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815 - the base class's names

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with servers.running() as target:
        yield target


def without(words: str) -> Callable[[str, str], str]:
    """An answer from which a member is gone."""
    return lambda path, text: re.sub(rf'"{words}":', '"gone":', text)


def replaced(old: str, new: str) -> Callable[[str, str], str]:
    """An answer that says something else."""
    return lambda path, text: text.replace(old, new)


#: It says `skip`, and lets them overlap.
OVERLAPPING = Fault(
    request=lambda text: text.replace('"expression"', '"overlap_policy": "allow", "expression"'),
    answer=replaced('"overlap_policy":"allow"', '"overlap_policy":"skip"'),
)
#: It says `chain`, and runs all members at once.
GROUPING = Fault(
    request=lambda text: text.replace('"type": "chain"', '"type": "group"'), answer=replaced('"group"', '"chain"')
)

#: It takes the second of two queues first.
REORDERING = Fault(request=lambda text: text.replace('"left", "right"', '"right", "left"'))

FAULTS: list[tuple[str, str, Fault]] = [
    ("generates UUIDv4", "L0-102", Fault(answer=lambda p, text: re.sub(r'(-\w{4})-7(\w{3}-)', r"\1-4\2", text))),
    ("drops what it does not know", "L0-106", Fault(forgets=("future",))),
    ("answers 200 to impossible transitions", "L0-111", Fault(status=lambda s: 200 if s == 409 else s)),
    ("answers 200 after the end", "L0-112", Fault(status=lambda s: 200 if s == 409 else s)),
    ("accepts what is invalid", "L0-103", Fault(status=lambda s: 201 if s == 400 else s)),
    ("keeps no structured error", "L0-109", Fault(forgets=("backtrace",))),
    ("tells no events", "L0-113", Fault(path=lambda p: p.replace("job.started", "job.progress"))),
    ("tells no failures", "L0-114", Fault(path=lambda p: p.replace("job.failed", "job.progress"))),
    ("leaves the state out of events", "L0-113", Fault(answer=without("state"))),
    ("leaves the queue out of jobs", "L0-101", Fault(answer=without("queue"))),
    ("answers 202 to a push", "L0-116", Fault(status=lambda s: 202 if s == 201 else s)),
    ("has one retry policy for all", "L1-102", Fault(forgets=("retry",))),
    ("retries everything", "L1-103", Fault(forgets=("non_retryable_errors",))),
    ("has no dead letter queue", "L1-104", Fault(path=lambda p: re.sub("dead-letter$", "queues", p))),
    ("lists no dead letters by queue", "L1-105", Fault(path=lambda p: p.removesuffix("?queue=b"))),
    ("extends nothing", "L1-106", Fault(forgets=("active_jobs",))),
    ("has no directives", "L1-108", Fault(path=lambda p: re.sub("quiet$|terminate$", "resume", p))),
    ("keeps what clients forge", "L0-118", Fault(answer=replaced('"attempt":0', '"attempt":7'))),
    ("takes the queues in its own order", "L0-119", REORDERING),
    ("tells no traces", "L0-120", Fault(answer=without("trace_id"))),
    ("calls a timeout something else", "L1-115", Fault(answer=replaced('"type":"timeout"', '"type":"failed"'))),
    ("loses expired jobs", "L2-108", Fault(path=lambda p: re.sub("dead-letter$", "queues", p))),
    ("reserves for ever", "L1-109", Fault(forgets=("visibility_timeout",))),
    ("cancels nothing", "L1-110", Fault(method=lambda m: "GET" if m == "DELETE" else m)),
    ("tells no retries", "L1-113", Fault(path=lambda p: p.replace("job.retrying", "job.progress"))),
    ("runs everything at once", "L2-101", Fault(forgets=("scheduled_at",))),
    ("ignores zones", "L2-107", Fault(forgets=("timezone",))),
    ("lets jobs overlap", "L2-106", OVERLAPPING),
    ("expires nothing", "L2-109", Fault(forgets=("expires_at",))),
    ("runs chains as groups", "L3-101", GROUPING),
    ("passes no results", "L3-102", Fault(answer=without("parent_results"))),
    ("runs dependents at once", "L3-108", Fault(forgets=("depends_on",))),
    ("has no callbacks", "L3-106", Fault(forgets=("callbacks",))),
    ("has no callback for failures", "L3-107", Fault(forgets=("on_failure",))),
    ("tells nothing of workflows", "L3-109", Fault(path=lambda p: p.replace("workflow.failed", "job.progress"))),
    ("has no priorities", "L4-101", Fault(forgets=("priority",))),
    ("has other numbers for names", "L4-102", Fault(answer=replaced('"priority":3', '"priority":10'))),
    ("knows no unique jobs", "L4-103", Fault(forgets=("unique",))),
    ("compares all arguments", "L4-104", Fault(forgets=("key",))),
    ("names no strength", "L4-105", Fault(answer=without("unique_job_strength"))),
    ("takes no thousand", "L4-107", Fault(status=lambda s: 413 if s == 201 else s)),
    ("pauses nothing", "L4-108", Fault(path=lambda p: p.replace("/pause", "/resume"))),
    ("resumes nothing", "L4-109", Fault(path=lambda p: p.replace("/resume", "/pause"))),
    ("counts nothing as completed", "L4-110", Fault(answer=replaced('"completed":1', '"completed":0'))),
    ("limits nothing", "L4-111", Fault(forgets=("concurrency",))),
]  # fmt: skip


def test_without_a_fault_the_proxy_is_transparent(target: Target) -> None:
    cases = [case for case in load_path(SUITE) if case.test_id in ("L0-101", "L0-116", "L1-105", "L4-111")]
    assert len(cases) == 4
    with Proxy(target.url, Fault()) as proxy:
        for case in cases:
            result = run_case(case, Target(proxy.url, target.reset))
            assert result.outcome == "passed", result.reason


@pytest.mark.parametrize("name,test_id,fault", FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_planted_fault_is_found(target: Target, name: str, test_id: str, fault: Fault) -> None:
    (case,) = select(load_path(SUITE), test_id=test_id)
    with Proxy(target.url, fault) as proxy:
        result = run_case(case, Target(proxy.url, target.reset))
    assert result.outcome == "failed", f"{test_id} passes on a server that {name}"
    assert "expected" in result.reason


@pytest.mark.parametrize("case", load_path(SUITE), ids=lambda case: case.test_id)
def test_every_case_notices_answers_without_content(target: Target, case: Case) -> None:
    with Proxy(target.url, Fault(answer=lambda path, text: "{}")) as proxy:
        result = run_case(case, Target(proxy.url, target.reset, contextlib.nullcontext))
    assert result.outcome == "failed"
    assert "the runner broke" not in result.reason


# The command


def run(*options: str) -> int:
    """The exit status of `ojs_conformance` over our suite."""
    try:
        call_command("ojs_conformance", "--suites", str(SUITE), *options)
    except SystemExit as end:
        return int(str(end.code))
    return 0


def test_the_command_reports_and_fails_with_the_case(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    options = ["--test", "L4-108", "--reset", servers.RESET, "--report", str(file)]
    assert run(*options, "--target", target.url) == 0
    report = json.loads(file.read_text())
    assert (report["test_suite_version"], report["results"]["passed"], report["failures"]) == (
        "django-ojs seed-format suite 2.0.0",
        1,
        [],
    )
    with Proxy(target.url, Fault(path=lambda p: p.replace("/pause", "/resume"))) as proxy:
        assert run(*options, "--target", proxy.url) == 1
    report = json.loads(file.read_text())
    (failure,) = report["failures"]
    assert failure["file"] == "level-4/L4-108-pause-stops-delivery.json"
    assert (report["conformant"], report["target"]) == (False, proxy.url)
    assert "FAILED L4-108" in capsys.readouterr().out


def test_the_command_starts_its_own_servers_and_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--test", "L0-117", "--jobs", "1") == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--test", "no-such-case"],
        ["--jobs", "0"],
        ["--target", "http://127.0.0.1:9", "--dialect", "published"],
        ["--reset", "/reset"],
        ["--record", "--target", "http://127.0.0.1:9"],
        ["--record", "--dialect", "published"],
        ["--suites", "/no/such/directory"],
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    with pytest.raises(CommandError):
        run(*options)


@pytest.mark.parametrize("bindings, told", [(["http"], "was not run over grpc"), (["http", "grpc"], "not every case")])
def test_a_part_of_the_suite_is_no_claim(
    bindings: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "claim.json"
    monkeypatch.setattr(claim, "FILE", file)
    with pytest.raises(CommandError, match=told):
        run("--test", "L0-101", "--jobs", "1", "--record", "--binding", *bindings)
    assert not file.exists()
