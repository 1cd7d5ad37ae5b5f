"""A database URL as an entry of Django's `DATABASES`: for `ojs_testserver`, the example project and the tests.

    sqlite:///db.sqlite3                                relative to `base`
    sqlite:////var/lib/site/db.sqlite3                  absolute
    postgres://user:p%40ss@host:5432/name?sslmode=require&conn_max_age=600
    postgres:///name?host=/var/run/postgresql           a socket
    mysql://root@127.0.0.1:3306/name

Names and passwords are percent-decoded. Of the query, `conn_max_age`, `conn_health_checks` and
`atomic_requests` are settings of Django; everything else is an option of the database driver.

dj-database-url reads the URL. By hand is what it lacks: the way back, paths relative to a folder, the options that the
claim needs on SQLite, pools, and Django's own settings in a query.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import dj_database_url

#: What the claim needs on SQLite: readers beside one writer, and the write lock taken when a transaction
#: begins, so that the busy timeout (seconds) applies. A lock taken later fails at once instead.
SQLITE_OPTIONS: dict[str, Any] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
}
ENGINES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
}
#: Under ASGI each request has a thread of its own, so a kept connection would only be left behind: none is
#: kept unless the URL asks, by `?pool=true` (PostgreSQL: `POOL_OPTIONS`) or, under WSGI and in workers,
#: `?conn_max_age=60`.
SERVER_SETTINGS: dict[str, Any] = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
#: A pool of psycopg for a server, as Django takes it in `OPTIONS["pool"]`. `timeout` is how long a request waits for a
#: connection before it is answered with 503, and `reconnect_timeout` how long the pool goes on with an attempt to
#: connect, ever more rarely, before the next request begins a new one; both in seconds. With psycopg's own 30 and 300,
#: requests stall for 30 to 60 s after connections were cut, and for as long after an outage of the database.
POOL_OPTIONS: dict[str, Any] = {"min_size": 1, "max_size": 16, "timeout": 5, "reconnect_timeout": 2}
DJANGO_KEYS = {"conn_max_age", "conn_health_checks", "atomic_requests", "disable_server_side_cursors"}

dj_database_url.register("mariadb", ENGINES["mariadb"])


def parse(url: str, base: Path) -> dict[str, Any]:
    """The `DATABASES` entry for `url`. Raises ValueError, without the password, if it cannot be read."""
    parts = urlsplit(url)
    if parts.scheme not in ENGINES or not parts.path.strip("/"):
        raise ValueError(f"A database URL is <{'|'.join(ENGINES)}>://[user:password@host:port]/name, see {__name__}.")
    config: dict[str, Any] = {**dj_database_url.parse(url)}
    query = {key: _value(value) for key, value in config.pop("OPTIONS", {}).items()}
    if parts.scheme == "sqlite":
        config = {"ENGINE": config["ENGINE"], "NAME": base / config["NAME"], "OPTIONS": dict(SQLITE_OPTIONS)}
    else:
        config |= SERVER_SETTINGS | {"OPTIONS": {"charset": "utf8mb4"} if config["ENGINE"].endswith("mysql") else {}}
    config |= {key.upper(): query.pop(key) for key in DJANGO_KEYS & query.keys()}
    config["OPTIONS"] |= query
    if config["OPTIONS"].get("pool") is True:
        config["OPTIONS"]["pool"] = dict(POOL_OPTIONS)
    return config


_renewing = threading.Lock()


def renew_pool(connection: Any) -> None:
    """Replace the connections of a pool that are cut, in a thread of its own; without a pool, do nothing.

    For when a request has met a cut connection. Left to themselves, the next requests would find the others one by
    one, and wait longer after each.
    """
    pool = getattr(connection, "pool", None)
    if pool is None or not _renewing.acquire(blocking=False):
        return

    def renew() -> None:
        try:
            pool.check()
        finally:
            _renewing.release()

    threading.Thread(target=renew, name="ojs-pool", daemon=True).start()


def unparse(config: dict[str, Any]) -> str:
    """The URL that `parse` reads as `config`, to hand a database to another process."""
    scheme = next(scheme for scheme, engine in ENGINES.items() if engine == config["ENGINE"])
    if scheme == "sqlite":
        return f"sqlite:///{quote(str(config['NAME']))}"
    login = ":".join(quote(config[key], safe="") for key in ("USER", "PASSWORD") if config[key])
    place = quote(config["HOST"], safe="") + (f":{config['PORT']}" if config["PORT"] else "")
    query = config["OPTIONS"] | {key: config[key.upper()] for key in sorted(DJANGO_KEYS) if key.upper() in config}
    query = {key: True if isinstance(value, dict) else value for key, value in query.items()}  # a pool's sizes
    return f"{scheme}://{login}{'@' * bool(login)}{place}/{quote(config['NAME'], safe='')}?{urlencode(query)}"


def extended(url: str, query: str) -> str:
    """The URL with more of a query; what it said already under the same names no longer counts."""
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def _value(found: Any) -> Any:
    """A value of a query: the last of several under one name, and `none` as what it means."""
    value = found[-1] if isinstance(found, list) else found
    return None if isinstance(value, str) and value.lower() == "none" else value
