"""No block is there that nobody runs, but for those that are listed here with the reason."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks, name
from tests.docs.reading import steps

pytestmark = pytest.mark.sqlite  # no database is asked

#: Pages that a test of their own, or a step of the gate, follows whole: what it says, and where.
FOLLOWED = {
    "docs/tutorial.md": (".ci/tutorial.py", "tutorial.md"),
    "docs/testing.md": ("tests/testkit/test_docs.py", "testing.md"),
    "docs/second-database.md": ("tests/outbox/test_docs.py", "second-database.md"),
    "docs/webhooks.md": ("tests/webhooks/test_docs.py", "webhooks.md"),
    **{
        f"docs/{page}.md": ("tests/howto/test_pages.py", f'"{page}"')
        for page in ("cron", "rate-limits", "unique-jobs", "workflows")
    },
    **{
        f"docs/how-to/{page}.md": ("tests/howto/test_pages.py", f"how-to/{page}")
        for page in (
            "async-handlers", "deploys", "durable-orders", "maintenance", "own-viewset", "queues-and-machines",
            "transactions",
        )
    },
    "docs/coming-from/durable-execution.md": ("tests/howto/test_pages.py", "coming-from/durable-execution"),
    **{
        f"docs/coming-from/{page}.md": ("tests/howto/test_moving.py", f"coming-from/{page}")
        for page in (
            "apscheduler", "celery", "django-background-tasks", "django-q2", "django-tasks-db", "huey", "procrastinate",
            "rq",
        )
    },
    "docs/coming-from/dramatiq.md": ("tests/howto/test_pages.py", '"dramatiq"'),
}  # fmt: skip

#: Pages whose files, the blocks with a title, are run by a test of their own.
TITLED = {
    "docs/how-to/webhooks.md": ("tests/webhooks/test_how_to.py", "how-to/webhooks"),
    "docs/how-to/other-languages.md": ("tests/howto/test_other_languages.py", "other-languages"),
    "docs/how-to/grpc.md": ("tests/howto/test_grpc.py", "how-to/grpc"),
}

HOST = (
    "it sets up a machine; tests/test_production_files.py looks at its files, test_blocks at the calls of our commands"
)
THEIRS = "it is what one comes from, of a package that is not here; test_blocks compiles it"

CONTRIBUTING = ("CONTRIBUTING.md", "docs/contributing.md")
INSTALL = ".venv/bin/pip install -e '.[test]' --group dev --group docs"

#: What is not run, by page and first line, and why.
NOT_RUN = {
    **dict.fromkeys(
        [("docs/observability.md", "import dataclasses"), ("docs/observability.md", "from django.urls import path")],
        "it needs the package django-health-check; tests/howto/test_health_checks.py plays the package",
    ),
    ("docs/coming-from/index.md", "Celery: docs/coming-from/celery.md"): (
        "it is about a code base of the reader's; tests/commands/test_moving_in.py looks at such output"
    ),
    (
        "README.md",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[demo]' && .venv/bin/python manage.py ojs_demo",
    ): ("it installs packages; the step `readme` of the gate types it, in a fresh clone"),
    ("README.md", "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"): (
        "it runs this test; the step `tests` of the gate types it"
    ),
    ("docs/architecture.md", "Python code ── client/ ─┐"): "it is a drawing",
    (
        "docs/production/database.md",
        "DATABASES = {",
    ): "it needs two servers; tests/http/test_failures.py reads such URLs",
    (
        "docs/production/database.md",
        (
            "postgres://shop@db1.internal:5432,db2.internal:5432/shop?target_session_attrs=read-write&connect_timeout=3"
            "&keepalives_idle=10&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=25000"
        ),
    ): "two servers; tests/http/test_failures.py reads such URLs",
    ("docs/worker.md", "Stopping (SIGINT): 2 jobs are running. Press Ctrl-C again to stop at once."): (
        "a worker says it: tests/worker/test_processes.py::test_a_stop_is_told_in_one_line_with_the_way_to_stop_at_once"
    ),
    **dict.fromkeys(
        [(page, f"python3 -m venv .venv && .venv/bin/pip install -U pip && {INSTALL}") for page in CONTRIBUTING],
        "it installs packages and runs this test; the gate does the same in its first steps",
    ),
    ("README.md", "pip install django-ojs"): (
        "it installs the package; the step `wheel` of the gate installs its own wheel"
    ),
    ("docs/contributing.md", ".venv/bin/nox -s tests-3.13                              # fast tests with Django 6.1"): (
        "it runs this test; the gate runs the same sessions"
    ),
    ("docs/contributing.md", "OJS_TEST_WRITE_SQL=1 .venv/bin/pytest tests/sql"): (
        "tests/sql compares the files that it writes"
    ),
    ("docs/contributing.md", ".venv/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html"): (
        "the step `docs` of the gate runs it"
    ),
    ("docs/contributing.md", ".venv/bin/python -m docs.ojsdocs"): "test_reference compares the files that it writes",
    ("docs/events.md", 'const source = new EventSource("/ojs/v1/events/stream?types=job.*&queues=mail");'): (
        "it needs a browser; tests/realtime/test_sse_processes.py has an EventSource in one"
    ),
    ("docs/events.md", "from django_ojs.events.filters import Filter"): (
        "it never ends by itself; tests/realtime/test_docs.py runs it and ends it"
    ),
    ("docs/logs.md", "POST /ojs/v1/jobs/01990000-0000-7000-8000-000000000000/logs"): (
        "it needs a job that runs; tests/http/test_logs.py sends such lines"
    ),
    ("docs/how-to/grpc.md", 'OJS = {"GRPC": True}'): "the servers of tests/howto/test_grpc.py and tests/grpc have it",
    ("docs/how-to/grpc.md", "pip install grpcio-tools"): (
        "it installs a package; tests/howto/test_grpc.py makes the same code"
    ),
    ("docs/how-to/grpc.md", "npm install @grpc/grpc-js @grpc/proto-loader"): (
        "it installs packages; tests/howto/test_grpc.py uses them where they are"
    ),
    ("docs/how-to/other-languages.md", "OJS_URL=http://127.0.0.1:8000 OJS_KEY=ojs_… python3 worker.py"): (
        "tests/howto/test_other_languages.py starts the same program against a server of its own"
    ),
    ("docs/how-to/other-languages.md", "OJS_URL=http://127.0.0.1:8000 OJS_KEY=ojs_… node worker.mjs"): (
        "tests/howto/test_other_languages.py starts the same program against a server of its own"
    ),
    (
        "docs/production/containers.md",
        "export DJANGO_SECRET_KEY=$(openssl rand -hex 32) POSTGRES_PASSWORD=$(openssl rand -hex 16)",
    ): HOST,
    ("docs/production/database.md", "pool_mode = transaction"): "it is a line of files/pgbouncer.ini",
    ("docs/production/systemd.md", "useradd --system --home-dir /srv/shop shop"): HOST,
    (
        "docs/production/upgrades.md",
        "cd /srv/shop/releases/43  # with a .venv of its own, as for the first release",
    ): HOST,
    ("docs/production/upgrades.md", "createdb shop"): HOST,
    ("docs/production/web.md", "location /shop/ {"): "nginx reads it: tests/realtime/test_reconnecting.py starts one",
    ("docs/production/upgrades.md", 'python manage.py ojs_maintenance on --reason "we move"'): (
        "it needs a second database; tests/sites/test_fixtures.py does the same"
    ),
}


def how(block: Block) -> str:
    """What is done with a block; "" if nothing is."""
    page = name(block.page)
    if block.language.startswith("{") or block.language in ("mermaid", "json", "markdown"):
        return "not code, or parsed by test_blocks"
    if "run" in block.words:
        return "run by test_running"
    if page == "docs/reference/python.md" and block.words == ("signature",):
        return "made of the code by docs/ojsdocs; test_blocks compiles it"
    if page.startswith("docs/coming-from/") and "before" in block.words:
        return ""
    if page in TITLED and any(word.startswith("title=") for word in block.words):
        return f"run by {TITLED[page][0]}"
    if page in FOLLOWED:
        return f"followed by {FOLLOWED[page][0]}"
    lines = [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip() and line[0] != "#"]
    if block.language != "python" and lines and all(re.match(_PARSED, line) for line in lines):
        return "parsed by the command's own parser, or asked of the URLconf, in test_blocks"
    return ""


_PARSED = r"(\$ )?(python )?manage\.py |(GET|POST|PUT|DELETE) /|\{.*\}$"


def key(block: Block) -> tuple[str, str]:
    return name(block.page), block.text.partition("\n")[0]


def why_not(block: Block) -> str:
    theirs = block.page.parent.name == "coming-from" and "before" in block.words
    return THEIRS if theirs else NOT_RUN.get(key(block), "")


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert bool(how(block)) != bool(why_not(block)), how(block) or "mark it `run`, or say in NOT_RUN why it cannot"


def test_the_reasons_are_about_blocks_that_are_there() -> None:
    assert NOT_RUN.keys() - {key(block) for block in all_blocks()} == set()
    assert all(NOT_RUN.values())


@pytest.mark.parametrize("page", sorted(FOLLOWED | TITLED))
def test_who_follows_a_page_speaks_of_it(page: str) -> None:
    file, word = (FOLLOWED | TITLED)[page]
    assert word in (ROOT / file).read_text(encoding="utf-8")
    assert blocks(ROOT / page)


def test_a_new_block_does_not_slip_in() -> None:
    assert how(Block(PAGES[0], 1, "python", (), "x = 1")) == ""
    assert how(Block(PAGES[0], 1, "sh", (), "rm -r x")) == ""
    assert how(Block(PAGES[0], 1, "sh", (), "manage.py ojs_status\nrm -r x")) == ""
    assert steps(Block(PAGES[0], 1, "sh", ("run",), "manage.py ojs_status"))
