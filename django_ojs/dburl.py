"""A database URL as an entry of Django's `DATABASES`: for `ojs_testserver`, the example project and the tests.

    sqlite:///db.sqlite3                                relative to `base`
    sqlite:////var/lib/site/db.sqlite3                  absolute
    postgres://user:p%40ss@host:5432/name?sslmode=require&conn_max_age=600
    postgres:///name?host=/var/run/postgresql           a socket
    mysql://root@127.0.0.1:3306/name

Names and passwords are percent-decoded. Of the query, `conn_max_age`, `conn_health_checks` and
`atomic_requests` are settings of Django; everything else is an option of the database driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

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
#: kept unless the URL asks, by `?pool=true` (PostgreSQL) or, under WSGI and in workers, `?conn_max_age=60`.
SERVER_SETTINGS: dict[str, Any] = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
DJANGO_KEYS = {"conn_max_age", "conn_health_checks", "atomic_requests", "disable_server_side_cursors"}


def parse(url: str, base: Path) -> dict[str, Any]:
    """The `DATABASES` entry for `url`. Raises ValueError, without the password, if it cannot be read."""
    parts = urlsplit(url)
    if parts.scheme not in ENGINES or not parts.path.strip("/"):
        raise ValueError(f"A database URL is <{'|'.join(ENGINES)}>://[user:password@host:port]/name, see {__name__}.")
    query = {key: _value(text) for key, text in parse_qsl(parts.query)}
    config: dict[str, Any] = {"ENGINE": ENGINES[parts.scheme], "NAME": unquote(parts.path[1:])}
    if parts.scheme == "sqlite":
        config["NAME"] = base / config["NAME"]
        config["OPTIONS"] = dict(SQLITE_OPTIONS)
    else:
        config |= SERVER_SETTINGS | {
            "HOST": unquote(parts.hostname or ""),
            "PORT": parts.port or "",
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "OPTIONS": {"charset": "utf8mb4"} if ENGINES[parts.scheme].endswith("mysql") else {},
        }
    config |= {key.upper(): query.pop(key) for key in DJANGO_KEYS & query.keys()}
    config["OPTIONS"] |= query
    return config


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


def _value(text: str) -> Any:
    """`true`, `false`, `none` and whole numbers of a query as what they mean."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if text.lstrip("-").isdigit() else text
