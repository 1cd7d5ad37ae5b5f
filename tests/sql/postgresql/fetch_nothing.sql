-- FETCH from a queue in which no job waits: one look says so.

-- parameters: text, time, text, text, text, text, time, text
SELECT EXISTS(SELECT 1 FROM django_ojs_job WHERE state = 'available' AND queue IN (%s)),
    (
        SELECT wake_at
        FROM django_ojs_job
        WHERE wake_at <= %s
          AND queue IN (%s)
          AND state IN ('scheduled', 'retryable', 'available')
        ORDER BY wake_at
        LIMIT 1
    ) IS NOT NULL,
    EXISTS(SELECT 1 FROM django_ojs_job WHERE state = 'available' AND rate_key > '' AND queue IN (%s)),
    EXISTS(SELECT 1 FROM django_ojs_queue WHERE limited AND (name = '_default' OR name IN (%s))),
    EXISTS(SELECT 1 FROM django_ojs_maintenance),
    EXISTS(SELECT 1 FROM django_ojs_cronrun WHERE held AND queue IN (%s)), w.id, w.state, w.directive,
    w.owner, w.last_seen_at < %s
FROM (SELECT 1 AS one) AS here
LEFT JOIN django_ojs_worker AS w ON w.id IN (%s);
