"""The code of docs/second-database.md: the routing in a site of its own, the enqueueing in that site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "second-database.md"

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "django_ojs", "shop"]
"""
MODELS = """
from django.db import models


class Order(models.Model):
    name = models.TextField()
"""
JOBS = """
from django_ojs import job


@job("order.ship")
def ship(pk: int) -> None: ...
"""


@pytest.mark.wide
@pytest.mark.sqlite
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    routing, enqueueing, again = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    routing = routing.replace("postgresql", "sqlite3").replace('"shop', f'"{tmp_path}/db-shop')
    (tmp_path / "shop").mkdir()
    files = {
        "settings.py": SETTINGS + routing, "shop/__init__.py": "", "shop/models.py": MODELS, "shop/jobs.py": JOBS,
        "play.py": f"import django\ndjango.setup()\n{enqueueing}\nfrom django_ojs import outbox\n"
        f"assert outbox.relay() == 1\nassert not handle.refresh().in_outbox\n{again}",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("-m", "django", "makemigrations", "shop", "-v0")
    run("-m", "django", "migrate", "-v0")
    run("-m", "django", "migrate", "-v0", "--database", "jobs")
    run("play.py")
    told = run("-m", "django", "check", "--database", "default")
    assert set(re.findall(r"django_ojs\.W0\d\d", told)) <= {"django_ojs.W002", "django_ojs.W003"}
