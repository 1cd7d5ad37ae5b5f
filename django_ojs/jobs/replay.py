"""Automatic retries of dead letters by rules (core 11.9): the rules, and the scheduler's passes that follow them.

A rule retries as who made it would (`jobs.retry`), so long after a job's end as it says. Each retry has a row in
`JobReplay`, in the same transaction, and these rows enforce the rule's limit for one job and its limit per minute,
whichever process leads. The first rule that matches a job and has retries left for it decides; if none has, the job
stays where it is. Nothing is retried in maintenance mode, nor into a queue that is paused or draining.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import (
    Case,
    Count,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.lookups import LessThan

from django_ojs import clock, jsontext
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried, unseen
from django_ojs.errors import Conflict, InvalidRequest, NotFound, OJSError
from django_ojs.faults import only_if_taken
from django_ojs.guard import get_logger
from django_ojs.hooks import together
from django_ojs.jobs import steps
from django_ojs.jobs.retry import RuleReplay, retry
from django_ojs.jobs.selection import dead_letters, with_error_type
from django_ojs.messages import count, phrase
from django_ojs.models import Job, JobReplay, Queue, ReplayRule
from django_ojs.models.job import UniqueLock
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules import replayrules
from django_ojs.rules.replayrules import Rule
from django_ojs.states import State
from django_ojs.store import store_of

logger = get_logger(__name__)

#: Jobs that one transaction retries, and jobs of a rule that are read at once.
BATCH, PAGE = 100, 500
_MINUTE = dt.timedelta(minutes=1)
#: Two schedulers that follow the rules take turns by this lock, and so do two callers who make rules.
_TURN = zlib.crc32(b"replay rules") % UniqueLock.STRIPES
_COLUMNS = ("id", "type", "queue", "created_at", "finished_at")


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What a rule would do now.

    Attributes:
        matched: dead letters that its filter means.
        exhausted: those of them that it has retried as often as it may.
        due: those that it would retry now, if its pace allowed all of them at once.
        looked_at: how many were read for `due`: `OJS["SEARCH_DEPTH"]` at most.
    """

    matched: int
    exhausted: int
    due: int
    looked_at: int


def rules(using: str | None = None) -> list[Rule]:
    """All rules in their order: those of the setting, then those that operators made, the oldest first."""
    fixed = replayrules.parse_all(ojs_settings.REPLAY_RULES)
    taken = {rule.name for rule in fixed}
    rows = ReplayRule.objects.using(database(using)).order_by("pk")
    return fixed + [rule for row in rows if (rule := of_row(row)).name not in taken]


def of_row(row: ReplayRule) -> Rule:
    return Rule(
        row.name, row.filter, row.delay_ms, row.max_replays, row.per_minute, row.enabled, limits=row.limits
    )  # fmt: skip


def find(name: str, *, using: str | None = None) -> Rule:
    """The rule of this name. Raises `NotFound`."""
    found = next((rule for rule in rules(using) if rule.name == name), None)
    if found is None:
        raise NotFound.resource("replay_rule", name[:128])
    return found


def put(rule: Rule, *, using: str | None = None) -> bool:
    """Make a rule, or give the one of its name this definition, in its place; return whether it is new.

    Raises `Conflict` where the setting has a rule of this name, `InvalidRequest` where there are too many. A
    limited caller may have as many rules as are left for others, so that others can always make some.
    """
    using = database(using)
    _refuse_fixed(rule.name)
    values = {name: getattr(rule, name) for name in ("delay_ms", "max_replays", "per_minute", "enabled", "limits")}
    values |= {"filter": dict(rule.filter), "updated_at": clock.now(using)}
    store = store_of(using)
    with atomic(using=using):
        store.begin_writing()
        store.lock_stripes([_TURN])
        rows = ReplayRule.objects.using(using)
        if rows.filter(name=rule.name).update(**values):
            return False
        _check_room(rule, [Limits.of_json(row.limits) for row in rows.only("limits")])
        try:
            with atomic(using=using):
                rows.create(name=rule.name, created_at=values["updated_at"], **values)
        except IntegrityError as error:  # another caller made it meanwhile
            only_if_taken(error)
            if not rows.filter(name=rule.name).update(**values):
                raise unseen(error, using) from error.__cause__
            return False
    return True


def delete(name: str, *, using: str | None = None) -> Rule:
    """Forget a rule; what it has retried still counts, should there be one of its name again.

    Raises `NotFound`, and `Conflict` for a rule of the setting.
    """
    using = database(using)
    _refuse_fixed(name)
    found = find(name, using=using)
    ReplayRule.objects.using(using).filter(name=name).delete()
    return found


def preview(rule: Rule, *, using: str | None = None) -> Preview:
    """How many dead letters a rule is for, and how many of them it would retry now, even where it is switched off."""
    using = database(using)
    jobs = _jobs(rule, using)
    others = [other for other in rules(using) if other.name != rule.name]
    names = [one.name for one in rules(using)]
    place = names.index(rule.name) if rule.name in names else len(others)
    asked = [*others[:place], dataclasses.replace(rule, enabled=True), *others[place:]]
    looked, due = 0, 0
    for page in _pages(asked[place], asked, clock.now(using), using):
        looked += len(page)
        due += len(_chosen(asked[place], asked, page, using))
    exhausted = jobs.count() - jobs.filter(_left(rule)).count()
    return Preview(jobs.count(), exhausted, due, looked)


def replay(*, using: str | None = None) -> int:
    """Retry what is due by the rules, at most `BATCH` jobs of each; return how many were retried."""
    using = database(using)
    asked = rules(using)
    if not any(rule.enabled for rule in asked) or maintenance.is_on(using=using):
        return 0
    return sum(_follow(rule, asked, using) for rule in asked if rule.enabled)


def _check_room(new: Rule, known: Sequence[Limits]) -> None:
    """Raise InvalidRequest where there may be no further rule; `known` are the limits of those that callers made."""
    free = replayrules.MAX_RULES - len(known) - len(ojs_settings.REPLAY_RULES)
    if free <= 0:
        raise InvalidRequest(phrase("There are %(most)s rules already.", most=replayrules.MAX_RULES))
    limits = Limits.of_json(new.limits)
    if not limits.unlimited and known.count(limits) >= free:
        raise InvalidRequest(
            f"Callers with these limits have {known.count(limits)} rules, and as few as {free} are left for others.",
            hint="Delete a rule that is no longer needed, or let a caller without limits make this one.",
        )


def _refuse_fixed(name: str) -> None:
    if name in [rule.name for rule in replayrules.parse_all(ojs_settings.REPLAY_RULES)]:
        raise Conflict(
            phrase("The rule '%(name)s' is in the site's settings.", name=name),
            details={"resource_type": "replay_rule", "resource_id": name},
            hint="Change OJS['REPLAY_RULES'].",
        )


def _follow(rule: Rule, asked: Sequence[Rule], using: str) -> int:
    ids: list[uuid.UUID] = []
    most = min(BATCH, _room(rule, clock.now(using), using))
    if most <= 0:
        return 0
    for page in _pages(rule, asked, clock.now(using), using):
        ids += _chosen(rule, asked, page, using)
        if len(ids) >= most:
            break
    return together(lambda: _retry(rule, asked, ids[:most], using=using)) if ids else 0


@retried
def _retry(rule: Rule, asked: Sequence[Rule], ids: Sequence[uuid.UUID], *, using: str) -> int:
    """Retry those of the jobs that are still to be, as far as the rule's pace allows."""
    store = store_of(using)
    with atomic(using=using):
        store.begin_writing()
        store.lock_stripes([_TURN])
        now = clock.now(using)
        rows = [row for row in store.lock(ids) if row["state"] == State.DISCARDED and row["dead_letter"]]
        due = [row for row in rows if row["finished_at"] <= rule.edge(now)]
        due.sort(key=lambda row: (row["finished_at"], row["id"]))
        chosen = _chosen(rule, asked, [(row, _types(row["errors"])) for row in due], using)
        chosen = chosen[: max(0, _room(rule, now, using))]
        if not chosen:
            return 0
        counts = _counts(chosen, using)
        replays = {
            job_id: RuleReplay(rule.name, counts[job_id][rule.name] + 1, counts[job_id].total() + 1)
            for job_id in chosen
        }
        outcomes = retry(chosen, replays=replays, limits=Limits.of_json(rule.limits), using=using)
        done = [job_id for job_id, out in zip(chosen, outcomes, strict=True) if not isinstance(out, OJSError)]
        JobReplay.objects.using(using).bulk_create(
            [JobReplay(job_id=job_id, rule=rule.name, replayed_at=now) for job_id in done]
        )
    logger.info("The rule %s retried %s.", rule.name, count(len(done), "dead letter"))
    return len(done)


def _room(rule: Rule, now: dt.datetime, using: str) -> int:
    """How many jobs the rule may still retry in this minute."""
    late = JobReplay.objects.using(using).filter(
        rule=rule.name, replayed_at__gt=now - _MINUTE, replayed_at__lte=now + clock.AHEAD
    )
    return rule.per_minute - late.count()


def _jobs(rule: Rule, using: str) -> QuerySet[Job]:
    """The dead letters that a rule's filter means, but for what `Rule.takes` sees in the last error."""
    named = {name: text for name, text in rule.filter.items() if name not in ("since", "until")}
    return dead_letters(**named, created_since=rule.since, created_until=rule.until).jobs(using)


def _left(rule: Rule) -> Q:
    """Jobs that the rule may retry again."""
    mine = JobReplay.objects.filter(job_id=OuterRef("pk"), rule=rule.name).order_by().values("job_id")
    number = Subquery(mine.annotate(number=Count("pk")).values("number"), output_field=IntegerField())
    return Q(LessThan(Coalesce(number, Value(0)), rule.max_replays))


#: A job as `Rule.takes` reads it, and the types of its errors.
_Seen = tuple[Mapping[str, Any], list[str]]


def _pages(rule: Rule, asked: Sequence[Rule], now: dt.datetime, using: str) -> Iterator[list[_Seen]]:
    """The jobs that may be due by a rule, the oldest end first, as far as `SEARCH_DEPTH`.

    Errors, which may be long, are read only where one of the types in question is among them.
    """
    queues = list(Queue.objects.using(using).filter(Q(paused=True) | Q(draining=True)).values_list("name", flat=True))
    if TEMPLATE in queues:  # all of them are draining
        return
    jobs = _jobs(rule, using).filter(_left(rule), finished_at__lte=rule.edge(now)).exclude(queue__in=queues)
    asked_for = Q()
    for name in sorted(replayrules.NEVER | {one.filter["error_type"] for one in asked if "error_type" in one.filter}):
        asked_for |= with_error_type(name)
    text = ExpressionWrapper(F("errors"), output_field=TextField())
    errors = Case(When(asked_for, then=text), default=Value(""), output_field=TextField())
    found = jobs.order_by("finished_at", "pk").values_list(*_COLUMNS, errors)
    place, looked = Q(), 0
    while looked < ojs_settings.SEARCH_DEPTH:
        page = list(found.filter(place)[:PAGE])
        if page:
            yield [(dict(zip(_COLUMNS, values[:-1], strict=True)), _types(values[-1])) for values in page]
        if len(page) < PAGE:
            return
        looked += len(page)
        last, end = page[-1][0], page[-1][4]
        place = Q(finished_at__gte=end) & (Q(finished_at__gt=end) | Q(pk__gt=last))


def _chosen(rule: Rule, asked: Sequence[Rule], seen: Sequence[_Seen], using: str) -> list[uuid.UUID]:
    """Those jobs of which this rule is the first that is for them and has retries left, but for those whose undoing has
    not ended: a retry refuses them."""
    counts = _counts([job["id"] for job, _ in seen], using)

    def first(job: Mapping[str, Any], types: list[str]) -> Rule | None:
        done = counts[job["id"]]
        takers = (one for one in asked if one.enabled and one.takes(job, types) and done[one.name] < one.max_replays)
        return next(takers, None)

    chosen = [job["id"] for job, types in seen if first(job, types) == rule]
    undone = steps.undone_by(chosen, using=using) if chosen else {}
    return [job_id for job_id in chosen if job_id not in undone]


def _counts(job_ids: Sequence[uuid.UUID], using: str) -> dict[uuid.UUID, Counter[str]]:
    """How often each rule has retried each job."""
    found: dict[uuid.UUID, Counter[str]] = {job_id: Counter() for job_id in job_ids}
    past = JobReplay.objects.using(using).filter(job_id__in=list(job_ids)).order_by()
    for job_id, name, number in past.values_list("job_id", "rule").annotate(number=Count("pk")):
        found[job_id][name] = number
    return found


def _types(errors: str) -> list[str]:
    return [str(error.get("type", "")) for error in jsontext.loads(errors)] if errors else []
