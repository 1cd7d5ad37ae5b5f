"""What each kind of stream says of the events that it gets."""

from __future__ import annotations

import time
from collections import deque

from django_ojs import clock, states
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.events import log, places
from django_ojs.events.filters import Filter
from django_ojs.http import results, shown
from django_ojs.jobs import progress
from django_ojs.jobs.info import info
from django_ojs.models.job import JobRow
from django_ojs.realtime.reading import Entry
from django_ojs.realtime.sse import frames
from django_ojs.realtime.sse.response import Beginning, in_thread
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import summary

#: The events after which a job changes no more. `job.failed` may show a terminal state, but is not the last one.
ENDS = ("job.completed", "job.discarded", "job.cancelled", "job.expired")


class Channel:
    """Every event that matches the filter."""

    pulse: float | None = None
    ended = False

    def __init__(self, channel: str, wanted: Filter) -> None:
        self.channel, self.wanted = channel, wanted
        self._behind = places.START

    def opening(self, begin: Beginning) -> str:
        self._behind = begin.place
        return ""

    async def tell(self, entry: Entry) -> str:
        return self._events(entry, self.wanted)

    def _events(self, entry: Entry, wanted: Filter) -> str:
        """The event and the change made of it, as far as `wanted` names them and the client has not seen them."""
        return "".join(frames.event(view) for view in entry.views(wanted.kinds, self._behind))

    async def idle(self) -> str:
        return ""


class OneJob(Channel):
    """The events of one job until it ends; of one that has ended, its last one (events 4)."""

    def __init__(self, row: JobRow, wanted: Filter) -> None:
        super().__init__(f"job:{row['id']}", wanted)
        self._row = row
        # The end must be seen whatever the client wants to be told of.
        self._told = wanted
        self.wanted = Filter(types=(*wanted.types, *ENDS) if wanted.types else (), job_ids=wanted.job_ids)

    def opening(self, begin: Beginning) -> str:
        if self._row["state"] in states.TERMINAL:
            end = places.last(log.database(), job_id=self._row["id"], type__in=ENDS)
            if end is None:  # pruned: only the job itself can still say how it ended
                self.ended = True
                begin.gap = begin.gap or {"reason": "pruned"}
            elif begin.asked:
                self.ended = end <= begin.place
            else:
                begin.place, begin.cursor = end._replace(seen=places.NOTHING), None
        return super().opening(begin)

    async def tell(self, entry: Entry) -> str:
        self.ended = entry.event.type in ENDS
        return self._events(entry, self._told)


class Progress(Channel):
    """The progress of one job, each report twice: named, and unnamed for a dashboard that hears only that."""

    def __init__(self, row: JobRow) -> None:
        types = ("job.progress", *ENDS)
        super().__init__(f"job:{row['id']}", Filter(types=types, job_ids=(row["id"],)))
        self._row, self._shown = row, progress.describe(row, None)

    def opening(self, begin: Beginning) -> str:
        found = progress.of([self._row], database(None)).get(self._row["id"])
        self._shown = shown.progress(self._row, found)
        said = self._say("progress", "") if found is not None else ""
        return said + self._end("") if self._row["state"] in states.TERMINAL else said

    async def tell(self, entry: Entry) -> str:
        envelope = entry.envelope
        data = envelope["data"]
        self._shown |= {"state": data["state"], "updated_at": envelope["time"]}
        if envelope["type"] == "job.progress":
            self._shown |= {
                "progress": progress.fraction(data["progress_percent"]), "message": data.get("progress_message"),
                "data": data.get("progress_data"),
            }  # fmt: skip
            return self._say("progress", envelope["id"])
        if envelope["type"] == "job.completed" and self._shown["progress"] is not None:
            self._shown["progress"] = 1.0
        return self._end(envelope["id"])

    def _say(self, event: str, cursor: str) -> str:
        return frames.frame(self._shown, event=event, id=cursor) + frames.frame(self._shown, id=cursor)

    def _end(self, cursor: str) -> str:
        self.ended = True
        word = "failed" if self._shown["state"] == "discarded" else self._shown["state"]
        return self._say(word, cursor)


class Result(Progress):
    """The progress of one job, and then its result, or its error (jobs 8)."""

    def opening(self, begin: Beginning) -> str:
        found = super().opening(begin)
        if not self.ended:
            return found
        return found.removesuffix(self._end("")) + self._outcome("")

    async def tell(self, entry: Entry) -> str:
        said = await super().tell(entry)
        if not self.ended:
            return said
        return await in_thread(lambda: self._outcome(entry.envelope["id"]))

    def _outcome(self, cursor: str) -> str:
        try:
            row = info(self._row["id"])
            found = results.outcome(row)
        except OJSError as error:  # pruned in the meantime, or kept for no time at all
            return frames.frame(error.as_dict(), event="error", id=cursor)
        if "error" in found:
            return frames.frame(found["error"] or {"code": found["state"]}, event="error", id=cursor)
        return frames.frame({"value": found["result"]}, event="result", id=cursor)


class Statistics(Channel):
    """Numbers every two seconds, and the jobs that come and end, flat, as the published dashboard reads them."""

    WINDOW = 10.0  #: seconds over which rates are averaged
    TYPES = {"job.enqueued": "enqueued", "job.completed": "processed", "job.failed": "failed", "job.cancelled": ""}

    def __init__(self, queues: tuple[str, ...] | None, types: tuple[str, ...] | None) -> None:
        wanted = Filter(types=tuple(self.TYPES), only_queues=queues, only_types=types)
        super().__init__("stats", wanted)
        self.pulse = 2.0
        self._queues = queues
        self._began = time.monotonic()
        self._seen: deque[tuple[float, str]] = deque()

    def opening(self, begin: Beginning) -> str:
        return self._metrics()

    async def idle(self) -> str:
        return await in_thread(self._metrics)

    async def tell(self, entry: Entry) -> str:
        envelope = entry.envelope
        kind, data = envelope["type"], envelope["data"]
        self._seen.append((time.monotonic(), self.TYPES[kind]))
        flat = {"job_id": data["job_id"], "type": data["job_type"], "queue": data["queue"],
                "timestamp": envelope["time"], "attempt": data["attempt"], "event": kind}  # fmt: skip
        if "duration_ms" in data:
            flat["duration"] = data["duration_ms"]
        if "error" in data:
            flat["error"] = data["error"]["message"]
        return frames.frame(flat, event=kind, id=envelope["id"])

    def _metrics(self) -> str:
        numbers = summary.snapshot(self._queues) | {
            "throughput": self._rates(),
            "timestamp": format_instant(clock.now()),
        }
        ended = sum(numbers["throughput"][name] for name in ("processed_per_second", "failed_per_second"))
        failed = numbers["throughput"]["failed_per_second"]
        numbers["error_rate"] = round(failed / ended, 4) if ended else 0.0
        return frames.frame(numbers, event="metrics")

    def _rates(self) -> dict[str, float]:
        now = time.monotonic()
        while self._seen and now - self._seen[0][0] > self.WINDOW:
            self._seen.popleft()
        seconds = max(min(now - self._began, self.WINDOW), 1.0)
        words = [word for _, word in self._seen]
        return {
            f"{name}_per_second": round(words.count(name) / seconds, 3) for name in ("processed", "failed", "enqueued")
        }
