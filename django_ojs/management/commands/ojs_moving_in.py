"""`manage.py ojs_moving_in`: lists what a code base uses of another queue, and what that becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs.client.otherwords import QUEUES
from django_ojs.management.movingin import find_uses, uses_by_queue
from django_ojs.management.shell import ShellCommand


class Command(ShellCommand):
    help = (
        "List what a code base uses of Celery, RQ, huey, dramatiq, Procrastinate, Django's Tasks, django-q2, "
        "django-background-tasks and APScheduler, with file and line, and what it becomes here. The command reads the "
        "Python files and runs none of them. What it does not know it says."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", nargs="?", default=".", help="a folder or a file; default: the current folder")

    def handle(self, *args: Any, **options: Any) -> None:
        root = Path(options["path"])
        try:
            uses, unread = find_uses(root)
        except OSError as error:
            raise CommandError(f"{root} cannot be read: {error.strerror}") from error
        for name, found in uses_by_queue(uses).items():
            queue = QUEUES[name]
            self.stdout.write(f"{queue.name}: docs/coming-from/{queue.page}.md")
            for use in found:
                ours = use.ours or "not in the table of words; the page may know it"
                self.stdout.write(f"  {use.path}:{use.line}: {use.word} -> {ours}")
        for file in unread:
            self.stdout.write(f"Not read: {file.path}: {file.why}")
        unknown = sum(not use.ours for use in uses)
        files = len({use.path for use in uses})
        self.stdout.write(f"Uses: {len(uses)}. Files: {files}. Not in the table of words: {unknown}.")
