-- An operator retries one job that was discarded.

-- parameters: text
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
ORDER BY "django_ojs_job"."id" ASC;

-- parameters: text, text, text, text
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

-- parameters: text, text
SELECT "django_ojs_job"."queue" AS "queue", "django_ojs_job"."state" AS "state",
    "django_ojs_job"."dead_letter" AS "dead_letter"
FROM "django_ojs_job"
WHERE ("django_ojs_job"."id" IN (%s) AND "django_ojs_job"."state" IN (%s));

-- sent once for each row
-- parameters: text, text, null, null, null, text, null, null, null, null, integer, integer, text, text, null,
-- boolean, null, integer, null, null, null, text, text, text, text, integer, integer, text, text, text, text
UPDATE django_ojs_job
SET state = %s, enqueued_at = %s, due_at = %s, wake_at = %s, started_at = %s, worker_id = %s,
    visible_until = %s, timeout_at = %s, uncounted = %s, suspected = %s, attempt = %s, round = %s,
    errors = %s, extra = %s, finished_at = %s, dead_letter = %s, retry_delay_ms = %s, losses = %s,
    expires_at = %s, start_by = %s, deadline_at = %s, queue = %s, args = %s, meta = %s, retry = %s,
    priority = %s, max_attempts = %s, trace_id = %s, rate_key = %s, unique_key = %s
WHERE id = %s
  AND state IN ('discarded');

-- sent once for each row
-- parameters: text, text, integer, integer, integer, integer, integer, integer, integer, integer, integer,
-- integer, integer, integer
INSERT INTO django_ojs_countdelta (
    queue, at, scheduled, available, pending, active, completed, retryable, cancelled, discarded, dead,
    failed, run_ms, wait_ms
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- sent once for each row
-- parameters: text, text, text, text, text, text, text, text, integer, text, text, null, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
