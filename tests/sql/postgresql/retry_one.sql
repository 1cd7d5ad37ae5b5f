-- An operator retries one job that was discarded.

-- parameters: uuid
SELECT "django_ojs_job"."id" AS "f1", "django_ojs_job"."type" AS "f2", "django_ojs_job"."queue" AS "f3",
    "django_ojs_job"."state" AS "f4", "django_ojs_job"."priority" AS "f5", "django_ojs_job"."attempt" AS "f6",
    "django_ojs_job"."max_attempts" AS "f7", "django_ojs_job"."uncounted" AS "f8",
    "django_ojs_job"."round" AS "f9", "django_ojs_job"."args" AS "expressionwrapper9",
    "django_ojs_job"."meta" AS "expressionwrapper10", "django_ojs_job"."extra" AS "expressionwrapper11",
    "django_ojs_job"."retry" AS "f11", "django_ojs_job"."timeout_ms" AS "f12",
    "django_ojs_job"."visibility_ms" AS "f13", "django_ojs_job"."heartbeat_ms" AS "f14",
    "django_ojs_job"."grace_ms" AS "f15", "django_ojs_job"."trace_id" AS "f16",
    "django_ojs_job"."created_at" AS "f17", "django_ojs_job"."enqueued_at" AS "f18",
    "django_ojs_job"."due_at" AS "f19", "django_ojs_job"."expires_at" AS "f20",
    "django_ojs_job"."start_by" AS "f21", "django_ojs_job"."deadline_at" AS "f22",
    "django_ojs_job"."activated_at" AS "f23", "django_ojs_job"."started_at" AS "f24",
    "django_ojs_job"."finished_at" AS "f25", "django_ojs_job"."visible_until" AS "f26",
    "django_ojs_job"."timeout_at" AS "f27", "django_ojs_job"."wake_at" AS "f28",
    "django_ojs_job"."worker_id" AS "f29", "django_ojs_job"."lease_ms" AS "f30",
    "django_ojs_job"."losses" AS "f31", "django_ojs_job"."suspected" AS "f32",
    "django_ojs_job"."resumable" AS "f33", "django_ojs_job"."retry_delay_ms" AS "f34",
    "django_ojs_job"."errors" AS "expressionwrapper34", "django_ojs_job"."result" AS "expressionwrapper35",
    "django_ojs_job"."result_ttl" AS "f35", "django_ojs_job"."dead_letter" AS "f36",
    "django_ojs_job"."unique_key" AS "f37", "django_ojs_job"."workflow_id" AS "f38",
    "django_ojs_job"."parent_id" AS "f39", "django_ojs_job"."rate_key" AS "f40",
    "django_ojs_job"."rate_limit" AS "f41"
FROM "django_ojs_job"
WHERE "django_ojs_job"."id" IN (%s)
ORDER BY "django_ojs_job"."id" ASC
FOR UPDATE;

-- parameters: uuid, text, text, text
SELECT "django_ojs_job"."parent_id" AS "parent_id", "django_ojs_job"."id" AS "pk"
FROM "django_ojs_job"
WHERE (
    "django_ojs_job"."parent_id" IN (%s)
      AND NOT ("django_ojs_job"."state" IN (%s, %s))
      AND (
          SELECT U0."id" AS "pk"
          FROM "django_ojs_jobstep" U0
          WHERE (U0."event_name" IS NULL AND U0."kind" = %s AND U0."job_id" = ("django_ojs_job"."id"))
          ORDER BY U0."name" ASC
          LIMIT 1
      ) IS NOT NULL
);

-- parameters: uuid, text
SELECT "django_ojs_job"."queue" AS "queue", "django_ojs_job"."state" AS "state",
    "django_ojs_job"."dead_letter" AS "dead_letter"
FROM "django_ojs_job"
WHERE ("django_ojs_job"."id" IN (%s) AND "django_ojs_job"."state" IN (%s))
FOR UPDATE;

-- parameters: text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text,
-- text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text,
-- text, text, text, text, text, text, text, text, text, text, text, list
WITH counted AS (
    INSERT INTO django_ojs_countdelta (
        queue, at, scheduled, available, pending, active, completed, retryable, cancelled, discarded, dead,
        failed, run_ms, wait_ms
    )
    SELECT *
    FROM unnest(
        %s::text[], %s::timestamptz[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]
    )
)
UPDATE django_ojs_job j
SET state = v.state, enqueued_at = v.enqueued_at, due_at = v.due_at, wake_at = v.wake_at,
    started_at = v.started_at, worker_id = v.worker_id, visible_until = v.visible_until,
    timeout_at = v.timeout_at, uncounted = v.uncounted, suspected = v.suspected, attempt = v.attempt,
    round = v.round, errors = v.errors, extra = v.extra, finished_at = v.finished_at,
    dead_letter = v.dead_letter, retry_delay_ms = v.retry_delay_ms, losses = v.losses,
    expires_at = v.expires_at, start_by = v.start_by, deadline_at = v.deadline_at, queue = v.queue,
    args = v.args, meta = v.meta, retry = v.retry, priority = v.priority, max_attempts = v.max_attempts,
    trace_id = v.trace_id, rate_key = v.rate_key, unique_key = v.unique_key
FROM unnest(
    %s::uuid[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[],
    %s::text[], %s::timestamptz[], %s::timestamptz[], %s::int[], %s::boolean[], %s::int[], %s::int[],
    %s::text[], %s::text[], %s::timestamptz[], %s::boolean[], %s::bigint[], %s::smallint[], %s::timestamptz[],
    %s::timestamptz[], %s::timestamptz[], %s::text[], %s::text[], %s::text[], %s::text[], %s::smallint[],
    %s::int[], %s::text[], %s::text[], %s::text[]
) AS v(
    id, state, enqueued_at, due_at, wake_at, started_at, worker_id, visible_until, timeout_at, uncounted,
    suspected, attempt, round, errors, extra, finished_at, dead_letter, retry_delay_ms, losses, expires_at,
    start_by, deadline_at, queue, args, meta, retry, priority, max_attempts, trace_id, rate_key, unique_key
)
WHERE j.id = v.id
  AND j.state = ANY(%s);

-- parameters: text, text, text, text, text, text, text, text, text, text, text, text, text
INSERT INTO django_ojs_event (
    txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
    workflow_id, data
)
SELECT pg_current_xact_id()::text::bigint, *
FROM unnest(
    %s::text[], %s::timestamptz[], %s::text[], %s::text[], %s::uuid[], %s::text[], %s::text[], %s::text[],
    %s::int[], %s::text[], %s::text[], %s::uuid[], %s::text[]
);

-- parameters: text
SELECT pg_notify('ojs_jobs', %s) WHERE EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);
