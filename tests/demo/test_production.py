"""The production settings of the example project: the environment decides, and Django has nothing to say about them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "DJANGO_DEBUG": "0",
    "DJANGO_SECRET_KEY": "k7#pQ2!xZ9vR4mT8wL1sD6fG3hJ5nB0cY-a_E+uI=oK&jHg%(4Wq^",
    "DJANGO_ALLOWED_HOSTS": "jobs.example.com, jobs.internal",
    "DJANGO_CSRF_TRUSTED_ORIGINS": "https://jobs.example.com",
}


def settings_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **environment: str) -> dict[str, Any]:
    for name in [name for name in os.environ if name.startswith("DJANGO_") or name in ("DATABASE_URL", "REDIS_URL")]:
        if name != "DJANGO_SETTINGS_MODULE":
            monkeypatch.delenv(name)
    for name, value in {"DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3", **environment}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(ROOT / "example_project/settings.py"))


def test_production_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = settings_with(monkeypatch, tmp_path, **PRODUCTION)
    assert found["DEBUG"] is False
    assert found["ALLOWED_HOSTS"] == ["jobs.example.com", "jobs.internal"]
    assert found["SESSION_COOKIE_SECURE"] is found["CSRF_COOKIE_SECURE"] is found["SECURE_SSL_REDIRECT"] is True
    assert found["SECURE_HSTS_SECONDS"] == 3600
    assert "SECURE_PROXY_SSL_HEADER" not in found, "any client could send that header"
    behind = settings_with(monkeypatch, tmp_path, **PRODUCTION, DJANGO_BEHIND_PROXY="1", DJANGO_HSTS_SECONDS="60")
    assert behind["SECURE_PROXY_SSL_HEADER"] == ("HTTP_X_FORWARDED_PROTO", "https")
    assert behind["SECURE_HSTS_SECONDS"] == 60


def test_a_demo_is_open_and_needs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = settings_with(monkeypatch, tmp_path)
    assert found["DEBUG"] is True
    assert not found["SECURE_SSL_REDIRECT"]
    assert not found["SECURE_HSTS_SECONDS"]
    plain = settings_with(monkeypatch, tmp_path, **PRODUCTION, DJANGO_HTTPS="0")
    assert plain["DEBUG"] is plain["SECURE_SSL_REDIRECT"] is plain["SESSION_COOKIE_SECURE"] is False


@pytest.mark.parametrize("name", ["DJANGO_SECRET_KEY", "DJANGO_ALLOWED_HOSTS"])
def test_what_production_needs_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        settings_with(monkeypatch, tmp_path, **{**PRODUCTION, name: ""})


@pytest.mark.wide
def test_check_deploy_has_nothing_to_say(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    environment = {**kept, **PRODUCTION, "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
                   "DJANGO_SETTINGS_MODULE": "example_project.settings", "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = [sys.executable, "-m", "django", "check", "--deploy", "--fail-level", "INFO"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no issues (0 silenced)" in done.stdout
