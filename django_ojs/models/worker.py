"""Workers, and the leases by which one of them leads."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import models

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models.fields import JSONTextField, NameField, OJSModel


class Worker(OJSModel):
    """A process, of any language, that fetches jobs: what it said of itself, latest in its heartbeat (core 7.5)."""

    class Directive(models.TextChoices):
        NONE = "", "none"
        RUNNING = "running", "running"
        QUIET = "quiet", "quiet"
        TERMINATE = "terminate", "terminate"
        RESTART = "restart", "restart"

    id = NameField(max_length=255, primary_key=True)
    incarnation = models.CharField(
        max_length=64,
        default="",
        blank=True,
        help_text="Which process has this name; empty: a worker that says nothing.",
    )
    owner = models.CharField(
        max_length=255,
        default="",
        db_default="",
        blank=True,
        help_text="The caller that registered it: key or user, and its primary key. Empty: an ojs_worker, or nobody.",
    )
    hostname = models.CharField(max_length=255, default="", blank=True)
    pid = models.BigIntegerField(null=True, blank=True)
    queues = JSONTextField(default=list, blank=True)
    job_types = JSONTextField(default=None, blank=True, help_text="Types it has handlers for; null: any.")
    labels = JSONTextField(default=None, blank=True)
    concurrency = models.PositiveIntegerField(default=1)
    version = models.CharField(max_length=64, default="", blank=True)
    release = NameField(max_length=64, default="", blank=True, help_text="Of the site's own code (RELEASE).")
    state = models.CharField(max_length=16, default="running", help_text="As reported.")
    directive = models.CharField(max_length=9, choices=Directive.choices, default="", blank=True)
    asleep = models.BooleanField(default=False, help_text="Waits to be told that there is work.")
    active_jobs = models.PositiveIntegerField(default=0)
    jobs_completed = models.PositiveBigIntegerField(default=0)
    counts_itself = models.BooleanField(
        default=False, help_text="It says how many jobs it completed; else they are counted from the event log."
    )
    memory_mb = models.FloatField(null=True, blank=True)
    cpu_percent = models.FloatField(null=True, blank=True)
    threads_replaced = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Threads of its handlers that have died and were replaced."
    )
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(help_text="Latest call of any kind.")
    last_heartbeat_at = models.DateTimeField(
        null=True, blank=True, help_text="Empty for a worker known from FETCH alone: it is never declared dead."
    )
    #: The jobs that it holds, on rows that `workerregistry.directory.with_held` has read. What a heartbeat says is
    #: older, and a worker that only fetches never says it.
    held: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unchanged: set[str] = set()  #: what a heartbeat has said again, which need not be written

    def save_changed(self, using: str) -> None:
        """Save a row that there is, but for what is `unchanged`."""
        names = [field.name for field in self._meta.concrete_fields if not field.primary_key]
        self.save(using=using, update_fields=[name for name in names if name not in self.unchanged])

    @property
    def heard_at(self) -> dt.datetime:
        """Its latest heartbeat; the latest call of any kind where it sends none."""
        return self.last_heartbeat_at or self.last_seen_at

    def is_stale(self, now: dt.datetime) -> bool:
        """Whether it has been silent for so long that it counts as dead, or, if it never beat, as gone."""
        return now - self.heard_at > dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["last_heartbeat_at"], name="ojs_worker_heartbeat")]

    def __str__(self) -> str:
        return self.id


class WorkerMinute(OJSModel):
    """What a worker said in its first heartbeat of a minute; kept for two days, also when the worker is gone."""

    worker_id = NameField(max_length=255)
    minute = models.DateTimeField(db_index=True)
    active_jobs = models.PositiveIntegerField(default=0)
    concurrency = models.PositiveIntegerField(default=1)
    memory_mb = models.FloatField(null=True)
    cpu_percent = models.FloatField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["worker_id", "minute"], name="ojs_worker_minute_once")]

    def __str__(self) -> str:
        return f"{self.worker_id} at {self.minute}"


class WorkerDeath(OJSModel):
    """A job that ran when the process of its worker died, and how that died; kept for two days.

    One row for each job that ran: where there was one, it ran `alone`, and is to blame.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_index=True)
    worker_id = NameField(max_length=255)
    job_id = models.UUIDField(db_index=True)
    job_type = models.CharField(max_length=255)
    signal = models.CharField(max_length=16, default="", help_text="SIGKILL, for example; empty: none, or not known.")
    exit_code = models.IntegerField(null=True, help_text="Null: it was a signal, or nothing is known.")
    memory_mb = models.FloatField(null=True, help_text="The most that it had; of a silent worker, what it said last.")
    alone = models.BooleanField(default=False)
    open = models.BooleanField(default=True, help_text="The job may wait to be run alone.")

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["open", "id"], name="ojs_death_open")]

    def __str__(self) -> str:
        return f"{self.worker_id} at {self.at}"


class Release(OJSModel):
    """A release of the site's own code, and when the first worker of it was heard."""

    name = NameField(max_length=64, primary_key=True)
    first_seen_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class WorkerRelease(OJSModel):
    """Since when a worker has run a release. It outlives the worker, because attempts of jobs are told by it."""

    id = models.BigAutoField(primary_key=True)
    worker_id = NameField(max_length=255)
    release = NameField(max_length=64)
    since = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["worker_id", "since"], name="ojs_worker_release")]

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.release}"


class Lease(OJSModel):
    """A role that one process at a time may hold, such as the scheduler's leader: who holds it, and until when."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = NameField(max_length=255)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"

    @classmethod
    def is_held(cls, name: str, using: str) -> bool:
        """Whether a process holds the role now."""
        return cls.objects.using(using).filter(name=name, expires_at__gt=clock.now(using)).exists()
