-- Committed events get their places in the log.

-- parameters: Int2
SELECT "django_ojs_eventlog"."id", "django_ojs_eventlog"."salt", "django_ojs_eventlog"."snapshot",
    "django_ojs_eventlog"."server", "django_ojs_eventlog"."last_seq", "django_ojs_eventlog"."pruned_to",
    "django_ojs_eventlog"."run", "django_ojs_eventlog"."kept_to", "django_ojs_eventlog"."changes"
FROM "django_ojs_eventlog"
WHERE "django_ojs_eventlog"."id" = %s
ORDER BY "django_ojs_eventlog"."id" ASC
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- parameters: last text
SELECT system_identifier || ':' || 'django_ojs_event'::regclass::oid || ':' || pg_relation_filenode(
    'django_ojs_event'
),
    coalesce(
        (
            SELECT pg_visible_in_snapshot(
                (now - ((now - xmin::text::bigint) & 4294967295))::text::xid8,
                nullif(%(last)s, '')::pg_snapshot
            )
            FROM django_ojs_eventlog,
                (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS now) AS current
            WHERE id = 1
        ), false
    ),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '@' || extract(
        epoch FROM pg_postmaster_start_time()
    )
FROM pg_control_system();

-- parameters: last text
WITH fresh AS (
    SELECT txid, max(id) AS last
    FROM django_ojs_event
    WHERE (
        txid >= pg_snapshot_xmax(%(last)s::pg_snapshot)::text::bigint
          OR txid = ANY(ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(%(last)s::pg_snapshot) AS x))
    )
    GROUP BY txid
),
numbered AS (
    INSERT INTO django_ojs_eventcommit (txid)
    SELECT txid
    FROM fresh
    ORDER BY last ON CONFLICT DO NOTHING
    RETURNING 1
)
UPDATE django_ojs_eventlog
SET snapshot = (
    SELECT least(lowest, own) || ':' || ends || ':' || coalesce(
        (
            SELECT string_agg(x::text, ',' ORDER BY x)
            FROM (
                SELECT xip::text::bigint AS x
                FROM pg_snapshot_xip(seen) AS xip
                UNION
                SELECT own
                WHERE own < ends
            ) AS running
        ), ''
    )
    FROM (
        SELECT pg_current_snapshot() AS seen, pg_current_xact_id()::text::bigint AS own,
            pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS lowest,
            pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS ends
    ) AS now
), last_seq = greatest(last_seq, (SELECT coalesce(max(last), 0) FROM fresh))
WHERE id = 1
RETURNING (SELECT count(*) FROM numbered);
