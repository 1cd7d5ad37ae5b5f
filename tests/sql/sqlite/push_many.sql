-- PUSH of several jobs, however many.

-- parameters: text, text, text, integer, text
INSERT INTO django_ojs_job (
    type, extra, retry, timeout_ms, id, args, created_at, enqueued_at, queue, state, priority, max_attempts,
    meta, trace_id, unique_key, rate_key, rate_limit, attempt, losses, dead_letter, worker_id, errors
)
SELECT %s, %s, %s, %s, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[2]'), 'default', 'available', 0, 3, '{}', '', '', '', '', 0, 0, false, '', ''
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
