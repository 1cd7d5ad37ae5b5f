"""`manage.py ojs_doctor`: what is wrong with the installation and how to mend it, for people and for scripts."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from django.core.management.base import CommandParser

from django_ojs import clock, doctor
from django_ojs.database import database
from django_ojs.management.shell import ShellCommand
from django_ojs.output import one_line
from django_ojs.rules import suggest
from django_ojs.rules.durations import format_instant


def known(text: str) -> str:
    """The id of a finding, also that of a system check (`django_ojs.W101`)."""
    if text in doctor.TITLES or re.fullmatch(r"django_ojs\.[EWI]\d{3}", text):
        return text
    near = suggest.nearest(text, doctor.TITLES.keys())
    hint = f"did you mean {near}?" if near else "docs/troubleshooting.md lists them"
    raise argparse.ArgumentTypeError(f"no finding has the id {text!r}; {hint}")


class Command(ShellCommand):
    help = (
        "Looks for what is wrong with settings, database, scheduler and workers, and says how to mend it. Exits with 1 "
        "when there is something to mend."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="as JSON, one object")
        parser.add_argument("--ignore", type=known, action="append", default=[], metavar="ID",
                            help="leave out the findings with this id; may be given several times")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        ignored = set(options["ignore"])
        found = [finding for finding in doctor.examine() if finding.id not in ignored]
        if options["json"]:
            time = format_instant(clock.now(database(None)))
            self.write_json({"time": time, "findings": [finding.as_dict() for finding in found]})
        else:
            self.stdout.write("\n\n".join(map(self._text, found)) if found else "Nothing to mend was found.")
        if found:
            sys.exit(1)

    def _text(self, finding: doctor.Finding) -> str:
        """A heading with the id, what is wrong, and the mend."""
        heading = self.style.MIGRATE_HEADING(f"{finding.title} [{finding.id}]")
        mend = [f"  Mend: {one_line(finding.mend)}"] if finding.mend else []
        return "\n".join([heading, f"  {one_line(finding.says)}", *mend])
