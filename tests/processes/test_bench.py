"""`manage.py ojs_bench` measures what it says, and cleans up. How fast anything is decides nothing here."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

pytestmark = pytest.mark.wide


def bench(environment: dict[str, str], *options: str) -> dict[str, Any]:
    environment = {**environment, "OJS_BENCH_DATABASE": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "manage.py", "ojs_bench", "--runs", "1", "--json", *options],
        cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_rates_are_told_beside_a_reference(child_environment: dict[str, str]) -> None:
    told = bench(child_environment, "--jobs", "1000", "--only", "enqueue", "enqueue_bulk", "drain", "--kinds", "inline")
    assert told["vendor"] == connection.vendor
    assert told["database"].startswith(connection.display_name)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for result in told["results"]:
        assert result["unit"] == "jobs/s"
        assert 0 < result["min"] <= result["median"] <= result["max"]
        by_name.setdefault(result["name"], []).append(result)
    plain = by_name.pop("plain_drain", [])
    assert {name: len(results) for name, results in by_name.items()} == {"enqueue": 1, "enqueue_bulk": 1, "drain": 2}
    assert [(result["processes"], result["handler"]) for result in by_name["drain"]] == [(1, "inline"), (2, "inline")]
    if connection.vendor == "mysql":  # for which there is no plain SQL
        assert plain == []
        return
    both = [(processes, tables) for processes in (1, 2) for tables in ("ours", "lean")]
    assert [(result["processes"], result["tables"]) for result in plain] == both
    for result in itertools.chain(*by_name.values()):
        assert result["ratio"] == pytest.approx(result["median"] / result["reference"], abs=0.001)


@pytest.mark.parametrize(
    "only,names",
    [
        (["workflows", "unique", "limits"],
         ["group", "chain", "unique_enqueue", "unique_enqueue_bulk", "unique", "rate_limited"]),
        (["crowds"], ["snapshot", "pruning", "backlog"]),
        (["durable"], ["steps", "drain_beside_sleepers"]),
        (["history"],
         ["history_enqueue", "history_enqueue_bulk", "history_unique_enqueue_bulk", "history_drain", "history_chain"]),
    ],
)  # fmt: skip
def test_workloads_are_told_beside_plain_ones(
    child_environment: dict[str, str], only: list[str], names: list[str]
) -> None:
    if only[0] in ("crowds", "history") and connection.vendor == "mysql":
        pytest.skip("the crowd is made by SQL that MariaDB does not know")
    told = bench(child_environment, "--jobs", "300", "--crowd", "3000", "--only", *only)
    assert [result["name"] for result in told["results"]] == names
    assert all(result["reference"] > 0 for result in told["results"])


@pytest.mark.skipif(connection.vendor == "mysql", reason="the same code; MariaDB takes its time over it")
def test_subscribers_get_everything(child_environment: dict[str, str]) -> None:
    options = ("--sockets", "20", "--seconds", "1", "--rate", "100")
    told = bench(child_environment, "--only", "subscribers", *options)["results"]
    lost = [result for result in told if result["name"] == "events_lost"]
    assert [(result["sockets"], result["filtered"], result["median"]) for result in lost] == [
        (1, False, 0), (20, False, 0), (20, True, 0)
    ]  # fmt: skip
    assert all(int(result["unit"].removeprefix("of ")) > 0 for result in lost)


def test_grpc_is_measured_unary_and_as_a_stream(child_environment: dict[str, str]) -> None:
    pytest.importorskip("grpc")
    told = bench(child_environment, "--jobs", "2000", "--only", "grpc", "--connections", "2")
    by_name = {result["name"]: result for result in told["results"]}
    assert set(by_name) == {"grpc_push", "grpc_fetch_ack", "grpc_stream"}
    for result in by_name.values():
        assert result["median"] > 0
