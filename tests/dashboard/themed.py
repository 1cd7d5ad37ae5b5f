"""Every page of ours under a theme, in a process of its own: a theme puts its own site in the place of Django's.

    OJS_TEST_DATABASE_URL=sqlite:///… python -m tests.dashboard.themed unfold pages.json

The file has the status and the HTML of each page, by its address, and whether maintenance mode was on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(theme: str, file: Path) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    from django.conf import settings

    settings.INSTALLED_APPS.insert(0, theme)
    settings.OJS = {"OUTBOX": "default"}

    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    file.write_text(json.dumps(read()))


def read() -> list[dict[str, Any]]:
    from django.contrib import admin
    from django.contrib.auth import get_user_model
    from django.test import Client

    from django_ojs.queues import maintenance
    from tests.dashboard.everything import fill, pages

    fill()
    client = Client(headers={"host": "localhost"})
    client.force_login(get_user_model().objects.create_superuser("admin", password="x"))
    found = []
    for is_on in (False, True):
        if is_on:
            maintenance.start(by="ann", reason="New disks")
        for page in pages(admin.site):
            response = client.get(page)
            html = response.content.decode() if not response.streaming else ""
            found.append({"page": page, "status": response.status_code, "html": html, "is_on": is_on})
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
