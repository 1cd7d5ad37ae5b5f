-- ACK of several jobs, as the worker reports them together.

-- parameters: now text, acks text
SELECT json_group_array(json_array(j.rowid, a.result)),
    json_group_array(
        json_array(
            j.id, j.type, j.queue, 'completed', j.priority, j.attempt, j.max_attempts, j.uncounted, j.round,
            j.args, j.meta, j.extra, j.retry, j.timeout_ms, j.visibility_ms, j.heartbeat_ms, j.grace_ms,
            j.trace_id, j.created_at, j.enqueued_at, NULL, j.expires_at, j.start_by, j.deadline_at,
            j.activated_at, j.started_at, max(%(now)s, started_at), NULL, NULL, NULL, j.worker_id, j.lease_ms,
            0, j.suspected, j.resumable, j.retry_delay_ms, j.errors, a.result, j.result_ttl, j.dead_letter,
            j.unique_key, j.workflow_id, j.parent_id, j.rate_key, j.rate_limit,
            (
                rate_key <> ''
                  OR EXISTS (
                      SELECT 1 FROM django_ojs_queue AS q WHERE q.limited AND q.name IN (j.queue, '_default')
                  )
            )
        )
    )
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS worker,
        json_extract(value, '$[2]') AS attempt, json_extract(value, '$[3]') AS result
    FROM json_each(%(acks)s)
) AS a
CROSS JOIN django_ojs_job AS j
WHERE j.id = a.id
  AND j.state = 'active'
  AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker)
  AND (a.attempt IS NULL OR a.attempt = j.attempt);

-- parameters: now text, places text
UPDATE django_ojs_job AS j
SET state = 'completed', result = a.result, finished_at = max(%(now)s, started_at), losses = 0, due_at = NULL,
    visible_until = NULL, timeout_at = NULL, wake_at = NULL
FROM (
    SELECT json_extract(value, '$[0]') AS place, json_extract(value, '$[1]') AS result
    FROM json_each(%(places)s)
) AS a
WHERE j.rowid = a.place
  AND j.state = 'active';

-- parameters: text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
SELECT 'job.completed', j.finished_at, 'workers', '', j.id, j.type, j.queue, j.state, j.attempt, j.worker_id,
    j.trace_id, j.workflow_id,
    '{"duration_ms":' || coalesce(
        max(0, CAST(round((julianday(j.finished_at) - julianday(j.started_at)) * 86400000.0) AS INTEGER)), 0
    ) || coalesce(',"result":' || j.result, '') || '}'
FROM json_each(%s)
CROSS JOIN django_ojs_job AS j ON j.rowid = json_extract(value, '$[0]');

-- sent once for each row
-- parameters: text, text, integer, integer, integer, integer, integer, integer, integer, integer, integer,
-- integer, integer, integer
INSERT INTO django_ojs_countdelta (
    queue, at, scheduled, available, pending, active, completed, retryable, cancelled, discarded, dead,
    failed, run_ms, wait_ms
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
