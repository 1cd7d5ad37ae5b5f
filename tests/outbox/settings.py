"""A site whose data is in one database and whose jobs are in another."""

from __future__ import annotations

import os

from django_ojs.database import parse_url
from tests.settings import *  # noqa: F403
from tests.settings import BASE_DIR

INSTALLED_APPS = [*INSTALLED_APPS, "tests.outbox"]  # type: ignore[has-type]  # noqa: F405
DATABASES = {
    "default": parse_url(os.environ["OUTBOX_TEST_DATA"], BASE_DIR),
    "jobs": parse_url(os.environ["OUTBOX_TEST_JOBS"], BASE_DIR),
}
DATABASE_ROUTERS = ["django_ojs.routers.JobsRouter"]
OJS = {} if os.environ.get("OUTBOX_TEST_OFF") else {"OUTBOX": "default"}
