"""The jobs of this site. All of them do what they say; those that fail have a reason to.

`ojs_worker` finds this module by its name. `demo/load.py` enqueues the jobs, and so can you:

    from example_project.jobs import hash_module
    hash_module.enqueue("json/decoder.py").wait().result
"""

from __future__ import annotations

import asyncio
import collections
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from django.core.mail import send_mail
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.text import slugify

from django_ojs import JobContext, JobHandle, Snooze, get_job, job
from django_ojs.errors import NotFound, OJSError
from example_project import library, paths

KEPT_FILES = 100  #: how many mails, and how many reports, the demo keeps
LISTED = 5  #: modules of a list that is published


class ChecksumMismatch(Exception):
    """A copy that is not what was copied."""


@job("files.hash", queue="files", retry={"max_attempts": 2, "initial_interval": "2s"}, timeout=30)
def hash_module(module: str) -> dict[str, Any]:
    """The SHA-256 of a module. One that this Python does not have any more fails, however often it is tried."""
    return library.describe(module, library.path_of(module).read_bytes())


@job("files.count", queue="files", retry={"max_attempts": 2, "initial_interval": "2s"}, timeout=30)
def count_words(module: str) -> dict[str, Any]:
    return {"module": module} | library.words(library.path_of(module).read_bytes())


@job("files.comments", queue="files", retry={"non_retryable_errors": ["ZeroDivisionError"]}, timeout=30)
def lines_per_comment(module: str) -> float:
    """Not every module has a comment, and trying again gives it none: straight to the dead letter queue."""
    found = library.comments(library.path_of(module).read_bytes())
    return round(found["lines"] / found["comments"], 1)


@job("files.copy", queue="files", retry={"max_attempts": 3, "initial_interval": "1s"}, timeout=30)
def copy_module(module: str) -> str:
    """Copy a module and compare. Three in ten copies are cut short, as on a disk that is full."""
    source = library.path_of(module).read_bytes()
    cut = len(source) // 2 if random.random() < 0.3 else len(source)  # noqa: S311 - decides nothing secret
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy.write_bytes(source[:cut])
        arrived = library.checksum(copy.read_bytes())
    if arrived != library.checksum(source):
        raise ChecksumMismatch(f"{module}: {cut} of {len(source)} bytes arrived.")
    return arrived


@job("files.names", queue="slow", timeout="5m")
def count_names(context: JobContext, package: str = "") -> dict[str, Any] | None:
    """The names used most in a package, or in the whole library: some seconds of work, with progress."""
    modules = library.package(package) if package else library.modules()
    found: collections.Counter[str] = collections.Counter()
    for number, module in enumerate(modules):
        if not context.progress(100 * number / len(modules), module):
            return None
        try:
            found.update(library.names(library.path_of(module).read_bytes()))
        except SyntaxError:  # the library has files that are wrong on purpose, to test with
            context.log.info("%s cannot be read as Python.", module)
    return {"modules": len(modules), "names": dict(found.most_common(20))}


@job("http.probe", queue="probes", priority="HIGH", retry={"max_attempts": 3, "initial_interval": "500ms"}, timeout=5)
async def probe(port: int) -> dict[str, Any]:
    """Ask an OJS server on this machine how it is. If no server listens there, the connection is refused."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /ojs/v1/health HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        status = (await reader.readline()).decode().split()[1]
    finally:
        writer.close()
    return {"status": int(status), "milliseconds": round((time.perf_counter() - started) * 1000, 1)}


@job("report.render", queue="reports", retry={"max_attempts": 3, "initial_interval": "1s"}, timeout=60)
def render_report(context: JobContext, package: str, jobs: list[str], reminder: str) -> str:
    """Write a page with the results of other jobs, send word of it, and cancel the reminder."""
    handles = [handle for handle in map(_find, jobs) if handle is not None]
    if not all(handle.is_finished for handle in handles):
        raise Snooze("2s")
    report = _folder("reports") / f"{slugify(package) or 'report'}.html"
    facts = {"package": package, "rows": _rows(handles), "made_at": timezone.now(), "library": library.ROOT}
    page = render_to_string("example_project/report.html", facts | {"meta": context.meta})
    report.write_text(page, encoding="utf-8")
    with transaction.atomic():  # both or neither
        send_message.enqueue("reader@example.com", f"Report: {package}", f"It is in {report.name}.")
        _cancel(reminder)
    return report.name


@job("mail.send", queue="mail", retry={"max_attempts": 5, "initial_interval": "2s"}, timeout=30)
def send_message(to: str, subject: str, text: str) -> None:
    send_mail(subject, text, None, [to])


@job("list.publish", queue="reports", durable=True)
def publish_list(context: JobContext, package: str) -> str:
    """List the checksums of a package, ask a person, and publish the list. A restart of the worker costs nothing."""
    modules = library.package(package)[:LISTED]
    found = context.run_all([hash_module.s(module) for module in modules], limit=2)
    context.sleep("5s")
    title, details = f"Publish the list of {package}?", {"modules": modules}
    decision = context.wait_for_approval("publish", title=title, details=details, timeout="1h", default=False)
    if not decision.approved:
        return "It is not published."
    name = context.step("write", _write_list, package, found)
    context.step_transaction("tell", _tell_of_list, package, name)
    return name


@job("demo.tidy", timeout=60)
def tidy() -> int:
    """Delete all but the newest mails and reports; how many."""
    surplus = [path for folder in ("mail", "reports") for path in _newest_first(_folder(folder))[KEPT_FILES:]]
    for path in surplus:
        path.unlink(missing_ok=True)
    return len(surplus)


def _write_list(package: str, found: list[dict[str, Any]]) -> str:
    file = _folder("reports") / f"{slugify(package)}-list.txt"
    file.write_text("".join(f"{row['sha256']}  {row['module']}\n" for row in found), encoding="utf-8")
    return file.name


def _tell_of_list(package: str, name: str) -> None:
    send_message.enqueue("reader@example.com", f"List: {package}", f"It is in {name}.")


def _rows(handles: list[JobHandle]) -> list[dict[str, Any]]:
    """What is known of each module: the results of all jobs about it, or the error of one that has none."""
    rows: dict[str, dict[str, Any]] = {}
    for handle in handles:
        row = rows.setdefault(handle.args[0], {"module": handle.args[0]})
        row.update(handle.result or {"error": (handle.error or {}).get("message", handle.state)})
    return sorted(rows.values(), key=lambda row: str(row["module"]))


def _find(id: str) -> JobHandle | None:
    try:
        return get_job(id)
    except NotFound:  # finished so long ago that it has been pruned
        return None


def _cancel(id: str) -> None:
    try:
        get_job(id).cancel("The report is ready.")
    except OJSError:  # sent already, because the report was late
        return


def _folder(name: str) -> Path:
    folder = paths.DATA_DIR / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
