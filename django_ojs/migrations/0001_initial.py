"""The whole schema, as of the first release."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models import F, Q

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import JSONTextField
from django_ojs.rules.ids import new_id, new_job_id

STATES = ["scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded"]
ENDED = ["completed", "cancelled", "discarded"]
LIVE = [state for state in STATES if state not in ENDED]


def columns(**fields: models.Field[Any, Any]) -> list[tuple[str, models.Field[Any, Any]]]:
    """The fields of a model, to be written as in its class."""
    return list(fields.items())


def auto_id() -> models.Field[Any, Any]:
    return models.BigAutoField(primary_key=True, verbose_name="ID", auto_created=True, serialize=False)


def number() -> models.Field[Any, Any]:
    return models.BigIntegerField(default=0, db_default=0)


def prepare_mariadb(apps: Any, schema_editor: Any) -> None:
    """MariaDB has no partial indexes, and would take keys that differ in their case for the same.

    It needs the state in the index of the claim; the other indexes it gets whole.
    """
    if schema_editor.connection.vendor != "mysql":
        return
    job, limit, start = (
        apps.get_model("django_ojs", name)._meta.db_table for name in ("Job", "RateLimit", "RateStart")
    )
    column = "varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
    schema_editor.execute(f"ALTER TABLE {job} MODIFY rate_key {column}")
    schema_editor.execute(f"ALTER TABLE {limit} MODIFY `key` {column}")
    schema_editor.execute(f"ALTER TABLE {start} MODIFY `key` {column}")
    for name, order in (
        ("claim", "state, queue, priority DESC, enqueued_at, id"),
        ("unique", "unique_key, state"),
        ("rate", "rate_key, state"),
    ):
        schema_editor.execute(f"CREATE INDEX ojs_job_{name}_mariadb ON {job} ({order})")


class Migration(LimitedMigration):
    initial = True

    dependencies = []

    operations = [
        # Jobs and queues
        migrations.CreateModel(
            "Job",
            columns(
                id=models.UUIDField(primary_key=True, default=new_job_id, editable=False, serialize=False),
                type=models.CharField(max_length=255),
                queue=models.CharField(max_length=128, default="default"),
                state=models.CharField(max_length=9, choices=[(state, state) for state in STATES], default="available"),
                priority=models.SmallIntegerField(default=0, help_text="Higher is fetched first."),
                attempt=models.PositiveIntegerField(default=0, help_text="Grows by one with each FETCH."),
                max_attempts=models.PositiveIntegerField(default=3),
                args=JSONTextField(default=list),
                meta=JSONTextField(blank=True, default=dict),
                extra=JSONTextField(
                    blank=True, default=None, help_text="Whatever else the client sent, as it was sent."
                ),
                retry=models.TextField(
                    blank=True, default="", help_text="The retry policy in force; empty: the default."
                ),
                timeout_ms=models.BigIntegerField(null=True, blank=True, help_text="Execution timeout in force."),
                visibility_ms=models.BigIntegerField(
                    null=True, blank=True, help_text="The job's own reservation length."
                ),
                heartbeat_ms=models.BigIntegerField(
                    null=True,
                    blank=True,
                    help_text="How long its worker may be silent about it before the attempt has failed.",
                ),
                grace_ms=models.BigIntegerField(
                    null=True,
                    blank=True,
                    help_text="How long after its execution timeout the server leaves it to the worker.",
                ),
                trace_id=models.CharField(max_length=64, blank=True, default=""),
                created_at=models.DateTimeField(),
                enqueued_at=models.DateTimeField(
                    null=True, blank=True, help_text="Last entry to `available`; decides FIFO."
                ),
                due_at=models.DateTimeField(
                    null=True, blank=True, help_text="When a scheduled or retryable job is due."
                ),
                expires_at=models.DateTimeField(null=True, blank=True),
                start_by=models.DateTimeField(null=True, blank=True, help_text="End of the time for its first start."),
                deadline_at=models.DateTimeField(
                    null=True, blank=True, help_text="End of its time as a whole, waits included."
                ),
                activated_at=models.DateTimeField(null=True, blank=True),
                started_at=models.DateTimeField(null=True, blank=True),
                finished_at=models.DateTimeField(null=True, blank=True, help_text="Entry to a terminal state."),
                visible_until=models.DateTimeField(null=True, blank=True, help_text="End of the worker's reservation."),
                timeout_at=models.DateTimeField(null=True, blank=True, help_text="End of the execution timeout."),
                wake_at=models.DateTimeField(
                    null=True, blank=True, help_text="The next instant at which the scheduler has to look at this job."
                ),
                worker_id=models.CharField(
                    max_length=255, blank=True, default="", help_text="Holder of the reservation."
                ),
                lease_ms=models.BigIntegerField(
                    null=True, blank=True, help_text="Reservation length granted at the claim."
                ),
                losses=models.PositiveSmallIntegerField(
                    default=0, help_text="Reservations in a row that expired unanswered."
                ),
                retry_delay_ms=models.BigIntegerField(null=True, blank=True),
                errors=JSONTextField(blank=True, default=None),
                result=JSONTextField(null=True, blank=True),
                result_ttl=models.IntegerField(
                    null=True,
                    blank=True,
                    help_text="Seconds for which the result is kept; -1: for ever; null: the site's own.",
                ),
                dead_letter=models.BooleanField(default=False),
                unique_key=models.CharField(max_length=64, blank=True, default=""),
                workflow_id=models.UUIDField(null=True, blank=True),
                rate_key=models.CharField(
                    max_length=255, blank=True, default="", help_text="The rate limit it is under."
                ),
                rate_limit=models.TextField(blank=True, default="", help_text="Its own numbers for that limit."),
            ),
            options={
                "permissions": [
                    ("ojs_push", "Can enqueue jobs over HTTP"),
                    ("ojs_work", "Can fetch and settle jobs over HTTP"),
                    ("ojs_read", "Can read jobs, queues and events over HTTP"),
                    ("ojs_admin", "Can manage jobs, queues and workers over HTTP"),
                ],
                "indexes": [
                    models.Index(
                        F("queue"),
                        F("priority").desc(),
                        F("enqueued_at"),
                        F("id"),
                        name="ojs_job_claim",
                        condition=Q(state="available"),
                    ),
                    models.Index(fields=["wake_at"], name="ojs_job_wake", condition=Q(wake_at__isnull=False)),
                    models.Index(fields=["worker_id"], name="ojs_job_holder", condition=Q(state="active")),
                    models.Index(fields=["rate_key", "state"], name="ojs_job_rate", condition=Q(rate_key__gt="")),
                    models.Index(
                        fields=["queue"], name="ojs_job_limited", condition=Q(state="available") & Q(rate_key__gt="")
                    ),
                    models.Index(
                        fields=["state", "finished_at"], name="ojs_job_finished", condition=Q(finished_at__isnull=False)
                    ),
                    models.Index(fields=["unique_key", "state"], name="ojs_job_unique", condition=Q(unique_key__gt="")),
                    models.Index(
                        fields=["finished_at"], name="ojs_job_result_ttl", condition=Q(result_ttl__isnull=False)
                    ),
                    models.Index(
                        fields=["queue"],
                        name="ojs_job_staged",
                        condition=Q(state__in=("scheduled", "pending", "retryable")),
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(condition=Q(state__in=STATES), name="ojs_job_state"),
                    models.CheckConstraint(
                        condition=Q(finished_at__isnull=False, state__in=ENDED)
                        | Q(finished_at__isnull=True, state__in=LIVE),
                        name="ojs_job_finished_iff_terminal",
                    ),
                    models.CheckConstraint(
                        condition=~Q(state="active") | Q(started_at__isnull=False, visible_until__isnull=False),
                        name="ojs_job_active_is_reserved",
                    ),
                    models.CheckConstraint(
                        condition=~Q(state__in=["scheduled", "retryable"]) | Q(due_at__isnull=False),
                        name="ojs_job_waiting_is_due",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "JobProgress",
            columns(
                job_id=models.UUIDField(primary_key=True, serialize=False),
                attempt=models.PositiveIntegerField(),
                percent=models.FloatField(null=True, help_text="0 to 100; never goes back within an attempt."),
                message=models.TextField(blank=True, default=""),
                data=JSONTextField(null=True),
                updated_at=models.DateTimeField(),
                told_at=models.DateTimeField(
                    null=True, help_text="Up to when its events on progress count, one a second."
                ),
                held=models.BooleanField(
                    default=False, help_text="An event about the latest report is still to be written."
                ),
            ),
            options={
                "verbose_name_plural": "job progress",
                "indexes": [models.Index(fields=["told_at"], name="ojs_progress_held", condition=Q(held=True))],
            },
        ),
        migrations.CreateModel(
            "UniqueLock",
            columns(
                stripe=models.PositiveIntegerField(primary_key=True, serialize=False),
                used=models.BooleanField(default=True),
            ),
        ),
        migrations.CreateModel(
            "JobSchema",
            columns(
                id=auto_id(),
                job_type=models.CharField(max_length=255),
                version=models.CharField(max_length=64, help_text="1 and the text 1 are one version."),
                numeric=models.BooleanField(default=False, help_text="Whether the version was registered as a number."),
                uri=models.CharField(max_length=512, unique=True),
                schema=JSONTextField(),
                created_at=models.DateTimeField(),
            ),
            options={
                "constraints": [models.UniqueConstraint(fields=["job_type", "version"], name="ojs_schema_version")]
            },
        ),
        migrations.CreateModel(
            "Queue",
            columns(
                name=models.CharField(max_length=128, primary_key=True, serialize=False),
                paused=models.BooleanField(default=False),
                paused_at=models.DateTimeField(null=True, blank=True),
                resumed_at=models.DateTimeField(null=True, blank=True),
                visibility_ms=models.BigIntegerField(
                    null=True, blank=True, help_text="Reservation length, milliseconds."
                ),
                timeout_ms=models.BigIntegerField(
                    null=True, blank=True, help_text="Default execution timeout, milliseconds."
                ),
                retry=JSONTextField(
                    blank=True, default=None, help_text="Default retry policy, in the wire's spelling."
                ),
                config=JSONTextField(blank=True, default=None),
                pressured_at=models.DateTimeField(
                    null=True, blank=True, help_text="Since when a bounded queue is nearly full."
                ),
                limited=models.BooleanField(
                    default=False, help_text="A claim has to look at rate limits first; on `_default`: in every queue."
                ),
                draining=models.BooleanField(default=False, help_text="Delivers, but takes no new jobs."),
                move_to=models.CharField(
                    max_length=128, blank=True, default="", help_text="Where its jobs go before it ends."
                ),
                created_at=models.DateTimeField(),
                updated_at=models.DateTimeField(),
            ),
            options={"ordering": ["name"]},
        ),
        migrations.CreateModel(
            "CountDelta",
            columns(
                **{state: number() for state in STATES},
                dead=number(),
                id=models.BigAutoField(primary_key=True, serialize=False),
                queue=models.CharField(max_length=128),
                at=models.DateTimeField(),
                failed=models.IntegerField(default=0, db_default=0, help_text="Failures that ended a job."),
                run_ms=models.BigIntegerField(default=0, db_default=0, help_text="Time that the completed jobs took."),
                wait_ms=models.BigIntegerField(
                    default=0, db_default=0, help_text="Time that the started jobs had waited."
                ),
            ),
            options={"abstract": False},
        ),
        migrations.CreateModel(
            "QueueCount",
            columns(
                **{state: number() for state in STATES},
                dead=number(),
                queue=models.CharField(max_length=128, primary_key=True, serialize=False),
            ),
            options={"abstract": False},
        ),
        migrations.CreateModel(
            "QueueMinute",
            columns(
                id=auto_id(),
                queue=models.CharField(max_length=128),
                minute=models.DateTimeField(db_index=True),
                started=number(),
                completed=number(),
                failed=number(),
                run_ms=number(),
                wait_ms=number(),
            ),
            options={"constraints": [models.UniqueConstraint(fields=["queue", "minute"], name="ojs_minute_once")]},
        ),
        migrations.CreateModel(
            "QueueTraffic",
            columns(
                id=auto_id(),
                queue=models.CharField(max_length=128),
                minute=models.DateTimeField(db_index=True),
                enqueued=number(),
                waits=models.TextField(default="", help_text="Starts by how long the jobs had waited: a sketch."),
            ),
            options={"constraints": [models.UniqueConstraint(fields=["queue", "minute"], name="ojs_traffic_once")]},
        ),
        migrations.CreateModel(
            "QueueHour",
            columns(
                id=auto_id(),
                queue=models.CharField(max_length=128),
                hour=models.DateTimeField(db_index=True),
                started=number(),
                completed=number(),
                failed=number(),
                run_ms=number(),
                wait_ms=number(),
                enqueued=number(),
                waits=models.TextField(default="", help_text="Starts by how long the jobs had waited: a sketch."),
            ),
            options={"constraints": [models.UniqueConstraint(fields=["queue", "hour"], name="ojs_hour_once")]},
        ),
        migrations.CreateModel(
            "RateLimit",
            columns(
                key=models.CharField(max_length=255, primary_key=True, serialize=False),
                policy=JSONTextField(blank=True, default=None, help_text="The latest that a job or a queue gave."),
                override=JSONTextField(
                    blank=True, default=None, help_text="An operator's; replaces what jobs and queue say."
                ),
                override_expires_at=models.DateTimeField(null=True, blank=True),
                next_allowed_at=models.DateTimeField(
                    null=True, blank=True, help_text="Throttle: the earliest next start."
                ),
                blocked_until=models.DateTimeField(
                    null=True, blank=True, help_text="As a worker reported of the far side."
                ),
                exceeded=models.CharField(
                    max_length=16, blank=True, default="", help_text="What stops the key right now."
                ),
                created_at=models.DateTimeField(),
                updated_at=models.DateTimeField(),
            ),
            options={"ordering": ["key"]},
        ),
        migrations.CreateModel(
            "RateStart",
            columns(
                id=auto_id(),
                key=models.CharField(max_length=255),
                at=models.DateTimeField(),
                count=models.PositiveIntegerField(),
                expires_at=models.DateTimeField(help_text="When no window reaches back to it any more."),
            ),
            options={"indexes": [models.Index(fields=["key", "at"], name="ojs_start_key")]},
        ),
        # Who works, and when
        migrations.CreateModel(
            "Worker",
            columns(
                id=models.CharField(max_length=255, primary_key=True, serialize=False),
                hostname=models.CharField(max_length=255, blank=True, default=""),
                pid=models.BigIntegerField(null=True, blank=True),
                queues=JSONTextField(blank=True, default=list),
                job_types=JSONTextField(blank=True, default=None, help_text="Types it has handlers for; null: any."),
                labels=JSONTextField(blank=True, default=None),
                concurrency=models.PositiveIntegerField(default=1),
                version=models.CharField(max_length=64, blank=True, default=""),
                state=models.CharField(max_length=16, default="running", help_text="As reported."),
                directive=models.CharField(
                    max_length=9,
                    blank=True,
                    choices=[("", "none"), ("running", "running"), ("quiet", "quiet"), ("terminate", "terminate")],
                    default="",
                ),
                asleep=models.BooleanField(default=False, help_text="Waits to be told that there is work."),
                active_jobs=models.PositiveIntegerField(default=0),
                jobs_completed=models.PositiveBigIntegerField(default=0),
                memory_mb=models.FloatField(null=True, blank=True),
                cpu_percent=models.FloatField(null=True, blank=True),
                started_at=models.DateTimeField(),
                last_seen_at=models.DateTimeField(help_text="Latest call of any kind."),
                last_heartbeat_at=models.DateTimeField(
                    null=True,
                    blank=True,
                    help_text="Empty for a worker known from FETCH alone: it is never declared dead.",
                ),
            ),
            options={
                "ordering": ["id"],
                "indexes": [models.Index(fields=["last_heartbeat_at"], name="ojs_worker_heartbeat")],
            },
        ),
        migrations.CreateModel(
            "Lease",
            columns(
                name=models.CharField(max_length=64, primary_key=True, serialize=False),
                holder=models.CharField(max_length=255),
                expires_at=models.DateTimeField(),
            ),
        ),
        migrations.CreateModel(
            "Maintenance",
            columns(
                id=models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False),
                reason=models.CharField(max_length=500, default="", blank=True),
                enabled_at=models.DateTimeField(),
                enabled_by=models.CharField(max_length=255, default="", blank=True, help_text="As in the audit log."),
                estimated_end=models.DateTimeField(null=True, blank=True),
                auto_end=models.BooleanField(default=False, help_text="The scheduler ends it at its estimated end."),
            ),
            options={
                "verbose_name": "maintenance mode",
                "verbose_name_plural": "maintenance mode",
                "default_permissions": ("view", "change"),
                "constraints": [models.CheckConstraint(condition=Q(id=1), name="ojs_maintenance_only")],
            },
        ),
        migrations.CreateModel(
            "CronSchedule",
            columns(
                name=models.CharField(max_length=255, primary_key=True, serialize=False),
                expression=models.CharField(max_length=255, help_text="As it was given."),
                timezone=models.CharField(max_length=64, default="UTC"),
                type=models.CharField(max_length=255, verbose_name="job type"),
                queue=models.CharField(max_length=128, default="default"),
                template=JSONTextField(default=dict, help_text="The envelope that each of its jobs is made from."),
                overlap_policy=models.CharField(
                    max_length=15,
                    choices=[
                        ("skip", "skip"),
                        ("allow", "allow"),
                        ("cancel_previous", "cancel_previous"),
                        ("enqueue", "enqueue"),
                    ],
                    default="skip",
                ),
                enabled=models.BooleanField(default=True),
                description=models.TextField(blank=True, default=""),
                source=models.CharField(max_length=4, choices=[("api", "Api"), ("code", "Code")], default="api"),
                anchor_at=models.DateTimeField(help_text="From where @every counts."),
                wake_at=models.DateTimeField(null=True, blank=True),
                next_run_at=models.DateTimeField(null=True, blank=True, verbose_name="next run"),
                last_run_at=models.DateTimeField(null=True, blank=True, verbose_name="last run"),
                run_count=models.PositiveBigIntegerField(default=0),
                created_at=models.DateTimeField(),
                updated_at=models.DateTimeField(),
            ),
            options={
                "verbose_name": "schedule",
                "ordering": ["name"],
                "indexes": [models.Index(fields=["wake_at"], name="ojs_cron_wake", condition=Q(wake_at__isnull=False))],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(enabled=True, next_run_at__isnull=False, wake_at__isnull=False)
                        | Q(enabled=False, next_run_at__isnull=True, wake_at__isnull=True),
                        name="ojs_cron_enabled_iff_due",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "CronRun",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                name=models.CharField(max_length=255, help_text="The schedule's name."),
                job_id=models.UUIDField(unique=True),
                queue=models.CharField(max_length=128),
                scheduled_at=models.DateTimeField(help_text="The nominal time."),
                triggered_at=models.DateTimeField(),
                held=models.BooleanField(default=False),
            ),
            options={
                "indexes": [
                    models.Index(fields=["name", "id"], name="ojs_cronrun_name"),
                    models.Index(fields=["queue"], name="ojs_cronrun_held", condition=Q(held=True)),
                ]
            },
        ),
        # Workflows
        migrations.CreateModel(
            "Workflow",
            columns(
                id=models.UUIDField(primary_key=True, default=new_id, editable=False, serialize=False),
                own_id=models.CharField(
                    max_length=128, unique=True, null=True, help_text="The client's id, where it is no UUID."
                ),
                name=models.CharField(max_length=255, blank=True, default=""),
                type=models.CharField(max_length=5, help_text="chain, group, batch or dag."),
                state=models.CharField(
                    max_length=9,
                    choices=[
                        ("running", "running"),
                        ("completed", "completed"),
                        ("failed", "failed"),
                        ("cancelled", "cancelled"),
                    ],
                    default="running",
                ),
                graph=models.TextField(),
                progress=models.TextField(help_text="One letter per node, see rules/workflowgraph.py."),
                facts=models.TextField(help_text="What all its events say of it: the inside of a JSON object."),
                job_count=models.PositiveIntegerField(help_text="Jobs, callbacks left out."),
                error=JSONTextField(blank=True, default=None),
                created_at=models.DateTimeField(),
                finished_at=models.DateTimeField(null=True, blank=True),
            ),
            options={
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    models.Index(fields=["-created_at", "-id"], name="ojs_workflow_newest"),
                    models.Index(fields=["state", "-created_at"], name="ojs_workflow_state"),
                    models.Index(
                        fields=["finished_at"], name="ojs_workflow_done", condition=Q(finished_at__isnull=False)
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "WorkflowStep",
            columns(
                id=auto_id(),
                workflow=models.ForeignKey(
                    "django_ojs.workflow", models.DO_NOTHING, db_index=False, db_constraint=False, related_name="steps"
                ),
                position=models.PositiveIntegerField(help_text="In the graph."),
                step_id=models.CharField(max_length=512),
                type=models.CharField(max_length=255, help_text="The job type; the kind of a nested workflow."),
                queue=models.CharField(max_length=128, default=""),
                job=models.ForeignKey(
                    "django_ojs.job",
                    models.DO_NOTHING,
                    null=True,
                    db_index=False,
                    db_constraint=False,
                    related_name="+",
                ),
                document=models.TextField(default="", help_text="The envelope to push, as JSON."),
                error=JSONTextField(blank=True, default=None, help_text="Why its job could not be enqueued."),
            ),
            options={
                "ordering": ["workflow_id", "position"],
                "indexes": [models.Index(fields=["job"], name="ojs_step_job")],
                "constraints": [models.UniqueConstraint(fields=["workflow", "position"], name="ojs_step_position")],
            },
        ),
        migrations.CreateModel(
            "WorkflowStart",
            columns(
                workflow=models.OneToOneField(
                    "django_ojs.workflow",
                    models.DO_NOTHING,
                    primary_key=True,
                    db_constraint=False,
                    related_name="start",
                    serialize=False,
                ),
                job_id=models.UUIDField(help_text="The member that was claimed first."),
                started_at=models.DateTimeField(),
            ),
        ),
        # The event log, and who listens
        migrations.CreateModel(
            "EventCommit",
            columns(
                seq=models.BigAutoField(primary_key=True, serialize=False), txid=models.BigIntegerField(unique=True)
            ),
        ),
        migrations.CreateModel(
            "Event",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                commit=models.ForeignKey(
                    "django_ojs.eventcommit",
                    models.DO_NOTHING,
                    null=True,
                    db_index=False,
                    db_constraint=False,
                    db_column="txid",
                    to_field="txid",
                    related_name="+",
                    help_text="PostgreSQL: the transaction that wrote the event.",
                ),
                seq=models.BigIntegerField(null=True, help_text="MariaDB: the place in the log, given by the relay."),
                type=models.CharField(max_length=64),
                time=models.DateTimeField(),
                component=models.CharField(
                    max_length=16, help_text="Second part of the source: api, workers, scheduler, cron."
                ),
                subject=models.CharField(
                    max_length=255, default="", help_text="Empty for job events: their subject is job_id."
                ),
                job_id=models.UUIDField(null=True),
                job_type=models.CharField(max_length=255, default=""),
                queue=models.CharField(max_length=128, default=""),
                state=models.CharField(max_length=9, default=""),
                attempt=models.PositiveIntegerField(default=0),
                worker_id=models.CharField(max_length=255, default=""),
                trace_id=models.CharField(max_length=64, default=""),
                workflow_id=models.UUIDField(null=True),
                data=JSONTextField(default=None),
            ),
            options={
                "indexes": [
                    models.Index(fields=["job_id"], name="ojs_event_job", condition=Q(job_id__isnull=False)),
                    models.Index(fields=["commit"], name="ojs_event_txid", condition=Q(commit__isnull=False)),
                    models.Index(fields=["seq"], name="ojs_event_seq", condition=Q(seq__isnull=False)),
                ]
            },
        ),
        migrations.CreateModel(
            "EventLog",
            columns(
                id=models.SmallIntegerField(primary_key=True, default=1, serialize=False),
                salt=models.CharField(
                    max_length=64, help_text="Makes event ids unguessable and unique to this installation."
                ),
                snapshot=models.TextField(default="", help_text="PostgreSQL: the snapshot of the last ordering pass."),
                last_seq=models.BigIntegerField(default=0),
                pruned_to=models.BigIntegerField(default=0, help_text="Events up to this id may be gone."),
            ),
        ),
        migrations.CreateModel(
            "WebhookSubscription",
            columns(
                id=models.UUIDField(primary_key=True, default=new_id, editable=False, serialize=False),
                url=models.TextField(),
                events=JSONTextField(default=list, help_text="Event types: exact, job.*, or *."),
                queues=JSONTextField(blank=True, default=None, help_text="Only events of these queues; empty: all."),
                job_types=JSONTextField(
                    blank=True, default=None, help_text="Only events of these job types; empty: all."
                ),
                limited=models.BooleanField(
                    default=False, help_text="Defined by somebody limited to these queues or types."
                ),
                active=models.BooleanField(default=True),
                active_since=models.DateTimeField(null=True),
                disabled_reason=models.TextField(blank=True, default=""),
                secret=models.TextField(editable=False),
                previous_secret=models.TextField(default="", editable=False),
                previous_secret_expires_at=models.DateTimeField(null=True, editable=False),
                signature_format=models.CharField(
                    max_length=14,
                    choices=[("body", "Body"), ("timestamp.body", "Timestamp Body")],
                    default="body",
                    help_text="What X-OJS-Signature is over; X-OJS-Signature-Timestamped is over the other.",
                ),
                headers=models.TextField(default="", editable=False),
                timeout_seconds=models.PositiveSmallIntegerField(
                    null=True, blank=True, help_text="5 to 60; empty: the site's."
                ),
                metadata=JSONTextField(blank=True, default=dict),
                created_by=models.CharField(max_length=255, default=""),
                last_delivery_at=models.DateTimeField(null=True),
                last_delivery_status=models.IntegerField(null=True),
                failing_since=models.DateTimeField(null=True),
                success_count=models.PositiveBigIntegerField(default=0),
                failure_count=models.PositiveBigIntegerField(default=0),
                created_at=models.DateTimeField(),
                updated_at=models.DateTimeField(),
            ),
            options={
                "ordering": ["-created_at"],
                "indexes": [models.Index(fields=["active"], name="ojs_hook_active")],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(active=False) | Q(active_since__isnull=False), name="ojs_hook_active_since_when"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "WebhookDelivery",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                uid=models.UUIDField(unique=True, default=new_id),
                subscription=models.ForeignKey(
                    "django_ojs.webhooksubscription",
                    models.DO_NOTHING,
                    db_index=False,
                    db_constraint=False,
                    related_name="+",
                ),
                event_id=models.CharField(max_length=64),
                event_type=models.CharField(max_length=64),
                subject=models.CharField(max_length=255),
                body=models.TextField(),
                status=models.CharField(
                    max_length=7,
                    choices=[("pending", "Pending"), ("success", "Success"), ("failed", "Failed"), ("dead", "Dead")],
                    default="pending",
                ),
                held=models.BooleanField(default=False),
                next_attempt_at=models.DateTimeField(null=True),
                claim=models.UUIDField(null=True),
                attempt_count=models.PositiveSmallIntegerField(default=0),
                max_attempts=models.PositiveSmallIntegerField(),
                attempts=JSONTextField(default=list, help_text="The latest attempts, oldest first."),
                response_status=models.IntegerField(null=True),
                response_time_ms=models.PositiveIntegerField(null=True),
                response_body=models.TextField(default=""),
                error=models.TextField(default=""),
                created_at=models.DateTimeField(),
                delivered_at=models.DateTimeField(null=True),
            ),
            options={
                "verbose_name": "webhook delivery",
                "verbose_name_plural": "webhook deliveries",
                "indexes": [
                    models.Index(fields=["next_attempt_at"], name="ojs_delivery_due"),
                    models.Index(fields=["subscription", "next_attempt_at"], name="ojs_delivery_sub_due"),
                    models.Index(fields=["subscription", "status", "subject", "id"], name="ojs_delivery_subject"),
                    models.Index(fields=["subscription", "id"], name="ojs_delivery_sub"),
                    models.Index(fields=["status", "created_at"], name="ojs_delivery_old"),
                ],
            },
        ),
        migrations.CreateModel(
            "WebhookRelay",
            columns(
                id=models.SmallIntegerField(primary_key=True, default=1, serialize=False),
                commit=models.BigIntegerField(
                    default=0, help_text="PostgreSQL: the number of the transaction; MariaDB: seq."
                ),
                event=models.BigIntegerField(null=True),
            ),
        ),
        migrations.CreateModel(
            "WebhookCount",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                event_type=models.CharField(max_length=64),
                status=models.CharField(
                    max_length=7,
                    choices=[("pending", "Pending"), ("success", "Success"), ("failed", "Failed"), ("dead", "Dead")],
                ),
                attempts=models.PositiveBigIntegerField(default=0),
                duration_ms=models.PositiveBigIntegerField(default=0, help_text="Of all of them together."),
                durations=JSONTextField(default=list, help_text="Attempts by bucket of their duration."),
                retries=JSONTextField(default=list, help_text="Ended deliveries by bucket of their retries."),
                retries_total=models.PositiveBigIntegerField(default=0),
            ),
            options={"constraints": [models.UniqueConstraint(fields=["event_type", "status"], name="ojs_hook_count")]},
        ),
        migrations.CreateModel(
            "MetricPlace",
            columns(
                id=models.SmallIntegerField(primary_key=True, default=1, serialize=False),
                seq=models.BigIntegerField(
                    default=0, help_text="The number of the transaction, or of the event, in the log."
                ),
                event=models.BigIntegerField(default=0, help_text="The id of the last event counted."),
            ),
        ),
        migrations.CreateModel(
            "MetricSeries",
            columns(
                id=auto_id(),
                event=models.CharField(max_length=64),
                job_type=models.CharField(max_length=255),
                queue=models.CharField(max_length=128),
                label=models.CharField(
                    max_length=16, default="", help_text="The job's state after it; first or again of a start."
                ),
                count=models.BigIntegerField(default=0),
                total_ms=models.BigIntegerField(default=0),
                buckets=models.TextField(
                    default="", help_text="Events by bucket, separated by commas; empty: nothing measured."
                ),
            ),
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=["event", "job_type", "queue", "label"], name="ojs_metric_series_once"
                    )
                ]
            },
        ),
        # The doors
        migrations.CreateModel(
            "APIKey",
            columns(
                id=auto_id(),
                name=models.CharField(max_length=100, unique=True),
                prefix=models.CharField(
                    max_length=16, editable=False, help_text="The first characters, to recognise it by."
                ),
                digest=models.CharField(max_length=64, unique=True, editable=False),
                scopes=JSONTextField(default=list),
                queues=JSONTextField(blank=True, default=None, help_text="Limits the key to these queues; null: all."),
                job_types=JSONTextField(
                    blank=True, default=None, help_text="Limits the key to these types (`mail.*`); null: all."
                ),
                created_at=models.DateTimeField(),
                expires_at=models.DateTimeField(null=True, blank=True),
                revoked_at=models.DateTimeField(null=True, blank=True),
                last_used_at=models.DateTimeField(null=True, blank=True),
            ),
            options={"verbose_name": "API key", "ordering": ["name"]},
        ),
        migrations.CreateModel(
            "Ticket",
            columns(
                digest=models.CharField(max_length=64, primary_key=True, serialize=False),
                key=models.ForeignKey("django_ojs.apikey", models.CASCADE, null=True, db_index=False, related_name="+"),
                user=models.CharField(
                    max_length=255, default="", help_text="The primary key of the site's user, as text."
                ),
                expires_at=models.DateTimeField(db_index=True),
            ),
        ),
        migrations.CreateModel(
            "IdempotencyKey",
            columns(
                digest=models.CharField(
                    max_length=64,
                    primary_key=True,
                    help_text="SHA-256 of principal, operation and key.",
                    serialize=False,
                ),
                request=models.CharField(max_length=64, help_text="SHA-256 of the request body."),
                status=models.PositiveSmallIntegerField(null=True),
                body=models.TextField(default=""),
                headers=models.TextField(default=""),
                created_at=models.DateTimeField(db_index=True),
            ),
        ),
        migrations.CreateModel(
            "AuditEntry",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                time=models.DateTimeField(),
                actor=models.CharField(max_length=255, help_text="user:NAME, key:NAME, command:NAME or anonymous."),
                action=models.CharField(max_length=64, help_text="Such as queue.pause."),
                target_type=models.CharField(max_length=32, default=""),
                target=models.CharField(max_length=512, default=""),
                outcome=models.CharField(
                    max_length=8, choices=[("success", "done"), ("denied", "denied")], default="success"
                ),
                door=models.CharField(max_length=16, default="", help_text="http, admin, command or scheduler."),
                source_ip=models.CharField(max_length=64, default=""),
                request_id=models.CharField(max_length=128, default=""),
                detail=JSONTextField(default=None),
            ),
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit log",
                "indexes": [
                    models.Index(fields=["time"], name="ojs_audit_time"),
                    models.Index(fields=["target", "id"], name="ojs_audit_target"),
                ],
            },
        ),
        migrations.CreateModel(
            "BulkAction",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                verb=models.CharField(max_length=32),
                filter=JSONTextField(default=dict),
                override=JSONTextField(default=None, blank=True, help_text="What a retry changes in the jobs."),
                state=models.CharField(
                    max_length=9,
                    choices=[
                        ("running", "running"),
                        ("completed", "completed"),
                        ("cancelled", "cancelled"),
                        ("failed", "failed"),
                    ],
                    default="running",
                ),
                actor=models.CharField(max_length=255),
                door=models.CharField(max_length=16, default=""),
                source_ip=models.CharField(max_length=64, default=""),
                created_at=models.DateTimeField(),
                finished_at=models.DateTimeField(null=True, blank=True),
                expected=models.PositiveIntegerField(help_text="Jobs that fitted when it was asked for."),
                matched=models.PositiveIntegerField(default=0, help_text="Jobs that were looked at."),
                succeeded=models.PositiveIntegerField(default=0),
                errors=JSONTextField(default=None, blank=True, help_text="The first refusals."),
                tries=models.PositiveSmallIntegerField(default=0, help_text="How often its next batch has broken off."),
                problem=models.CharField(max_length=500, default="", blank=True, help_text="Why that was."),
                after=models.DateTimeField(null=True, blank=True),
                after_id=models.UUIDField(null=True, blank=True),
            ),
            options={"verbose_name": "bulk action", "default_permissions": ()},
        ),
        migrations.CreateModel(
            "OutboxEntry",
            columns(
                id=models.BigAutoField(primary_key=True, serialize=False),
                target_id=models.UUIDField(unique=True, help_text="The id that the job or workflow has already."),
                kind=models.CharField(max_length=8, choices=[("job", "job"), ("workflow", "workflow")], default="job"),
                type=models.CharField(max_length=255, help_text="The job type; of a workflow its kind."),
                document=JSONTextField(help_text="The envelope, as the enqueue middleware left it."),
                created_at=models.DateTimeField(help_text="When it was enqueued: delays count from here."),
                attempts=models.PositiveIntegerField(default=0, help_text="How often the other side said: not now."),
                retry_at=models.DateTimeField(null=True, blank=True),
                aside=models.BooleanField(default=False, help_text="Refused for good; nobody tries again."),
                error=models.TextField(blank=True, default=""),
            ),
            options={
                "verbose_name_plural": "outbox entries",
                "indexes": [models.Index(fields=["id"], name="ojs_outbox_waiting", condition=Q(aside=False))],
            },
        ),
        # Dropping the tables undoes it. The hint: only in the database that has them.
        migrations.RunPython(prepare_mariadb, migrations.RunPython.noop, atomic=False, hints={"model_name": "job"}),
    ]
