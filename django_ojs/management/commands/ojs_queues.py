"""`manage.py ojs_queues`: queues by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit
from django_ojs.database import database
from django_ojs.management.shell import ShellCommand, entry, member_argument, name_argument
from django_ojs.models import Queue
from django_ojs.models.fields import same_name
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
from django_ojs.queues import configuration
from django_ojs.queues.configuration import MAX_REASON, pause, resume
from django_ojs.rules import queueconfig
from django_ojs.states import State
from django_ojs.statistics.counters import Counts, count_all

#: Columns of the list that are states of jobs.
_SHOWN = (State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE, State.PENDING)


class Command(ShellCommand):
    help = "Lists queues with their jobs, stops and resumes delivery, and shows or changes what a queue is set up for."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|pause|resume|config", required=True)
        actions.add_parser("list", help="all queues").add_argument("--json", action="store_true", help="as JSON")
        for verb, text in (("pause", "deliver nothing more; jobs can still be enqueued"), ("resume", "deliver again")):
            switch = actions.add_parser(verb, help=text)
            switch.add_argument("names", nargs="+", type=name_argument, metavar="NAME")
            switch.add_argument("--reason", default="", help="for the event and the audit log")
        config = actions.add_parser("config", help="what a queue is set up for, as JSON; `_default` holds for all")
        config.add_argument("name", type=name_argument, metavar="NAME")
        config.add_argument("--set", action="append", default=[], type=member_argument, dest="changes",
                            metavar="KEY=JSON",
                            help='for instance concurrency=5 or rate_limit=\'{"limit": 10, "period": "1s"}\'; '
                            "null takes it back. More than once if need be")  # fmt: skip

    def do_list(self, options: dict[str, Any]) -> None:
        counted = count_all()
        found = Queue.objects.using(database(None)).exclude(pk=TEMPLATE).annotate(**ALL_DRAIN)
        facts = [queue_facts(queue, counted.get(queue.name)) for queue in found]
        if options["json"]:
            self.write_json(facts)
            return
        names = ("name", "status", *_SHOWN, "dead")
        rows = [[str(fact[name]) for name in names] for fact in facts]
        empty = "There are no queues: they appear with their first job."
        self.write_table([name.upper() for name in names], rows, empty)

    def do_pause(self, options: dict[str, Any]) -> None:
        self._switch(pause, options)

    def do_resume(self, options: dict[str, Any]) -> None:
        self._switch(resume, options)

    def _switch(self, switch: Callable[..., Queue], options: dict[str, Any]) -> None:
        action, names, reason = options["action"], options["names"], options["reason"][:MAX_REASON]
        for name in names:
            _known(name)
        for name in names:
            act = entry(f"queue.{action}", name, {"reason": reason} if reason else {})
            queue = audit.perform(partial(switch, name, by=act.actor, reason=reason), act)
            self.stdout.write(f"{name}: {queue.status}")

    def do_config(self, options: dict[str, Any]) -> None:
        name, changes = options["name"], dict(options["changes"])
        queue = None if name == TEMPLATE and not changes else _known(name)
        for key, value in changes.items():
            if value is not None and key not in queueconfig.KEYS:
                raise CommandError(f"A queue has no setting {key!r}. There are {', '.join(queueconfig.KEYS)}.")
        if changes:
            act = entry("queue.configure", name, changes)
            queue = audit.perform(partial(configuration.configure, name, changes, by=act.actor), act)
        template = Queue.objects.using(database(None)).filter(pk=TEMPLATE).first()
        self.write_json(configuration.effective(queue, template))


def queue_facts(queue: Queue, counts: Counts | None) -> dict[str, Any]:
    """What the list says about a queue."""
    numbers = counts.states if counts else dict.fromkeys(map(str, State), 0)
    return {"name": queue.name, "status": queue.status, **numbers, "dead": counts.dead if counts else 0}


def _known(name: str) -> Queue | None:
    """A queue that is there; a mistyped name must not make one. The template is always there."""
    queue = Queue.objects.using(database(None)).filter(same_name("name", name)).first()
    if queue is None and name != TEMPLATE:
        raise CommandError(f"There is no queue {name!r}. `ojs_queues list` shows which there are.")
    return queue
