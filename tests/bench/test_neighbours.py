"""Eight clients push beside each neighbour that once stopped a server, and each of their calls is answered with 201."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from django.conf import settings

from benchmarks.neighbours import NEIGHBOURS


@pytest.mark.wide
@pytest.mark.postgres
def test_no_neighbour_costs_the_others_a_call() -> None:
    command = ["manage.py", "ojs_bench", "--database", os.environ["OJS_TEST_DATABASE_URL"], "--only", "neighbours"]
    done = subprocess.run(
        [sys.executable, *command, "--jobs", "2000", "--runs", "1", "--json"], cwd=settings.BASE_DIR,
        capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    beside = [row["beside"] for row in json.loads(done.stdout)["results"] if row["server"] == "uvicorn"]
    assert beside == list(NEIGHBOURS)
