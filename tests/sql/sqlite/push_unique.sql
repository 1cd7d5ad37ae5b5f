-- PUSH of one unique job: no job that is open may have its key.

-- parameters: text
SELECT id, type, queue, state, priority, attempt, max_attempts, uncounted, round, args, meta, extra, retry,
    timeout_ms, visibility_ms, heartbeat_ms, grace_ms, trace_id, created_at, enqueued_at, due_at, expires_at,
    start_by, deadline_at, activated_at, started_at, finished_at, visible_until, timeout_at, wake_at,
    worker_id, lease_ms, losses, suspected, resumable, retry_delay_ms, errors, result, result_ttl,
    dead_letter, unique_key, workflow_id, parent_id, rate_key, rate_limit
FROM django_ojs_job
WHERE unique_key IN (SELECT value FROM json_each(%s))
  AND unique_key > ''
  AND state IN ('scheduled', 'available', 'pending', 'active', 'retryable')
ORDER BY id;

-- parameters: text, text, text, text, text, integer, text, text, text
INSERT INTO django_ojs_job (
    id, type, args, extra, retry, timeout_ms, created_at, enqueued_at, unique_key, queue, state, priority,
    max_attempts, meta, trace_id, rate_key, rate_limit, attempt, losses, dead_letter, worker_id, errors
)
VALUES (
    %s, %s, %s, %s, %s, %s, %s, %s, %s, 'default', 'available', 0, 3, '{}', '', '', '', 0, 0, false, '', ''
);

-- parameters: text, text
INSERT INTO django_ojs_countdelta (queue, at, available) VALUES (%s, %s, 1);

-- parameters: text, text, text, text, text, text, text, text, integer, text, text, null, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
