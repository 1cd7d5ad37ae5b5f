"""Take the pictures of docs/screenshots/ from a running demo.

    python manage.py ojs_demo --port 8100          # let it run for a minute or two
    python docs/screenshots.py http://127.0.0.1:8100 PASSWORD [directory]

Needs `pip install playwright pillow` and Chromium (CHROMIUM names it; default /usr/bin/chromium). Every page is
taken in light and dark at 1440 pixels, and in light at 390; those that the documentation shows are kept small.
"""

from __future__ import annotations

import io
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent / "screenshots"
SIZES = {"light": (1440, "light"), "dark": (1440, "dark"), "phone": (390, "light")}
#: What the documentation shows; everything else is for looking at, and taken only into another directory.
SHOWN = {
    ("overview", "light"),
    ("overview", "dark"),
    ("job", "light"),
    ("workflow", "light"),
    ("dead-letters", "light"),
}

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
SCHEDULE = {
    "name": "tidy-up", "cron": "30 2 * * mon-fri", "timezone": "Europe/Paris", "type": "demo.tidy", "args": [],
}  # fmt: skip
#: Where this machine keeps Python and the checkout is nobody's business.
ANONYMOUS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    text.data = text.data.replace(/(?:\\/[\\w.#-]+)+\\/(?=lib\\/python|example_project\\/)/g, "/srv/");
  }
}"""


def main(base: str, password: str, directory: Path) -> None:
    """Log in, and take every page in every size."""
    directory.mkdir(parents=True, exist_ok=True)
    post(base, "/ojs/v1/workflows", WORKFLOW)
    post(base, "/ojs/v1/workflows", LARGE)
    post(base, "/ojs/v1/cron", SCHEDULE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        for size, (width, scheme) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(f"{base}/admin/")
            page.fill("#id_username", "demo")
            page.fill("#id_password", password)
            page.click("[type=submit]")
            for name, address in addresses(page, base).items():
                if directory != HERE or (name, size) in SHOWN:
                    take(page, address, directory / f"{name}-{size}.png")
            page.close()
        browser.close()


def post(base: str, path: str, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    request = urllib.request.Request(f"{base}{path}", body, {"Content-Type": "application/json"})  # noqa: S310
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


def addresses(page: Page, base: str) -> dict[str, str]:
    """The pages by their names; those of a job, a workflow and a schedule are the first that their lists have."""
    jobs, admin = f"{base}/admin/django_ojs/job", f"{base}/admin/django_ojs"
    found = {
        "overview": f"{jobs}/overview/",
        "dead-letters": f"{jobs}/dead-letters/",
        "app": f"{admin}/",
        "jobs": f"{jobs}/",
    }
    found["filtered"] = f"{jobs}/dead-letters/?type=files.hash"
    found["retry-all"] = f"{jobs}/dead-letters/all/retry_dead_letters/"
    found["job"] = first(page, f"{jobs}/?state=dead_letter", "th.field-short_id a")
    found["workflow"] = first(page, f"{admin}/workflow/", "th.field-label a:text('publish')")
    found["large"] = first(page, f"{admin}/workflow/", "th.field-label a:text('thousand')")
    found["schedule"] = first(page, f"{admin}/cronschedule/", "th.field-name a")
    return found


def first(page: Page, address: str, link: str) -> str:
    page.goto(address)
    return str(page.locator(link).first.evaluate("link => link.href"))


def take(page: Page, address: str, file: Path) -> None:
    """One picture, of the page as far as it goes but not more than 1300 pixels, in few colours."""
    page.goto(address)
    page.evaluate(ANONYMOUS)
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), 1300)
    width = page.viewport_size["width"] if page.viewport_size else 1440
    page.set_viewport_size({"width": width, "height": height})
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.set_viewport_size({"width": width, "height": 900})
    # The colours that stand for something are on few pixels: a palette by coverage keeps them apart.
    shot.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2], Path(sys.argv[3]) if len(sys.argv) > 3 else HERE)
