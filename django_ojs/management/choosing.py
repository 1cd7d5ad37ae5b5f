"""Which jobs a command means: its arguments, and the `Selection` that they make."""

from __future__ import annotations

import argparse
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from django_ojs.operations.deadletters import LONGEST
from django_ojs.operations.selection import Selection
from django_ojs.operations.slices import Look, moment
from django_ojs.policies.durations import format_instant
from django_ojs.states import State, ordered

_TEXTS = ("type", "queue", "tag", "search", "error", "worker")
#: The arguments that narrow down.
FILTERS = ("state", *_TEXTS, "since", "until", "before", "after", "workflow")


def add_choice(parser: CommandParser, *, states: bool = True, act: bool = True) -> None:
    """The arguments that say which jobs are meant: the filters of the admin's list, and those of enqueueing."""
    parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="these jobs")
    if act:
        parser.add_argument("--all", action="store_true", dest="everything", help="all jobs that may be meant")
    if states:
        parser.add_argument("--state", type=_states, metavar="STATE[,STATE]", help="only jobs in these states")

    def text(name: str, metavar: str, told: str) -> None:
        parser.add_argument(name, type=_text, metavar=metavar, help=told)

    text("--type", "TYPE", "only this job type; `email.*` for all that begin so")
    text("--queue", "NAME", "only this queue")
    text("--tag", "TAG", "only jobs with this tag, among the newest")
    text("--search", "TEXT", "only jobs with this text in their arguments or meta, among the newest")
    when = "an instant such as 2026-01-31T12:00:00Z or 2026-01-31, or so long ago: 90m, 2h, 7d"
    for name, told in (
        ("--since", f"only jobs made since then, or ended since then if only ended ones are meant: {when}"),
        ("--until", "only jobs made, or ended, before then"), ("--before", "only jobs enqueued before then"),
        ("--after", "only jobs enqueued after then"),
    ):  # fmt: skip
        parser.add_argument(name, type=_time, metavar="WHEN", help=told)
    text("--error", "TEXT", "only jobs in whose errors this text is")
    text("--worker", "NAME", "only jobs that this worker has, or had last")
    parser.add_argument("--workflow", type=job_id, metavar="ID", help="only members of this workflow")


def chosen(options: dict[str, Any], default: Sequence[State], *, dead_letters: bool = False) -> Selection:
    """What the arguments of `add_choice` mean, but for ids."""
    texts: dict[str, Any] = {name: options[name] or "" for name in _TEXTS}
    return Selection(
        states=options.get("state") or ordered(default), dead_letters=dead_letters, text=texts.pop("search"), **texts,
        since=options["since"], until=options["until"], enqueued_before=options["before"],
        enqueued_after=options["after"], workflow=options["workflow"],
    )  # fmt: skip


def told(look: Look) -> str:
    """How far a search looked; '' where it looked at all."""
    if look.looked is None or look.back_to is None:
        return ""
    reach = f"Looked at the newest {look.looked:,} jobs, back to {format_instant(look.back_to)}"
    return f"{reach}; --until {look.further} looks at those before."


def job_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id such as 01a201d1-1122-710b-befd-b4272ad0d41e") from None


def _text(text: str) -> str:
    if not text.strip() or "\0" in text or len(text) > LONGEST:
        raise argparse.ArgumentTypeError(f"a text of 1 to {LONGEST} characters is needed")
    return text


def _states(text: str) -> list[State]:
    found = [word.strip() for word in text.split(",")]
    if not set(found) <= set(State):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {', '.join(State)}")
    return [State(word) for word in dict.fromkeys(found)]


def _time(text: str) -> dt.datetime:
    try:
        found = moment(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither so long ago (2h) nor an instant (2026-01-31T12:00:00Z)")
    return found
