"""Diagnoses of SQLite and MariaDB beside their system checks: durability; of SQLite its write lock and its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.db import Error

from django_ojs.doctor.findings import PATIENCE, Finding, Site, only_on
from django_ojs.faults import is_contention
from django_ojs.messages import phrase

#: Bytes from which on the write-ahead log of SQLite, and free pages in its file, are many.
LARGE_WAL, FREE_BYTES = 256 * 1024**2, 64 * 1024**2
#: The share of the file that may be free pages.
FREE_SHARE = 0.5


@only_on("sqlite", "mysql")
def durability(site: Site) -> Iterator[Finding]:
    """A commit that the crash of the host can lose. NORMAL with WAL, which django-ojs asks for, counts as safe."""
    if site.vendor == "sqlite" and site.rows("PRAGMA synchronous")[0][0] == 0:
        setting, value, mend = (
            "synchronous",
            "OFF",
            phrase("Leave PRAGMA synchronous=OFF out of init_command in OPTIONS."),
        )
    elif site.vendor == "mysql" and (found := site.rows("SELECT @@innodb_flush_log_at_trx_commit")[0][0]) != 1:
        setting, value = "innodb_flush_log_at_trx_commit", str(found)
        mend = phrase("SET GLOBAL innodb_flush_log_at_trx_commit = 1; and in the configuration of the server.")
    else:
        return
    yield Finding(
        "commits-can-be-lost",
        phrase(
            "%(setting)s is %(value)s: a crash of the host can lose jobs that enqueue() has reported as stored.",
            setting=setting, value=value,
        ),
        mend,
        setting,
        {"setting": setting, "value": value},
    )  # fmt: skip


@only_on("sqlite")
def write_lock(site: Site) -> Iterator[Finding]:
    """Another connection that holds SQLite's write lock. In a caller's transaction it may be ours."""
    if site.connection.in_atomic_block:
        return
    patience = site.rows("PRAGMA busy_timeout")[0][0]
    site.rows(f"PRAGMA busy_timeout = {PATIENCE * 1000}")
    try:
        site.rows("BEGIN IMMEDIATE")
        site.rows("ROLLBACK")
    except Error as error:
        if not is_contention(error):
            raise
        yield Finding(
            "write-lock-held",
            phrase(
                "Another connection has held the write lock of SQLite for %(seconds)s s or more: nothing can be "
                "stored or claimed until it commits.",
                seconds=PATIENCE,
            ),
            phrase(
                "Find the process (fuser %(file)s) and end its transaction. Do slow work outside of "
                "transaction.atomic().",
                file=_file(site),
            ),
            figures={"seconds": PATIENCE},
        )
    finally:
        site.rows(f"PRAGMA busy_timeout = {int(patience)}")


@only_on("sqlite")
def wal(site: Site) -> Iterator[Finding]:
    """A write-ahead log that no checkpoint can empty, because a reader needs it."""
    log = Path(f"{_file(site)}-wal")
    if not _file(site) or not log.exists():
        return
    if (size := log.stat().st_size) > LARGE_WAL:
        yield Finding(
            "wal-large",
            phrase(
                "%(file)s has %(size)s MB: a connection that reads in a long transaction keeps SQLite from emptying "
                "it, and reads get slower.",
                file=log.name, size=f"{size / 1024**2:,.0f}",
            ),
            phrase("End the transaction (fuser %(file)s names the processes), then PRAGMA wal_checkpoint(TRUNCATE);",
                   file=log.name),
            figures={"bytes": size},
        )  # fmt: skip


@only_on("sqlite")
def free_pages(site: Site) -> Iterator[Finding]:
    """A file that keeps the size of rows that were deleted."""
    free, pages, size = (site.rows(f"PRAGMA {name}")[0][0] for name in ("freelist_count", "page_count", "page_size"))
    if free * size > FREE_BYTES and free > FREE_SHARE * pages:
        yield Finding(
            "file-bloat",
            phrase(
                "%(free)s MB of the %(size)s MB of the database file are free pages, which new rows will use.",
                free=f"{free * size / 1024**2:,.1f}", size=f"{pages * size / 1024**2:,.1f}",
            ),
            phrase("If the disk needs the space, stop all processes of the site and run VACUUM;"),
            figures={"free_bytes": free * size, "bytes": pages * size},
        )  # fmt: skip


def _file(site: Site) -> str:
    """The file of the database; '' for one in memory."""
    return next((str(file) for _, name, file in site.rows("PRAGMA database_list") if name == "main"), "")
