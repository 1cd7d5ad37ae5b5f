"""The pages of the documentation as a forge shows them: headings, links and code blocks, without Sphinx."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
#: Where the README's pictures and pages are for those who read it on PyPI: the files of this checkout, on the forge.
PICTURES = "https://raw.githubusercontent.com/django-ojs/django-ojs/main/"
FILES = "https://github.com/django-ojs/django-ojs/blob/main/"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_PICTURE = re.compile(r"\bsrc(?:set)?=\"([^\"]+)\"")
_REFERENCE = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^()\s>]+)>?(?: +\"[^\"]*\")?\)")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block. `words` are what stands behind its language: `run`, `title=shop/jobs.py`."""

    page: Path
    line: int  #: of its first line of code
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    return tuple(_blocks(page, page.read_text(encoding="utf-8")))


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if not languages or block.language in languages]


def prose(page: Path) -> str:
    """The page without its blocks; the lines keep their numbers."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks(page):
        for number in range(block.line - 2, block.line + len(block.text.splitlines())):
            lines[number] = ""
    return "\n".join(lines)


def spans(page: Path) -> list[str]:
    """What stands between backticks in the prose."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def links(page: Path) -> list[str]:
    text = re.sub(r"(`+)(?:(?!\1).)+\1", "", prose(page))
    return _LINK.findall(text) + _PICTURE.findall(text) + _REFERENCE.findall(text)


def anchors(text: str) -> set[str]:
    """What may stand behind `#` in a link, as forges and MyST make it of headings."""
    found: list[str] = []
    for heading in _HEADING.findall(re.sub(r"^( *)(`{3,}).*?^\1\2", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        taken = sum(one == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", one) is not None for one in found)
        found.append(f"{slug}-{taken}" if taken else slug)
    return set(found)


def _blocks(page: Path, text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opened = _FENCE.match(line)
        if opened is None or "`" in opened["info"]:
            continue
        code: list[str] = []
        for _, inner in lines:
            if re.fullmatch(rf" *{opened['fence']}`*~* *", inner):
                break
            code.append(inner.removeprefix(opened["indent"]))
        else:
            raise AssertionError(f"{name(page)}:{number}: the block has no end")
        language, *words = opened["info"].split() or [""]
        yield Block(page, number + 1, language, tuple(words), "\n".join(code))
