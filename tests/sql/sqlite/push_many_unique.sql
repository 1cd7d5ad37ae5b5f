-- PUSH of several unique jobs: their keys are locked, then those that are taken are looked for.

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

-- parameters: text, text, text, integer, text
INSERT INTO django_ojs_job (
    type, extra, retry, timeout_ms, id, args, created_at, enqueued_at, unique_key, queue, state, priority,
    max_attempts, meta, trace_id, rate_key, rate_limit, attempt, losses, dead_letter, worker_id, errors
)
SELECT %s, %s, %s, %s, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[2]'), json_extract(value, '$[3]'), 'default', 'available', 0, 3, '{}', '', '', '',
    0, 0, false, '', ''
FROM json_each(%s);

-- sent once for each row
-- parameters: text, text, integer, integer, integer, integer, integer, integer, integer, integer, integer,
-- integer, integer, integer
INSERT INTO django_ojs_countdelta (
    queue, at, scheduled, available, pending, active, completed, retryable, cancelled, discarded, dead,
    failed, run_ms, wait_ms
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- parameters: text, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
SELECT CASE j.state WHEN 'available' THEN 'job.enqueued' ELSE 'job.scheduled' END, j.created_at, %s, '', j.id,
    j.type, j.queue, j.state, 0, '', j.trace_id, j.workflow_id,
    CASE
        j.state
        WHEN 'available' THEN '{"priority":' || j.priority || CASE
            WHEN j.unique_key = '' THEN '' ELSE ',"unique_key":"' || j.unique_key || '"'
        END || '}'
        ELSE '{"scheduled_at":"' || replace(substr(j.due_at || '.000', 1, 23), ' ', 'T') || 'Z' || '"}'
    END
FROM json_each(%s) AS new
CROSS JOIN django_ojs_job AS j ON j.id = json_extract(new.value, '$[0]')
WHERE j.state <> 'pending';
