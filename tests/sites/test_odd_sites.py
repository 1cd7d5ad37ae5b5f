"""Sites that are put together otherwise than ours: what they do without, they do not need; and a check says it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

pytestmark = [pytest.mark.sqlite, pytest.mark.slow]


@pytest.fixture
def fares(tmp_path: Path) -> Any:
    """Runs one of the sites in a process of its own, for settings and models are made once in a process."""

    def run(name: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.sites.play", name, tmp_path / "site.sqlite3"],
            cwd=settings.BASE_DIR, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def expect_work(found: dict[str, Any], prefix: str = "") -> None:
    """The engine over HTTP, in Python and from the command line; and what lies outside is refused."""
    http = found["http"]
    assert (http["pushed"], http["anonymous"], http["slash"], http["stats"]) == (201, 401, 404, 200)
    assert http["location"].startswith(f"{prefix}/ojs/v1/jobs/")
    assert http["endpoints"]["base_url"] == f"http://testserver{prefix}/ojs/v1"
    assert http["endpoints"]["manifest"] == f"{prefix}/ojs/manifest"
    assert http["endpoints"]["events"] == f"{prefix}/ojs/v1/events"
    assert http["events"] == ["job.enqueued"]
    assert found["python"] == {"state": "completed", "result": 6}
    assert {state: number for state, number in found["status"]["jobs"].items() if number} == {
        "available": 1,
        "completed": 1,
    }


@pytest.mark.wide
def test_without_admin_sessions_middleware_templates_and_channels(fares: Any) -> None:
    found = fares("bare")
    expect_work(found)
    assert found["checks"] == ["django_ojs.W003"]
    assert found["asgi"] is True  # the application is there, and refuses WebSockets
    assert "websocket" not in found["http"]["endpoints"]
    assert "websocket" not in found["http"]["transports"]


def test_users_and_keys_of_the_sites_own_kind(fares: Any) -> None:
    found = fares("members")
    expect_work(found)
    assert found["checks"] == []
    assert found["session"] == [403, 403, 200]
    assert found["asked"] == [1, True]  # by name: they have no permissions


def test_users_whose_rights_are_no_rows_decide_approvals_in_the_admin_and_get_mails(fares: Any) -> None:
    found = fares("officials")
    expect_work(found)
    assert found["checks"] == []
    assert found["asked"] == [2, True]
    assert found["mails"] == [["a@example.com"], ["a@example.com"]]
    assert found["admin"] == {"codes": [200], "stray": []}


def test_below_a_prefix_with_the_admin_elsewhere_and_nothing_in_the_default_database(fares: Any) -> None:
    found = fares("elsewhere")
    expect_work(found, "/shop")
    assert found["checks"] == []
    assert found["asgi"] is True
    assert found["http"]["endpoints"]["websocket"] == "/shop/ojs/v1/ws"
    assert found["admin"] == {"codes": [200], "stray": []}
