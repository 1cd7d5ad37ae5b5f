"""Progress reports of handlers on their way to the server: now and then from the heart, the last before the outcome."""

from __future__ import annotations

from collections.abc import Iterable

from django_ojs.operations.progress import Known, Report, report
from django_ojs.worker.context import JobContext, News


def reported(context: JobContext, news: News, using: str) -> bool:
    """Write one report; False if the job is no longer this run's."""
    (known,) = report([_of(context, news)], using=using)
    return isinstance(known, Known) and known.accepted


def last_reports(contexts: Iterable[JobContext]) -> list[Report]:
    """What these runs, which have ended, said last and nobody has written yet."""
    news = ((context, context.take_news()) for context in contexts)
    return [_of(context, said, last=True) for context, said in news if said is not None]


def _of(context: JobContext, news: News, *, last: bool = False) -> Report:
    percent, message = news
    worker_id = context.row["worker_id"]
    return Report(context.id, percent, message, worker_id=worker_id, attempt=context.attempt, last=last)
