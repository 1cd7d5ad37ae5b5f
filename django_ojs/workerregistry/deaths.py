"""Records how a process of a worker died and which jobs it ran, and finds those that are run alone because of it.

A handler can end its process: it takes more memory than there is, so that the kernel kills it, or it crashes. Where it
ran alone, it did so, and the death counts as a loss of its job (`lifecycle.transitions.lose`). Where several ran, each
of their jobs is *suspected*: a process of our own worker leaves it to one that runs it alone, until a run of it has
ended (it is cleared) or has ended its process again (it is to blame). The attempt of a job whose process died counts
against no `max_attempts`, whichever of them it was: `POISON_LIMIT` counts deaths, `max_attempts` failures.

Workers of other languages say nothing of their processes. They get suspected jobs as all others, and what they lose
counts as it always did.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django_ojs.database import database
from django_ojs.lifecycle.transitions import uncount
from django_ojs.models import Job, Worker, WorkerDeath
from django_ojs.models.job import JobRow
from django_ojs.states import State

#: A run of a job: its id and attempt.
RunId = tuple[uuid.UUID, int]
#: Deaths that are looked at to find the jobs to run alone.
MOST = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Death:
    """How a worker's process ended, which had not been told to.

    Attributes:
        signal: the name of the signal that ended it; '' for none, or where that is not known.
        exit_code: its exit code, where no signal ended it and that is known.
        memory_mb: the most memory that it had (MiB, resident); where that is not known, what it said last.
        running: the runs whose handlers had begun and not ended.
    """

    signal: str = ""
    exit_code: int | None = None
    memory_mb: float | None = None
    running: frozenset[RunId] = frozenset()

    @property
    def facts(self) -> dict[str, Any]:
        """What errors and events say of it."""
        found = {"signal": self.signal or None, "exit_code": self.exit_code, "memory_mb": self.memory_mb}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        if self.signal:
            how = f"was killed by {self.signal}"
        else:
            how = "died" if self.exit_code is None else f"ended with code {self.exit_code}"
        return how if self.memory_mb is None else f"{how} and had {self.memory_mb:,.0f} MB of memory"


def of_silent(worker: Worker) -> Death:
    """The death of a worker that no one has seen."""
    return Death(memory_mb=worker.memory_mb)


def suspect(row: JobRow) -> None:
    """Let a locked job be run alone, and the present attempt count against no limit."""
    row["suspected"] = True
    uncount(row)


def record_deaths(
    rows: Iterable[JobRow], worker_id: str, death: Death, now: dt.datetime, using: str, *, alone: bool
) -> None:  # fmt: skip
    """Write down that these jobs ran when their worker's process died. In the transaction that takes them back."""
    WorkerDeath.objects.using(using).bulk_create(
        WorkerDeath(
            at=now, worker_id=worker_id, job_id=row["id"], job_type=row["type"], signal=death.signal,
            exit_code=death.exit_code, memory_mb=death.memory_mb, alone=alone,
        )
        for row in rows
    )  # fmt: skip


def waiting(queues: Collection[str], types: Collection[str], *, using: str | None = None) -> list[uuid.UUID]:
    """The suspected jobs of these queues and types that can be claimed: those that were lost least often first, so that
    none that kills its process keeps others waiting."""
    using = database(using)
    deaths = WorkerDeath.objects.using(using)
    suspects = dict(deaths.filter(open=True).order_by("id").values_list("pk", "job_id")[:MOST])
    if not suspects:
        return []
    columns = ("id", "state", "queue", "type", "losses", "priority", "enqueued_at")
    found = Job.objects.using(using).filter(pk__in=set(suspects.values()), suspected=True).live().rows(columns)
    over = set(suspects.values()) - {row["id"] for row in found}
    if over:
        deaths.filter(pk__in=[pk for pk, job_id in suspects.items() if job_id in over]).update(open=False)
    fitting = [
        row for row in found if row["state"] == State.AVAILABLE and row["queue"] in queues and row["type"] in types
    ]
    fitting.sort(key=lambda row: (row["losses"], -row["priority"], row["enqueued_at"], row["id"]))
    return [row["id"] for row in fitting]


def of_job(job_id: uuid.UUID, using: str) -> list[WorkerDeath]:
    """The deaths of processes while this job ran, the last first."""
    return list(WorkerDeath.objects.using(using).filter(job_id=job_id).order_by("-at", "-pk"))


def since(instant: dt.datetime, using: str) -> Sequence[WorkerDeath]:
    """The deaths since then, the last first."""
    return list(WorkerDeath.objects.using(using).filter(at__gte=instant).order_by("-at", "-pk")[:MOST])


def describe(death: WorkerDeath) -> str:
    """How a process died, in no language: `SIGKILL, 812 MB`."""
    how = death.signal or ("?" if death.exit_code is None else f"exit {death.exit_code}")
    return how if death.memory_mb is None else f"{how}, {death.memory_mb:,.0f} MB"


def prune(before: dt.datetime, using: str) -> int:
    """Delete what was noted before an instant and keeps no job waiting."""
    old = WorkerDeath.objects.using(using).filter(at__lt=before, open=False)
    return int(old._raw_delete(using))
