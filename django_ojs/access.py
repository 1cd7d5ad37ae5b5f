"""What a caller reaches: the one place that decides whether a job, a queue or a job type lies within its limits.

An API key may be limited to queues and to job types. That limits everything that a call reaches: the jobs that it
names, and also those that it meets, ends, counts or shows on its way. Each door asks the `Limits` of its caller and
decides nothing itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q

from django_ojs.models import APIKey
from django_ojs.models.fields import any_of
from django_ojs.rules import names


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The jobs that a caller reaches: those of these queues, and of these types.

    Attributes:
        queues: names of queues; None: all.
        types: job types, and patterns such as `mail.*`; None: all.
    """

    queues: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None

    @classmethod
    def of_key(cls, key: APIKey | None) -> Limits:
        """The limits of a key; a caller without one has none."""
        if key is None or not (key.queues or key.job_types):
            return UNLIMITED
        return cls(tuple(key.queues) if key.queues else None, tuple(key.job_types) if key.job_types else None)

    @property
    def unlimited(self) -> bool:
        """Whether the caller reaches every job, and what belongs to no job: workers, the settings of the server."""
        return self.queues is None and self.types is None

    @classmethod
    def of_json(cls, stored: Mapping[str, Any] | None) -> Limits:
        """The limits that `to_json` made."""
        if stored is None:
            return UNLIMITED
        return cls(*(None if stored[name] is None else tuple(stored[name]) for name in ("queues", "types")))

    def to_json(self) -> dict[str, Any] | None:
        """What is stored with the work that the server does later for this caller; None: no limits."""
        return None if self.unlimited else {"queues": self.queues, "types": self.types}

    def __and__(self, other: Limits) -> Limits:
        """What both reach: the limits of a caller who sets off what another one has defined."""
        if self.unlimited or other.unlimited:
            return other if self.unlimited else self
        queues = self.queues if other.queues is None else tuple(filter(self.covers_jobs_of, other.queues))
        return Limits(queues, _common(self, other))

    def covers(self, queue: str, job_type: str) -> bool:
        """Whether a job of this type in this queue lies within the limits."""
        return self.covers_jobs_of(queue) and self.covers_type(job_type)

    def covers_row(self, row: Mapping[str, Any]) -> bool:
        """Whether what has this `queue` and this `type` lies within the limits."""
        return self.covers(row["queue"], row["type"])

    def covers_type(self, job_type: str) -> bool:
        """Whether this job type, or all that this pattern covers, lies within the limits, in some queue at least."""
        return self.types is None or any(names.covers(entry, job_type) for entry in self.types)

    def covers_jobs_of(self, queue: str) -> bool:
        """Whether jobs of this queue lie within the limits, if only those of some types."""
        return self.queues is None or queue in self.queues

    def covers_queue(self, queue: str) -> bool:
        """Whether this queue as a whole lies within the limits, so that the caller may pause, configure or delete it.

        It holds jobs of every type, so a caller who is limited to types reaches no queue as a whole.
        """
        return self.types is None and self.covers_jobs_of(queue)

    def covers_type_in_all_queues(self, job_type: str) -> bool:
        """Whether this job type as a whole lies within the limits, so that the caller may say what holds for it.

        Its jobs may be in every queue, so a caller who is limited to queues reaches no type as a whole.
        """
        return self.queues is None and self.covers_type(job_type)

    def first_beyond(self, queues: Iterable[str]) -> str | None:
        """The first of these queues whose jobs lie outside of the limits."""
        return next((queue for queue in queues if not self.covers_jobs_of(queue)), None)

    def condition(self, of: str = "") -> Q:
        """Jobs, schedules, and all else with a `queue` and a `type`, that lie within the limits; with `of` those whose
        relation it is, such as `job__`."""
        condition = Q() if self.queues is None else Q(**{f"{of}queue__in": list(self.queues)})
        return condition if self.types is None else condition & any_of(f"{of}type", self.types)


def _common(one: Limits, other: Limits) -> tuple[str, ...] | None:
    """The types that both have: of two patterns, one of which covers the other, the narrower."""
    if one.types is None or other.types is None:
        return other.types if one.types is None else one.types
    return tuple(dict.fromkeys((*filter(one.covers_type, other.types), *filter(other.covers_type, one.types))))


#: What a caller without a limit reaches: everything.
UNLIMITED = Limits()
