"""What is tested with which Python, Django and database: for people, for `.ci/run` and for the workflows on GitHub.

    nox                           the fast tests on SQLite with each Python that is here, lint and types
    nox -s postgres -- -k retry   one session; what follows `--` goes to pytest
    nox -l                        all sessions

A session makes an environment of its own below .nox; `nox --no-venv --no-install -s …` takes the one that is active.
Servers: OJS_TEST_POSTGRES_URL, OJS_TEST_MARIADB_URL and OJS_TEST_REDIS_URL say where they are, if not on the usual
ports of this machine; a session makes databases of its own there.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests", "lint", "types"]

#: Python: the Django that it is tested with.
DJANGO = {"3.11": "5.2", "3.12": "6.0", "3.13": "6.1"}
OLDEST = min(DJANGO)

#: Everything, with `OJS_CI_WIDE`; else what each change has to pass.
WIDE = bool(os.environ.get("OJS_CI_WIDE"))
EACH = "not conformance" if WIDE else "not wide and not conformance"

#: The parts of the suite that the framework below us can break, by its version: what it renders, parses, checks,
#: migrates and runs. The others ask the ORM for what these ask it for, too.
CHECKED = "alerts api auth sites tasks testkit test_migrations.py"
REQUESTS = " ".join(
    f"http/test_{name}.py" for name in ("admin", "body", "failures", "headers", "jobs", "lists", "site")
)
PAGES = " ".join(
    f"admin/test_{name}.py" for name in ("approval_mail", "joblist", "lookups", "pages", "safety", "verbs")
)
RENDERED = f"{CHECKED} {PAGES} commands dashboard {REQUESTS}"
#: What Django 6.0 brought, and what it has otherwise than both 5.2 and 6.1.
BROUGHT = "sites tasks test_migrations.py"
FRAMEWORK = f"{CHECKED} admin commands dashboard durable http realtime worker"
#: Those whose statements one database can take otherwise than another.
SQL = (
    "events operations outbox processes queues scheduler sql statistics test_migrations.py webhooks"
    " worker/test_large_texts.py"
)
#: PostgreSQL, which most sites have: these, too, and what comes to the database by statements of its own.
SQL_OF_MOST = f"{SQL} doctor durable growth history"
DOORS = (
    "admin/test_lookups.py admin/test_nul.py api/test_checks.py commands grpc/test_claims.py grpc/test_process.py"
    " realtime rights/test_standby.py sites/test_tenants.py telemetry/test_metrics.py worker"
)
FILTERED = (
    "admin_searches bulk declared_filters execution_history failures idempotency jobs lists logs patterns"
    " replay_rules round_trips workers"
)
DOORS = " ".join([DOORS, *(f"http/test_{name}.py" for name in FILTERED.split())])


def parts(names: str) -> list[str]:
    return [f"tests/{name}" for name in names.split()]


#: What of the fast tests runs on SQLite with each Python. Those that use no database run once.
FAST = {
    "3.11": ["-m", "not slow"],
    "3.12": ["-m", "database and not slow", *parts(FRAMEWORK if WIDE else BROUGHT)],
    "3.13": ["-m", "database and not slow", *([] if WIDE else parts(RENDERED))],
}

#: What `wheel` asks the Python that it installed the package for.
INSTALLED = """
import pathlib, django_ojs
here = pathlib.Path(django_ojs.__file__).parent
assert here.parent.name == "site-packages" and (here / "py.typed").exists(), here
"""

#: Slow ones run with one Python: those with a database on PostgreSQL, a few of them (`sqlite_too`) on SQLite as well.
SLOW = ["-m", f"slow and {EACH} and (not database or sqlite or sqlite_too or once)"]
ELSEWHERE = f"database and not sqlite and not once and {EACH}"
ON_POSTGRES = ["-m", ELSEWHERE, *([] if WIDE else parts(f"{SQL_OF_MOST} {DOORS}"))]
ON_MARIADB = ["-m", f"{ELSEWHERE} and (not slow or mariadb)", *([] if WIDE else parts(SQL))]
PUBLISHED = ["-m", "conformance" if WIDE else "conformance and not wide", *parts("conformance")]


def install(session: nox.Session, *extras: str, groups: Sequence[str] = ()) -> None:
    """The package in place, with the Django that belongs to the session's Python, and groups of dependencies."""
    python = session.python if isinstance(session.python, str) else OLDEST
    session.install("--upgrade", "pip>=25.1")  # the pip of Python 3.11 knows no groups; uv makes environments without
    named = [argument for group in groups for argument in ("--group", group)]
    session.install("-e", f".[{','.join(extras)}]" if extras else ".", f"Django~={DJANGO[python]}.0", *named)


def pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    session.run("pytest", *arguments, *session.posargs, env=environment)


@nox.session(python=list(DJANGO))
def tests(session: nox.Session) -> None:
    """The fast tests, on SQLite."""
    if session.python == OLDEST:  # the gate runs its other sessions there, with --no-venv
        install(session, "test", "postgres", "mysql", "redis", groups=["dev", "docs"])
    else:
        install(session, "test")
    pytest(session, *FAST[str(session.python)])


@nox.session(python=OLDEST)
def slow(session: nox.Session) -> None:
    """The slow tests that use no database, and those marked sqlite_too."""
    install(session, "test")
    pytest(session, "-n", "3", *SLOW)  # they wait for processes more than they work


@nox.session(python=OLDEST)
def postgres(session: nox.Session) -> None:
    """The tests that use a database, slow ones too, on PostgreSQL, with Redis below the channel layer."""
    install(session, "test", "postgres", "redis")
    pytest(session, "-n", "4", *ON_POSTGRES, **postgres_urls())  # they wait for the server more than they work


@nox.session(python=OLDEST)
def statements(session: nox.Session) -> None:
    """The fast tests of statements, on PostgreSQL: for versions that nothing else is tested with."""
    install(session, "test", "postgres")
    pytest(session, "-n", "2", "-m", f"not slow and {ELSEWHERE}", *parts(SQL_OF_MOST), **postgres_urls())


@nox.session(python=OLDEST)
def mariadb(session: nox.Session) -> None:
    """The tests that use a database, on MariaDB."""
    install(session, "test", "mysql")
    pytest(session, "-n", "3", *ON_MARIADB, OJS_TEST_DATABASE_URL=mariadb_url())


@nox.session(python=OLDEST)
def conformance(session: nox.Session) -> None:
    """The published conformance cases (OJS_CONFORMANCE_DIR), on SQLite."""
    install(session, "test")
    pytest(session, "-n", "2", *PUBLISHED)


@nox.session(venv_backend="none")
def wide(session: nox.Session) -> None:
    """Everything that the gate leaves out, too: before an issue is closed, and each night."""
    session.run("bash", ".ci/run", "wide", *session.posargs, external=True)


@nox.session(python=[OLDEST, max(DJANGO)])
@nox.parametrize("database", ["sqlite", "postgres", "mariadb"])
def nightly(session: nox.Session, database: str) -> None:
    """All tests on one database, in the full size: 20,000 jobs, ten years of time zone changes."""
    install(session, "test", "postgres", "mysql", "redis")
    urls = {"sqlite": {}, "postgres": postgres_urls(), "mariadb": {"OJS_TEST_DATABASE_URL": mariadb_url()}}[database]
    select = "" if database == "sqlite" else "database"
    pytest(session, "-n", "4", "-m", select, "--timeout", "3600", OJS_TEST_FULL="1", **urls)


@nox.session(python=OLDEST)
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install("ruff>=0.15")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=OLDEST)
def types(session: nox.Session) -> None:
    """mypy, strict."""
    install(session, "test", groups=["dev"])
    session.run("mypy", *session.posargs)


@nox.session(python=OLDEST)
def django(session: nox.Session) -> None:
    """Django's checks of the example project, and no change of a model without its migration."""
    install(session, "demo")
    environment = {"DATABASE_URL": f"sqlite:///{Path(session.create_tmp()).resolve()}/check.sqlite3"}
    session.run("python", "manage.py", "makemigrations", "--check", "--dry-run", env=environment)
    session.run("python", "manage.py", "check", "--fail-level", "WARNING", env=environment)


@nox.session(python=OLDEST)
def docs(session: nox.Session) -> None:
    """The documentation, with warnings as errors, in docs/_build/html or where `--` says."""
    install(session, groups=["docs"])
    target = session.posargs or ["docs/_build/html"]
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs", *target)


@nox.session(python=list(DJANGO))
def wheel(session: nox.Session) -> None:
    """The wheel in an empty folder, by docs/tutorial.md word by word, as the one who installs it would."""
    session.install("build>=1.2")
    with tempfile.TemporaryDirectory() as name:  # nothing of this checkout can be seen there
        session.run("python", "-m", "build", "--wheel", "--outdir", f"{name}/dist", ".", silent=True)
        (built,) = Path(name, "dist").glob("*.whl")
        series = DJANGO[str(session.python)]
        options = ["--package", str(built), "--django", series, "--folder", f"{name}/site"]
        session.run("python", ".ci/tutorial.py", *options)
        with session.chdir(f"{name}/site"):
            session.run(".venv/bin/pip", "check", external=True)
            python = (".venv/bin/python",)
            session.run(*python, "manage.py", "makemigrations", "--check", "--dry-run", external=True)
            session.run(*python, "-c", INSTALLED, external=True)
        if session.python in (OLDEST, max(DJANGO)):  # the site above is what each Python and Django could break
            runner(session, Path(name), f"{built}[server]")


def runner(session: nox.Session, folder: Path, server: str) -> None:
    """The wheel of the conformance runner, alone in an environment, against a server of the site above."""
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder), "packages/ojs-conformance", silent=True)
    (built,) = folder.glob("ojs_conformance-*.whl")
    session.run("python", "-m", "venv", f"{folder}/alone", silent=True)
    alone, site = f"{folder}/alone/bin", f"{folder}/site/.venv/bin/python"
    session.run(f"{alone}/pip", "install", "--quiet", str(built), external=True)
    session.run(site, "-m", "pip", "install", "--quiet", server, external=True)
    with subprocess.Popen(  # noqa: S603 - the environment that was made above
        [site, "manage.py", "ojs_testserver", "--port", "0"], cwd=f"{folder}/site", stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:1] != ["ready"]:
            session.error("The test server did not start.")
        options = ["--target", words[1], "--reset", "/ojs/v1/admin/reset", "--test", "L0-101"]
        cases = str(Path("tests/conformance/cases").resolve())
        try:
            session.run(f"{alone}/ojs_conformance", "--suites", cases, *options, external=True)
        finally:
            process.terminate()


@nox.session(python=["3.12", "3.13"])
def djangotasks(session: nox.Session) -> None:
    """Django's own tests of its Tasks framework, on our backend."""
    install(session, "test")
    session.run("python", ".ci/django_tasks.py", *session.posargs)


def postgres_urls() -> dict[str, str]:
    return {
        "OJS_TEST_DATABASE_URL": os.environ.get("OJS_TEST_POSTGRES_URL", "postgres://postgres@127.0.0.1:5432/ojs_nox"),
        "OJS_TEST_REDIS_URL": os.environ.get("OJS_TEST_REDIS_URL", "redis://127.0.0.1:6379/15"),
    }


def mariadb_url() -> str:
    return os.environ.get("OJS_TEST_MARIADB_URL", "mysql://root@127.0.0.1:3306/ojs_nox")
