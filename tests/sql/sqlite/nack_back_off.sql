-- NACK of a job that has attempts left.

-- parameters: text, integer, text, text
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
    "django_ojs_job"."rate_limit" AS "f41",
    (
        "django_ojs_job"."rate_key" > %s
          OR EXISTS(
              SELECT %s AS "a"
              FROM "django_ojs_queue" U0
              WHERE ((U0."name" = ("django_ojs_job"."queue") OR U0."name" = %s) AND U0."limited")
              LIMIT 1
          )
    ) AS "expressionwrapper41"
FROM "django_ojs_job"
WHERE "django_ojs_job"."id" IN (%s)
ORDER BY "django_ojs_job"."id" ASC;

-- sent once for each row
-- parameters: text, null, text, null, null, text, text, boolean, integer, integer, null, null, text
UPDATE django_ojs_job
SET state = %s, finished_at = %s, due_at = %s, visible_until = %s, timeout_at = %s, wake_at = %s, errors = %s,
    dead_letter = %s, retry_delay_ms = %s, losses = %s, uncounted = %s, suspected = %s
WHERE id = %s
  AND state IN ('active');

-- sent once for each row
-- parameters: text, text, integer, integer, integer, integer, integer, integer, integer, integer, integer,
-- integer, integer, integer
INSERT INTO django_ojs_countdelta (
    queue, at, scheduled, available, pending, active, completed, retryable, cancelled, discarded, dead,
    failed, run_ms, wait_ms
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- sent once for each row
-- parameters: text, integer, integer, text, text, text, text, text, text
INSERT OR IGNORE INTO django_ojs_jobattempt (
    job_id, round, attempt, worker_id, started_at, ended_at, outcome, error, release
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, coalesce((SELECT release FROM django_ojs_worker WHERE id = %s), ''));

-- sent once for each row
-- parameters: text, text, text, text, text, text, text, text, integer, text, text, null, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
