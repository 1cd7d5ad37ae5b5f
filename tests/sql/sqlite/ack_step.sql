-- ACK of a step of a chain: the workflow is locked and the job of the next step is enqueued.

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

-- parameters: text, text
WITH flows AS (
    SELECT id, created_at, progress, type
    FROM django_ojs_workflow
    WHERE id IN (SELECT value FROM json_each(%s))
      AND state || '' = 'running'
    ORDER BY id
),
ended AS MATERIALIZED (
    SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type
    FROM (SELECT value AS id FROM json_each(%s)) AS g
    JOIN django_ojs_workflowstep s ON s.job_id = g.id
)
SELECT s.workflow_id, s.position, s.step_id, s.job_id, s.type, j.state, j.started_at, j.finished_at,
    j.worker_id, j.trace_id, j.attempt, NULL, w.created_at, b.started_at,
    CASE
        WHEN lag(s.workflow_id) OVER (ORDER BY s.workflow_id, j.finished_at, s.position) = s.workflow_id THEN NULL
        ELSE w.progress
    END, n.step_id, n.job_id, n.type, n.document
FROM ended s
JOIN flows w ON w.id = s.workflow_id
JOIN django_ojs_job j ON j.id = s.job_id
LEFT JOIN django_ojs_workflowstart b ON b.workflow_id = s.workflow_id
LEFT JOIN django_ojs_workflowstep n ON w.type = 'chain'
  AND n.workflow_id = s.workflow_id
  AND n.position = s.position + 1
ORDER BY s.workflow_id, j.finished_at, s.position;

-- sent once for each row
-- parameters: text, text
UPDATE django_ojs_workflow SET progress = %s WHERE id = %s;

-- sent once for each row
-- parameters: text, text, text, text, null, text, text, text, integer, text, text, text, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- parameters: text, text, text, text, text, integer, text, text, text
INSERT INTO django_ojs_job (
    id, type, args, extra, retry, timeout_ms, created_at, enqueued_at, workflow_id, queue, state, priority,
    max_attempts, meta, trace_id, unique_key, rate_key, rate_limit, attempt, losses, dead_letter, worker_id,
    errors
)
VALUES (
    %s, %s, %s, %s, %s, %s, %s, %s, %s, 'default', 'available', 0, 3, '{}', '', '', '', '', 0, 0, false, '',
    ''
);

-- parameters: text, text
INSERT INTO django_ojs_countdelta (queue, at, available) VALUES (%s, %s, 1);

-- parameters: text, text, text, text, text, text, text, text, integer, text, text, text, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
