"""Diagnoses of a PostgreSQL server: its settings, sessions, locks, connections, vacuum and indexes.

They read the catalogues and statistics that the server keeps anyway. A database user that is neither the owner of the
other sessions nor a member of `pg_monitor` does not see what those do, and so finds less. No text of a query is shown:
it may have arguments of jobs in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from django.db import Error

from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.doctor.findings import Finding, Site, only_on
from django_ojs.faults import has_lost_statements
from django_ojs.messages import phrase
from django_ojs.registry import registry
from django_ojs.rules.ids import new_job_id
from django_ojs.store.prepared import is_pooled

#: Seconds for which a transaction may be open, and another session may wait for a lock.
LONG_TRANSACTION, LOCK_WAIT = 300.0, 5.0
#: The share of the connections that may be in use.
CONNECTIONS = 0.85
#: Connections of a worker process beside those of its handlers, and of the leading scheduler
#: (docs/production/database.md).
PER_WORKER, PER_LEADER = 5, 4
#: How many times the rows that make autovacuum begin may be left to it, and how many rows are few in any table.
OVERDUE, FEW_ROWS = 3.0, 10_000
#: An index is bloated from this size on, bytes, if its entries need less than this share of it.
BLOATED_BYTES, BLOATED_SHARE = 64 * 1024**2, 0.25
#: Of a page of a B-tree: how full it is after inserts at random places. Of an entry: its header and its pointer.
_FILL, _PER_ENTRY, _PAGE = 0.7, 16, 8192

_only_here = only_on("postgresql")

#: Settings that let a crash of the server or of its host lose what was committed.
_UNSAFE = {"synchronous_commit": "off", "fsync": "off", "full_page_writes": "off"}


def _settings(site: Site, *names: str) -> dict[str, str]:
    return dict(site.rows("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(names)]))


@_only_here
def durability(site: Site) -> Iterator[Finding]:
    """A commit that does not wait for the disk, as this session's setting has it."""
    found = _settings(site, *_UNSAFE)
    for name, unsafe in _UNSAFE.items():
        if found.get(name) == unsafe:
            yield Finding(
                "commits-can-be-lost",
                phrase(
                    "%(setting)s is %(value)s: a crash of the database server can lose jobs that enqueue() has "
                    "reported as stored.",
                    setting=name, value=unsafe,
                ),
                phrase(
                    "ALTER SYSTEM SET %(setting)s = 'on'; SELECT pg_reload_conf(); and look for the setting at the "
                    "database, the role and in OPTIONS.",
                    setting=name,
                ),
                name,
                {"setting": name, "value": unsafe},
            )  # fmt: skip


#: Lets pgpool send the statement to the primary, wherever it sends others. To PostgreSQL it is a comment.
_FROM_PRIMARY = "/*NO LOAD BALANCE*/"
#: By a function that is not volatile: pgpool takes a volatile one for a write.
_ONLY_READS = "SELECT current_setting('transaction_read_only') = 'on'"
_OF_CLIENTS = "_pg3_"  #: how the names begin that psycopg gives to prepared statements


@_only_here
def read_only(site: Site) -> Iterator[Finding]:
    """A replica, or a session that may not write."""
    ((is_read_only, is_replica),) = site.rows(
        f"{_FROM_PRIMARY} SELECT current_setting('transaction_read_only'), pg_is_in_recovery()"
    )
    if is_read_only == "on":
        yield Finding(
            "database-read-only",
            phrase("PostgreSQL is a replica that only reads: no job can be stored or claimed.")
            if is_replica
            else phrase("Sessions of this database user only read: no job can be stored or claimed."),
            phrase(
                'Connect to the primary (HOST, or "OPTIONS": {"target_session_attrs": "read-write"}), and look at '
                "default_transaction_read_only of the database and the role."
            ),
            figures={"replica": bool(is_replica)},
        )


@_only_here
def pooler(site: Site) -> Iterator[Finding]:
    """Server-side cursors and prepared statements where a pooler may give every transaction another session."""
    raw = site.connection.connection
    if not hasattr(raw, "prepare_threshold") or not is_pooled(raw):
        return
    if not site.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Finding(
            "pooler-cursors",
            phrase(
                "A pooler is between this process and PostgreSQL, and DISABLE_SERVER_SIDE_CURSORS is not set: if it "
                "pools transactions, QuerySet.iterator() fails with “cursor does not exist”."
            ),
            phrase('Set DATABASES["%(alias)s"]["DISABLE_SERVER_SIDE_CURSORS"] = True.', alias=site.using),
        )
    if site.connection.settings_dict["OPTIONS"].get("prepare_threshold") is not None and _keeps_names(site, raw):
        yield Finding(
            "statements-lost",
            phrase(
                "A pooler is between this process and PostgreSQL and does not keep prepared statements, and "
                "prepare_threshold is set: statements fail with “prepared statement does not exist”."
            ),
            phrase(
                'Set DATABASES["%(alias)s"]["OPTIONS"]["prepare_threshold"] = None, or max_prepared_statements in '
                "pgbouncer.ini (PgBouncer 1.21 or newer).",
                alias=site.using,
            ),
        )


def _keeps_names(site: Site, raw: Any) -> bool:
    """Whether the pooler prepares a statement under the name that the client gives, and so keeps no account of them:
    two clients give the same names. In the transaction of a diagnosis, and so in one session."""
    import psycopg  # a site on another database need not have it

    text = f"SELECT 'ojs_doctor {new_job_id()}'"
    try:
        with atomic(using=site.using), site.connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(text, prepare=True)
    except Error as error:
        if has_lost_statements(error):  # another client has left the name in this session
            return True
        raise
    names = [name for (name,) in site.rows("SELECT name FROM pg_prepared_statements WHERE statement = %s", [text])]
    own = [name for name in names if name.startswith(_OF_CLIENTS)]
    if own:
        with site.connection.cursor() as cursor:
            cursor.execute(f'DEALLOCATE "{own[0]}"')  # or the next client who uses the session finds its name taken
    return bool(own)


@_only_here
def reads_elsewhere(site: Site) -> Iterator[Finding]:
    """A proxy such as pgpool that sends what a session reads to a replica, though the session has written. It takes
    a session of its own: in a transaction that has written, pgpool reads from the primary."""
    other = site.connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("DO $$ BEGIN END $$")  # is no SELECT, so for pgpool it writes
            found = []
            for question in (_ONLY_READS, f"{_FROM_PRIMARY} SELECT current_setting('transaction_read_only') = 'on'"):
                cursor.execute(question)
                found += cursor.fetchone()
    finally:
        other.close()
    if found == [True, False]:
        yield Finding(
            "reads-elsewhere",
            phrase(
                "A proxy sends the reads of a session to a replica, and its writes to the primary: a job that was just "
                "pushed is not found, and prepared statements are missing there."
            ),
            phrase(
                "In pgpool.conf set disable_load_balance_on_write = 'always', or better "
                "database_redirect_preference_list = '%(name)s:primary'; and "
                'DATABASES["%(alias)s"]["OPTIONS"]["prepare_threshold"] = None.',
                name=site.connection.settings_dict["NAME"], alias=site.using,
            ),
        )  # fmt: skip


# Sessions

#: What is shown of a session `a`.
_SESSION = "a.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'local'), coalesce(a.state, '?')"


def _seconds(value: Any) -> str:
    return f"{float(value):,.0f}"


@_only_here
def long_transactions(site: Site) -> Iterator[Finding]:
    """Transactions that keep vacuum from all that has ended since they began."""
    found = site.rows(
        f"SELECT {_SESSION}, extract(epoch FROM clock_timestamp() - a.xact_start) FROM pg_stat_activity a "  # noqa: S608
        "WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' "
        "AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) "
        "AND a.xact_start < clock_timestamp() - make_interval(secs => %s) ORDER BY a.xact_start",
        [LONG_TRANSACTION],
    )
    for pid, name, host, state, seconds in found:
        yield Finding(
            "transaction-long",
            phrase(
                "Process %(pid)s (%(name)s, %(host)s, %(state)s) has had a transaction open for %(seconds)s s. "
                "Vacuum removes nothing that has ended since, and readers get its events only when it commits.",
                pid=pid, name=name or "?", host=host, state=state, seconds=_seconds(seconds),
            ),
            phrase(
                "See what it does: SELECT query FROM pg_stat_activity WHERE pid = %(pid)s; end it: SELECT "
                "pg_terminate_backend(%(pid)s); and let the server end forgotten ones: "
                "idle_in_transaction_session_timeout = '10min'.",
                pid=pid,
            ),
            str(pid),
            {"pid": pid, "application": name, "client": host, "state": state, "seconds": round(float(seconds))},
        )  # fmt: skip


@_only_here
def lock_waits(site: Site) -> Iterator[Finding]:
    """Sessions for which others wait, and which wait for none themselves."""
    found = site.rows(
        f"SELECT {_SESSION}, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0), count(DISTINCT w.pid), "  # noqa: S608
        "max(w.waited) FROM (SELECT l.pid, unnest(pg_blocking_pids(l.pid)) AS blocker, "
        "extract(epoch FROM clock_timestamp() - l.waitstart) AS waited FROM pg_locks l "
        "JOIN pg_stat_activity s ON s.pid = l.pid WHERE NOT l.granted AND s.datname = current_database()) w "
        "JOIN pg_stat_activity a ON a.pid = w.blocker "
        "WHERE w.waited > %s AND a.wait_event_type IS DISTINCT FROM 'Lock' GROUP BY 1, 2, 3, 4, 5 ORDER BY 7 DESC",
        [LOCK_WAIT],
    )
    for pid, name, host, state, age, waiting, waited in found:
        yield Finding(
            "lock-wait",
            phrase(
                "Process %(pid)s (%(name)s, %(host)s, %(state)s) holds locks for which other sessions wait: "
                "%(waiting)s, the longest for %(seconds)s s. Its transaction has been open for %(age)s s.",
                pid=pid, name=name or "?", host=host, state=state, waiting=waiting, seconds=_seconds(waited),
                age=_seconds(age),
            ),
            phrase(
                "See what it does: SELECT query FROM pg_stat_activity WHERE pid = %(pid)s; if it hangs, end it: SELECT "
                "pg_terminate_backend(%(pid)s);",
                pid=pid,
            ),
            str(pid),
            {"pid": pid, "application": name, "client": host, "state": state, "waiting": waiting,
             "seconds": round(float(waited)), "open_seconds": round(float(age))},
        )  # fmt: skip


def _limits(site: Site) -> tuple[int, int]:
    """How many connections the sites' users may have, and how many are in use: of the server, or of this database if it
    has a lower limit of its own."""
    ((most, used, own, own_used),) = site.rows(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, "
        "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), d.datconnlimit, "
        "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = d.datname) "
        "FROM pg_database d WHERE d.datname = current_database()"
    )
    return (own, own_used) if 0 <= own < most else (most, used)


@_only_here
def connections_used(site: Site) -> Iterator[Finding]:
    """How near the server, or the database, is to refusing connections."""
    most, used = _limits(site)
    if used >= CONNECTIONS * most:
        yield Finding(
            "connections-near-limit",
            phrase("%(used)s of %(most)s connections are in use.", used=used, most=most),
            phrase(
                "Find who holds them: SELECT application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2; "
                "then lower CONN_MAX_AGE, the pools or the slots of workers, use a pooler, or raise max_connections."
            ),
            figures={"used": used, "most": most},
        )


@_only_here
def connections_needed(site: Site) -> Iterator[Finding]:
    """What the workers may take when all their handlers use the database, with the pool of one server."""
    most, _used = _limits(site)
    ours = [worker for worker in site.workers if worker.incarnation]
    slots = sum(worker.concurrency for worker in ours)
    pool = site.connection.settings_dict["OPTIONS"].get("pool")
    size = int(pool.get("max_size") or pool.get("min_size", 4)) if isinstance(pool, dict) else 4 if pool else 0
    in_use = sum(min(worker.concurrency, _most_in_use()) for worker in ours)
    needed = PER_WORKER * len(ours) + in_use + _leader() * bool(ours) + size
    if needed > most:
        yield Finding(
            "connections-too-few",
            phrase(
                "Worker processes: %(workers)s, with slots: %(slots)s; connections in the pool of a server process: "
                "%(pool)s. Together they may take %(needed)s connections, and there are %(most)s.",
                workers=len(ours), slots=slots, pool=size, needed=needed, most=most,
            ),
            phrase(
                "Raise max_connections, put pgbouncer in front, or lower --concurrency, OJS['ASYNC_CONNECTIONS'] and "
                "the max_size of the pool (docs/production/database.md)."
            ),
            figures={"workers": len(ours), "slots": slots, "pool": size, "needed": needed, "most": most},
        )  # fmt: skip


# Vacuum


def _most_in_use() -> float:
    """How many slots of a worker process may have a connection: fewer than all if every handler is asynchronous."""
    most = ojs_settings.ASYNC_CONNECTIONS
    if most is None or not all(definition.is_async for definition in registry.definitions()):
        return math.inf
    return max(1, most)


def _leader() -> int:
    """The connections that the process has beside, whose scheduler leads."""
    return PER_LEADER + (ojs_settings.ALERTS is not None)


@_only_here
def autovacuum(site: Site) -> Iterator[Finding]:
    """Autovacuum that never begins: of the server, or of one of our tables."""
    found = _settings(site, "autovacuum", "track_counts")
    if off := [name for name in ("autovacuum", "track_counts") if found.get(name) == "off"]:
        yield Finding(
            "autovacuum-off",
            phrase("%(setting)s is off: claims get slower with every job, and tables only grow.", setting=off[0]),
            f"ALTER SYSTEM SET {off[0]} = 'on'; SELECT pg_reload_conf();",
            figures={"setting": off[0]},
        )
    tables = site.rows(
        "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND pg_table_is_visible(oid) "
        "AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0'] "
        "ORDER BY 1",
        [site.tables],
    )
    for (table,) in tables:
        yield Finding(
            "autovacuum-off",
            phrase("Autovacuum is off for the table %(table)s: claims get slower, and it only grows.", table=table),
            f"ALTER TABLE {table} RESET (autovacuum_enabled);",
            table,
            {"table": table},
        )


def _option(name: str) -> str:
    """A setting of autovacuum as it holds for the table `c`."""
    own = f"(SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = '{name}')"  # noqa: S608
    return f"coalesce({own}, current_setting('{name}'))::float"


_VACUUM_AT, _ANALYZE_AT = (
    f"{_option(f'autovacuum_{verb}_threshold')} + {_option(f'autovacuum_{verb}_scale_factor')} * "
    f"greatest(c.reltuples, 0)"
    for verb in ("vacuum", "analyze")
)


@_only_here
def vacuum(site: Site) -> Iterator[Finding]:
    """Tables of ours with several times the dead or changed rows at which autovacuum begins; none being vacuumed."""
    found = site.rows(
        f"SELECT c.relname, s.n_live_tup, s.n_dead_tup, s.n_mod_since_analyze, {_VACUUM_AT}, {_ANALYZE_AT}, "  # noqa: S608
        "greatest(s.last_vacuum, s.last_autovacuum)::text, greatest(s.last_analyze, s.last_autoanalyze)::text "
        "FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid "
        "WHERE c.relname = ANY(%s) AND pg_table_is_visible(c.oid) "
        "AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum p WHERE p.relid = c.oid) ORDER BY c.relname",
        [site.tables],
    )
    for table, live, dead, changed, vacuum_at, analyze_at, vacuumed, analyzed in found:
        if dead > max(OVERDUE * vacuum_at, FEW_ROWS):
            yield Finding(
                "vacuum-late",
                phrase(
                    "%(table)s has %(dead)s dead rows beside %(live)s others; autovacuum should begin at %(limit)s. "
                    "Last vacuum: %(last)s.",
                    table=table, dead=f"{dead:,}", live=f"{live:,}", limit=f"{vacuum_at:,.0f}", last=vacuumed or "–",
                ),
                phrase(
                    "VACUUM (VERBOSE, ANALYZE) %(table)s; if it removes little, end what holds it back "
                    "(transaction-long). If it happens again, see docs/retention.md for the settings of each table.",
                    table=table,
                ),
                table,
                {"table": table, "dead": dead, "live": live, "limit": round(vacuum_at), "last_vacuum": vacuumed},
            )  # fmt: skip
        if changed > max(OVERDUE * analyze_at, FEW_ROWS):
            yield Finding(
                "analyze-late",
                phrase(
                    "%(changed)s rows of %(table)s have changed since it was analyzed; autovacuum should do it at "
                    "%(limit)s. Last time: %(last)s. The server may choose slow plans.",
                    table=table, changed=f"{changed:,}", limit=f"{analyze_at:,.0f}", last=analyzed or "–",
                ),
                f"ANALYZE {table};",
                table,
                {"table": table, "changed": changed, "limit": round(analyze_at), "last_analyze": analyzed},
            )  # fmt: skip


@_only_here
def index_bloat(site: Site) -> Iterator[Finding]:
    """B-trees of ours whose entries need a small part of their size, as estimated from statistics.

    There are at most as many entries as were last counted and rows have changed since, so an index that has grown since
    is not taken for bloated. Indexes of expressions are left out.
    """
    found = site.rows(
        "SELECT i.relname, t.relname, pg_relation_size(i.oid), "
        "i.reltuples + coalesce(pg_stat_get_mod_since_analyze(t.oid), 0), "
        "(SELECT sum(coalesce(st.avg_width, 32)) FROM unnest(x.indkey) AS k (number) "
        "JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number "
        "LEFT JOIN pg_stats st ON st.schemaname = n.nspname AND st.tablename = t.relname AND st.attname = a.attname) "
        "FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid "
        "JOIN pg_namespace n ON n.oid = t.relnamespace JOIN pg_am am ON am.oid = i.relam "
        "WHERE t.relname = ANY(%s) AND pg_table_is_visible(t.oid) AND am.amname = 'btree' AND x.indexprs IS NULL "
        "AND x.indisvalid AND i.reltuples >= 0 AND pg_relation_size(i.oid) >= %s ORDER BY 3 DESC",
        [site.tables, BLOATED_BYTES],
    )
    for index, table, size, entries, width in found:
        needed = round(float(entries) * (_PER_ENTRY + float(width or 32)) / _FILL) + 2 * _PAGE
        if needed < BLOATED_SHARE * size:
            yield Finding(
                "index-bloat",
                phrase(
                    "The index %(index)s of %(table)s has %(size)s MB, and its entries (about %(entries)s) need about "
                    "%(needed)s MB.",
                    index=index, table=table, size=f"{size / 1024**2:,.0f}", entries=f"{float(entries):,.0f}",
                    needed=f"{needed / 1024**2:,.1f}",
                ),
                f"REINDEX INDEX CONCURRENTLY {index};",
                index,
                {"index": index, "table": table, "bytes": size, "entries": round(float(entries)), "needed": needed},
            )  # fmt: skip
