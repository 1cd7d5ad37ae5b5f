"""Take the pictures of docs/screenshots/: every page, light and dark, on a wide screen and on a phone.

    python docs/screenshots.py [directory] [page ...]

That is all: it runs the demo on a database of its own for a while, does what operators do, takes the pictures and
stops it again; two to three minutes on an idle machine. With names of pages it takes only these. WARM_UP=600 lets the
demo work for ten minutes first, for fuller charts. Needs the extras `demo` and `test`, and Chromium (CHROMIUM names
it; default /usr/bin/chromium). The files are called `page-theme-width.png`.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "docs" / "screenshots"
WARM_UP = float(os.environ.get("WARM_UP", "45"))  #: seconds that the demo works before the first picture
THEMES, WIDTHS = ("light", "dark"), (1440, 390)
#: A page is taken as far as it goes, but not further than this.
HEIGHTS = {1440: 960, 390: 960}

WORKFLOW = {
    "name": "publish the report",
    "steps": [
        {"id": "collect", "type": "demo.tidy", "args": []},
        {"id": "hash", "type": "files.hash", "args": ["json/decoder.py"], "depends_on": ["collect"]},
        {"id": "count", "type": "files.hash", "args": ["json/encoder.py"], "depends_on": ["collect"]},
        {"id": "scan", "type": "files.hash", "args": ["no/such/file.py"], "depends_on": ["collect"],
         "options": {"retry": {"max_attempts": 1}}},
        {"id": "render", "type": "demo.tidy", "args": [], "depends_on": ["hash", "count"]},
        {"id": "mail", "type": "demo.tidy", "args": [], "depends_on": ["render", "scan"]},
    ],
}  # fmt: skip
LARGE = {
    "type": "batch", "name": "a thousand", "jobs": [{"type": "demo.tidy", "args": []} for _ in range(1000)],
    "callbacks": {"on_complete": {"type": "demo.tidy", "args": []}},
}  # fmt: skip
SCHEDULES = [
    {"name": "tidy-up", "cron": "30 2 * * mon-fri", "timezone": "Europe/Paris", "type": "demo.tidy", "args": [],
     "description": "Deletes old mails and reports."},
    {"name": "every-ten-seconds", "cron": "@every 10s", "type": "demo.tidy", "args": []},
    {"name": "monthly-report", "cron": "0 6 1 * *", "timezone": "America/New_York", "type": "files.names", "args": []},
]  # fmt: skip
SWITCH = "/ojs/v1/admin/system/maintenance"
#: The demo's settings, and leave to send webhooks to this machine.
SETTINGS = """
from example_project.settings import *
OJS |= {"WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"], "ALERTS": {"every": "5s"}}
"""
#: Two bulk actions: one that the demo's scheduler carries out, and one that was stopped.
BULK = """
from django_ojs.jobs import bulk
from django_ojs.audit import Act
from django_ojs.jobs.selection import dead_letters
by = Act("user:demo", "job.bulk_retry", door="admin")
bulk.cancel_action(bulk.start_action("retry", dead_letters(type="mail.*"), by).pk)
bulk.start_action("retry", dead_letters(type="files.hash"), by, override={"queue": "slow"})
"""
#: Where this machine keeps Python and the checkout is nobody's business, in what live parts bring later neither.
ANONYMOUS = """host => {
  const clean = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode;
      const said = text.data.replace(/(?:\\/[\\w.#-]+)+\\/(?=lib\\/python|example_project\\/)/g, "/srv/")
        .replaceAll(`${host}:`, "web-1:").replace(new RegExp(`^${host}$`), "web-1");
      if (said !== text.data) text.data = said;
    }
  };
  clean();
  new MutationObserver(clean).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""
#: A picture as a palette of at most 128 colours and a byte for each pixel: those of most pixels, and of the others
#: those that are unlike the ones before, since the colours that stand for something are on few pixels.
PALETTE = """async source => {
  const image = await createImageBitmap(await (await fetch(source)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const far = (a, b) => [0, 8, 16].reduce((sum, bit) => sum + ((a >> bit & 255) - (b >> bit & 255)) ** 2, 0);
  const common = [...counts].sort((a, b) => b[1] - a[1]).map(([colour]) => colour);
  let palette = [];
  for (let unlike = 8; !palette.length || palette.length > 128; unlike *= 1.5) {
    palette = common.slice(0, 48);
    for (const colour of common) if (palette.every(one => far(one, colour) > unlike)) palette.push(colour);
  }
  const nearest = new Map(common.map(colour => [colour,
    palette.reduce((best, one, index) => far(one, colour) < far(palette[best], colour) ? index : best, 0)]));
  const found = Uint8Array.from(pixels, pixel => nearest.get(pixel));
  const reader = new FileReader();
  await new Promise(done => { reader.onload = done; reader.readAsDataURL(new Blob([found])); });
  return {width: image.width, height: image.height, pixels: reader.result.split(",")[1],
          palette: palette.flatMap(colour => [colour & 255, colour >> 8 & 255, colour >> 16 & 255])};
}"""


def main(directory: Path, wanted: list[str]) -> None:
    """Run the demo, log in, and take every page in every size and theme."""
    directory.mkdir(parents=True, exist_ok=True)
    with demo() as (base, password, receiver), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        page = browser.new_page()
        page.goto(f"{base}/admin/")
        page.fill("#id_username", "demo")
        page.fill("#id_password", password)
        page.click("[type=submit]")
        operate(page, base, receiver)
        pages = addresses(page, base)
        if unknown := set(wanted) - set(pages):
            sys.exit(f"No such page: {', '.join(sorted(unknown))}. There are {', '.join(pages)}.")
        blank = browser.new_page()
        for name in wanted or pages:
            if name == "maintenance":
                post(base, SWITCH, {"enabled": True, "reason": "New disks for the database", "duration": "45m"})
            take(page, blank, pages[name], directory / name)
            if name == "maintenance":
                post(base, SWITCH, {"enabled": False})
        browser.close()


@contextlib.contextmanager
def demo() -> Iterator[tuple[str, str, str]]:
    """The demo with a fresh database: its address, the password of its user, and an address for webhooks."""
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "screenshots_settings.py").write_text(SETTINGS)
        environment = {
            **os.environ, "DJANGO_DATA_DIR": folder, "PYTHONPATH": folder,
            "DJANGO_SETTINGS_MODULE": "screenshots_settings",
        }  # fmt: skip
        command = [sys.executable, "manage.py", "ojs_demo", "--port", str(port)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            base = f"http://127.0.0.1:{port}"
            prepare(process, base)
            subprocess.run([sys.executable, "manage.py", "shell", "-c", BULK], cwd=ROOT, env=environment, check=True)  # noqa: S603
            address = f"http://127.0.0.1:{receiver.server_port}/hooks/jobs"
            yield base, Path(folder, "admin-password").read_text().strip(), address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            receiver.shutdown()


def prepare(process: subprocess.Popen[bytes], base: str) -> None:
    """Wait for the demo, give it workflows and schedules, and let it work for a while."""
    late = time.monotonic() + 120
    while not answers(f"{base}/ojs/v1/health"):
        if process.poll() is not None or time.monotonic() > late:
            sys.exit("The demo does not start.")
        time.sleep(0.5)
    for schedule in SCHEDULES:
        post(base, "/ojs/v1/cron", schedule)
    post(base, "/ojs/v1/workflows", LARGE)
    time.sleep(WARM_UP)
    post(base, "/ojs/v1/workflows", WORKFLOW)
    post(base, "/ojs/v1/jobs", {"type": "demo.tidy", "args": [], "scheduled_at": "2099-01-01T00:00:00Z"})
    time.sleep(5)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes webhooks, but for every seventh."""

    number = 0

    def do_POST(self) -> None:
        Receiver.number += 1
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(503 if Receiver.number % 7 == 3 else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()  # noqa: S310
    except (urllib.error.URLError, OSError):
        return False
    return True


def post(base: str, path: str, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    request = urllib.request.Request(f"{base}{path}", body, {"Content-Type": "application/json"})  # noqa: S310
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


def operate(page: Page, base: str, receiver: str) -> None:
    """What leaves entries in the audit log, and rows on the pages of keys and webhooks."""
    admin = f"{base}/admin/django_ojs"
    page.goto(f"{admin}/webhooksubscription/add/")
    page.fill("#id_url", receiver)
    page.fill("#id_events", "job.failed\nqueue.*")
    page.click("[name=_save]")
    for name, scopes in (("billing service", ("push", "read")), ("dashboard on the wall", ("read",))):
        page.goto(f"{admin}/apikey/add/")
        page.fill("#id_name", name)
        for scope in scopes:
            page.check(f"#id_scopes input[value={scope}]")
        page.click("[name=_save]")
    for queue in ("probes", "slow"):
        page.goto(f"{admin}/queue/{queue}/do/pause_queues/")
        page.click("#content [type=submit]")
    page.goto(f"{admin}/queue/probes/do/resume_queues/")
    page.click("#content [type=submit]")
    page.goto(f"{admin}/job/overview/")
    page.fill("#ojs-reason", "the mail host is being moved")
    page.click("#ojs-queue-mail")
    page.locator("[data-ojs-said] li").wait_for()


def addresses(page: Page, base: str) -> dict[str, str]:
    """The pages by their names; a page about one object is that of the first in its list."""
    admin = f"{base}/admin/django_ojs"
    jobs = f"{admin}/job"

    def first(address: str, link: str = "#result_list tbody th a") -> str:
        late = time.monotonic() + 120
        page.goto(f"{admin}/{address}")
        while (
            not page.locator(link).count() and time.monotonic() < late
        ):  # on a busy machine the first alert comes later
            time.sleep(1)
            page.reload()
        return str(page.locator(link).first.evaluate("link => link.href"))

    letter = first("job/?state=dead_letter")
    asked = first("approval/")
    return {
        "overview": f"{jobs}/overview/",
        "jobs": f"{jobs}/",
        "job": letter,
        "job-cancel": first("job/?state=scheduled&type=demo.tidy").replace("change/", "do/cancel_jobs/"),
        "job-retry": letter.replace("change/", "edit/"),
        "dead-letters": f"{jobs}/dead-letters/",
        "dead-letters-filtered": f"{jobs}/dead-letters/?type=files.hash",
        "dead-letters-retry-all": f"{jobs}/dead-letters/all/retry_dead_letters/",
        "workflows": f"{admin}/workflow/",
        "workflow": first("workflow/", "#result_list a:text('publish')"),
        "workflow-large": first("workflow/", "#result_list a:text('thousand')"),
        "schedules": f"{admin}/cronschedule/",
        "schedule": f"{admin}/cronschedule/tidy-up/change/",
        "schedule-new": f"{admin}/cronschedule/add/",
        "queues": f"{admin}/queue/",
        "queue": f"{admin}/queue/files/change/",
        "queue-pause": f"{admin}/queue/files/do/pause_queues/",
        "queue-defaults": f"{admin}/queue/_5Fdefault/change/",
        "workers": f"{admin}/worker/",
        "worker": first("worker/"),
        "events": f"{admin}/event/",
        "events-live": f"{admin}/event/tail/",
        "event": first("event/?type=job.failed"),
        "webhooks": f"{admin}/webhooksubscription/",
        "webhook": first("webhooksubscription/"),
        "webhook-new": f"{admin}/webhooksubscription/add/",
        "deliveries": f"{admin}/webhookdelivery/",
        "delivery": first("webhookdelivery/?status__exact=failed"),
        "keys": f"{admin}/apikey/",
        "key-new": f"{admin}/apikey/add/",
        "audit": f"{admin}/auditentry/",
        "audit-entry": first("auditentry/"),
        "bulk-actions": f"{admin}/bulkaction/",
        "bulk-action": first("bulkaction/"),
        "app": f"{admin}/",
        "maintenance": f"{jobs}/maintenance/",
        "doctor": f"{jobs}/doctor/",
        "alerts": f"{admin}/alert/",
        "alert": first("alert/"),
        "approvals": f"{admin}/approval/",
        "approval": asked,
        "approval-decide": asked.replace("change/", "decide/"),
    }


def take(page: Page, blank: Page, address: str, stem: Path) -> None:
    """The pictures of one page, which is loaded once for each width."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(address)
        page.evaluate(ANONYMOUS, socket.gethostname())
        height = min(int(page.evaluate("document.documentElement.scrollHeight")), HEIGHTS[width])
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            save(blank, page.screenshot(animations="disabled"), stem.with_name(f"{stem.name}-{theme}-{width}.png"))


def save(blank: Page, shot: bytes, file: Path) -> None:
    """Write a PNG with a palette, which is a third as large; a page of the browser counts the colours."""
    found = blank.evaluate(PALETTE, f"data:image/png;base64,{base64.b64encode(shot).decode()}")
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", bytes(found["palette"])), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE, sys.argv[2:])
