-- PUSH of one unique job: no job that is open may have its key.

-- parameters: integer
INSERT INTO django_ojs_uniquelock (stripe, used) VALUES (%s, TRUE) ON DUPLICATE KEY UPDATE used = NOT used;

-- parameters: text, text, text, text, text, text
SELECT id
FROM django_ojs_job FORCE INDEX (ojs_job_unique_mariadb)
WHERE unique_key IN (%s)
  AND state IN (%s, %s, %s, %s, %s)
FOR UPDATE;

-- parameters: uuid, text, text, text, integer, integer, integer, null, null, text, text, text, text, integer,
-- null, null, null, text, text, text, null, null, null, null, null, null, null, null, null, null, text, null,
-- integer, null, null, null, text, null, null, boolean, text, null, null, text, text
INSERT INTO `django_ojs_job` (
    `id`, `type`, `queue`, `state`, `priority`, `attempt`, `max_attempts`, `uncounted`, `round`, `args`,
    `meta`, `extra`, `retry`, `timeout_ms`, `visibility_ms`, `heartbeat_ms`, `grace_ms`, `trace_id`,
    `created_at`, `enqueued_at`, `due_at`, `expires_at`, `start_by`, `deadline_at`, `activated_at`,
    `started_at`, `finished_at`, `visible_until`, `timeout_at`, `wake_at`, `worker_id`, `lease_ms`, `losses`,
    `suspected`, `resumable`, `retry_delay_ms`, `errors`, `result`, `result_ttl`, `dead_letter`, `unique_key`,
    `workflow_id`, `parent_id`, `rate_key`, `rate_limit`
)
VALUES (
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s
);

-- parameters: integer, integer, integer, integer, integer, integer, integer, integer, integer, text, text,
-- integer, integer, integer
INSERT INTO `django_ojs_countdelta` (
    `scheduled`, `available`, `pending`, `active`, `completed`, `retryable`, `cancelled`, `discarded`, `dead`,
    `queue`, `at`, `failed`, `run_ms`, `wait_ms`
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING `django_ojs_countdelta`.`scheduled`, `django_ojs_countdelta`.`available`,
    `django_ojs_countdelta`.`pending`, `django_ojs_countdelta`.`active`, `django_ojs_countdelta`.`completed`,
    `django_ojs_countdelta`.`retryable`, `django_ojs_countdelta`.`cancelled`,
    `django_ojs_countdelta`.`discarded`, `django_ojs_countdelta`.`dead`, `django_ojs_countdelta`.`id`,
    `django_ojs_countdelta`.`failed`, `django_ojs_countdelta`.`run_ms`, `django_ojs_countdelta`.`wait_ms`;

-- parameters: null, null, text, text, text, text, uuid, text, text, text, integer, text, text, null, text
INSERT INTO `django_ojs_event` (
    `txid`, `seq`, `type`, `time`, `component`, `subject`, `job_id`, `job_type`, `queue`, `state`, `attempt`,
    `worker_id`, `trace_id`, `workflow_id`, `data`
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING `django_ojs_event`.`id`;
