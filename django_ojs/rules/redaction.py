"""What operators and readers may not see of a job (arguments, meta, result, errors, progress, checkpoint, logs), by
`OJS["REDACT"]`.

Applied where things are shown (the HTTP answers that read, `events.log.render`, the admin, the worker's log), never
where they are stored (but for `refusal_message`), nor in the answer of a FETCH: a worker needs what it works with.
Rules:

    {"keys": ["*password*", "token"],               members of objects, anywhere inside, whatever their case
     "types": {"payments.*": ["args", "result"],    whole parts of jobs of these types; "*" is all parts
               "*": ["backtraces"]},
     "classified": True}                            all parts of jobs whose meta.data_classification says so

A number or a digest that is made of a part tells of it too: whoever sees the unique key of `[PIN]` tries ten thousand
PINs. So what is in `_DIGESTS` and `_LENGTHS` is hidden with the parts that it is made of. What a handler logs may
repeat any part (`Logs`).

Answers repeat what a client sent, as it was spelled. So this module also hides members under their other names, whose
meaning is in `spellings`.

Nothing here costs anything while the setting is empty: every function returns what it was given.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.rules.attributes import TOP_LEVEL

MASK = "[REDACTED]"
PARTS = frozenset({"args", "meta", "result", "errors", "backtraces", "progress", "checkpoint", "logs"})
#: Values of `meta.data_classification` that hide a job.
CLASSIFIED = frozenset({"confidential", "restricted"})

#: Where our own objects keep a part.
_PART_OF = {
    "args": "args", "params": "args", "meta": "meta",
    **dict.fromkeys(("result", "results", "parent_results", "parent_results_by_step"), "result"),
    **dict.fromkeys(("error", "errors", "last_error", "parent_errors", "x_previous_errors"), "errors"),
    **dict.fromkeys(("progress_message", "progress_data"), "progress"),
    **dict.fromkeys(("checkpoint", "last_checkpoint"), "checkpoint"),
}  # fmt: skip
#: Members of ours, and of the details of our errors, that are made of parts: digests are masked, lengths left out.
_PUSHED = frozenset({"args", "meta"})
_DIGESTS = dict.fromkeys(("unique_key", "uniqueness_key"), _PUSHED)
_LENGTHS = dict.fromkeys(("result_size_bytes", "actual_bytes"), frozenset({"result"}))
_LENGTHS["size_bytes"] = frozenset({"result", "checkpoint"})
#: The code of errors whose message says how long the result was.
_TOO_LARGE = "RESULT_TOO_LARGE"
#: Members that hold further objects of ours.
_FRAMES = frozenset({
    "job", "jobs", "items", "job_template", "cron", "crons", "cron_job", "workflow", "steps", "callbacks",
    "on_complete", "on_success", "on_failure",
})  # fmt: skip
#: Names of ours that no pattern hides.
_OURS = (TOP_LEVEL | {"job_id", "job_type", "worker_id", "timestamp", "id", "type", "queue", "state"}) - set(_PART_OF)
#: What stays of a hidden error: enough to count and to find it.
_ERROR_FACTS = frozenset({"type", "code", "attempt", "occurred_at", "retryable"})
_BACKTRACES = frozenset({"backtrace", "stack_trace", "stacktrace"})


class Rules:
    """The setting `OJS["REDACT"]`, compiled."""

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self._keys = _matcher(setting.get("keys") or ())
        types: Mapping[str, Any] = setting.get("types") or {}
        self._types = [(_matcher([pattern]), _parts(parts)) for pattern, parts in types.items()]
        self.classified = bool(setting.get("classified"))

    @property
    def has_keys(self) -> bool:
        """Whether members are hidden by their names."""
        return self._keys is not None

    def is_key(self, name: str) -> bool:
        """Whether members of this name are hidden."""
        return self._keys is not None and bool(self._keys.fullmatch(name))

    def secrets(self, value: Any, *, inside: bool = False) -> set[str]:
        """The texts that hidden members have as their values, anywhere in a part of a job."""
        if self._keys is None:
            return set()
        if isinstance(value, dict):
            members = ((inside or self.is_key(name), item) for name, item in value.items())
            return set().union(*(self.secrets(item, inside=hidden) for hidden, item in members))
        if isinstance(value, list):
            return set().union(*(self.secrets(item, inside=inside) for item in value))
        if not inside or value is None or isinstance(value, bool):
            return set()
        shown = str(value)
        found = {shown, jsontext.dumps(value)[1:-1]} if isinstance(value, str) else {shown}
        return {text for text in found if len(text) >= _SHORTEST}

    def hidden(self, job_type: str, meta: Any = None) -> frozenset[str]:
        """The parts of a job of this type that no reader may see."""
        if self.classified and isinstance(meta, dict) and meta.get("data_classification") in CLASSIFIED:
            return PARTS
        found: frozenset[str] = frozenset()
        for pattern, parts in self._types:
            if pattern and pattern.fullmatch(job_type):
                found |= parts
        return found

    def unknown(self, job_type: str) -> frozenset[str]:
        """The same where the job's meta is not at hand: any of this type may be classified."""
        return PARTS if self.classified else self.hidden(job_type)

    def of_others(self) -> frozenset[str]:
        """What is hidden in a value of an unknown job: everything that is hidden in any job."""
        return PARTS if self.classified else frozenset().union(*(parts for _, parts in self._types))

    def frame(self, value: Any, hidden: frozenset[str]) -> Any:
        """An object of ours (job, step, schedule, event data) with its parts hidden."""
        if isinstance(value, list):
            return [self.frame(item, hidden) for item in value]
        if not isinstance(value, dict):
            return value
        if isinstance(job_type := value.get("type"), str) and value.keys() & {"args", "state", "job_id"}:
            hidden = hidden | (self.hidden(job_type, value["meta"]) if "meta" in value else self.unknown(job_type))
        return {
            name: self._member(name, item, hidden)
            for name, item in value.items()
            if name not in _LENGTHS or not self.tells(_LENGTHS[name], hidden)
        }

    def tells(self, made_of: frozenset[str], hidden: frozenset[str]) -> bool:
        """Whether what is made of these parts may give away what is hidden: any part may have a hidden member."""
        return self.has_keys or not made_of.isdisjoint(hidden)

    def part(self, name: str, value: Any, hidden: frozenset[str]) -> Any:
        if name == "errors":
            return self._errors(value, hidden)
        if name == "extra":  # where earlier errors and the results of parents are kept, too
            return self.frame(value, hidden)
        if name not in hidden:
            return self.payload(value)
        if isinstance(value, list):
            return [MASK] if value else []
        if isinstance(value, dict) and name != "result":
            return dict.fromkeys(value, MASK)
        return MASK if value is not None else None

    def payload(self, value: Any) -> Any:
        """Data of the site, of which only the names of members say what is secret."""
        if self._keys is None:
            return value
        if isinstance(value, list):
            return [self.payload(item) for item in value]
        if isinstance(value, dict):
            return {k: MASK if self._keys.fullmatch(k) else self.payload(item) for k, item in value.items()}
        return value

    def _member(self, name: str, value: Any, hidden: frozenset[str]) -> Any:
        if name in _PART_OF:
            concerned = hidden | self.of_others() if name.startswith("parent_") or name == "results" else hidden
            if name == "parent_errors" and isinstance(value, dict):
                return {place: self._errors(error, concerned) for place, error in value.items()}
            return self.part(_PART_OF[name], value, concerned)
        if name == "options" and isinstance(value, dict):  # the place of a second spelling of meta
            return {k: self._member("meta" if k == "metadata" else k, item, hidden) for k, item in value.items()}
        if name in _FRAMES and isinstance(value, dict | list):
            return self.frame(value, hidden)
        if name in _DIGESTS and self.tells(_DIGESTS[name], hidden):
            return MASK if value else value
        if name in _OURS:
            return value
        return self.payload({name: value})[name]

    def _errors(self, value: Any, hidden: frozenset[str]) -> Any:
        if isinstance(value, list):
            return [self._errors(item, hidden) for item in value]
        if not isinstance(value, dict):
            return MASK if value and "errors" in hidden else value
        if "errors" in hidden:
            return {k: item if k in _ERROR_FACTS else MASK for k, item in value.items() if k not in _BACKTRACES}
        without = _BACKTRACES if "backtraces" in hidden else frozenset()
        shown = self.payload({k: item for k, item in value.items() if k not in without})
        if isinstance(details := shown.get("details"), dict):
            shown["details"] = self._details(details, hidden)
        if value.get("code") == _TOO_LARGE and "message" in shown and self.tells(_LENGTHS["actual_bytes"], hidden):
            shown["message"] = MASK
        return shown

    def _details(self, details: dict[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
        """The details of an error, which may be that of a refused push or of a refused result."""
        return {
            name: MASK if name in _DIGESTS and self.tells(_DIGESTS[name], hidden) else item
            for name, item in details.items()
            if name not in _LENGTHS or not self.tells(_LENGTHS[name], hidden)
        }


#: The parts that a line of the log may repeat: it is hidden with each of them.
_LOGS = frozenset({"logs", "args", "meta", "result", "errors", "checkpoint"})
#: Shorter texts are no secrets, and would be found everywhere.
_SHORTEST = 3
#: `token=`, `"token": `: a name in a message, before what it is said to be; also in JSON inside of JSON, `\"token\":`.
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)\\*["']?\s*[=:]\s*""")
#: A text in quotes, to the end of the line where it has no other. A quote behind a backslash does not end it.
_QUOTED = r"""(\\{0,32}["'])(?:\\.|[^\n])*?(?:(?<!\\)\1|(?=\n)|\Z)"""
#: What a name is said to be: a text in quotes; else a word, with the scheme of credentials before it. What is in
#: brackets is `_end_of_brackets`.
_VALUE = re.compile(
    rf"""(?:[bru]{{1,2}}(?=["']))?{_QUOTED}"""
    r"""|(?:(?:bearer|basic|digest|negotiate|token|apikey)[ ]+)?[^\s,;)\]}]+""",
    re.IGNORECASE,
)
_TEXT = re.compile(_QUOTED)
#: The end of a text that was too long to be stored (`errorobjects.cut`): what stands before it may be half a secret.
_CUT = re.compile(r"… \[cut: [0-9]+ characters\]\Z")


class Logs:
    """What may be shown of the lines that the handler of one job has logged.

    They are hidden as a whole where a part of the job is that they may repeat. Of others the members that are hidden by
    their names are masked: in their fields; and in messages, tracebacks and texts of fields wherever the values stand
    that such members have in the job's arguments and meta, and wherever such a name stands before a value.
    """

    def __init__(self, job_type: str, args: Any, meta: Any) -> None:
        self._rules = rules = site_rules()
        hidden = rules.hidden(job_type, meta) if rules else frozenset()
        self.hidden = not hidden.isdisjoint(_LOGS)
        self._backtraces = self.hidden or "backtraces" in hidden
        found = rules.secrets([args, meta]) if rules and not self.hidden else ()
        self._all = sorted(found, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, self._all))) if self._all else None

    def message(self, text: str) -> str:
        if self._rules is None or not text:
            return text
        return MASK if self.hidden else self._masked(text)

    def exception(self, text: str) -> str:
        if self._rules is None or not text:
            return text
        return MASK if self._backtraces else self._masked(text)

    def fields(self, value: Any) -> Any:
        if self._rules is None or not value:
            return value
        if self.hidden:
            return dict.fromkeys(value, MASK)
        return self._texts(self._rules.payload(value))

    def _texts(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._texts(item) for item in value]
        if isinstance(value, dict):
            return {name: self._texts(item) for name, item in value.items()}
        if isinstance(value, str):
            return self._masked(value)
        if value is None or isinstance(value, bool):
            return value
        shown = str(value)
        masked = self._without_secrets(shown)
        return value if masked == shown else masked

    def _masked(self, text: str) -> str:
        assert self._rules is not None
        text = self._without_secrets(text)
        return self._without_pairs(text) if self._rules.has_keys else text

    def _without_secrets(self, text: str) -> str:
        if self._secrets is None:
            return text
        if (cut := _CUT.search(text)) is None:
            return self._secrets.sub(MASK, text)
        whole = text[: cut.start()]
        end = min(_begins(secret, whole) for secret in self._all)
        return self._secrets.sub(MASK, whole[:end]) + (MASK if end < len(whole) else "") + cut.group()

    def _without_pairs(self, text: str) -> str:
        """Without what follows the names that are hidden, wherever they stand: also inside of what another name is."""
        assert self._rules is not None
        parts, place = [], 0
        for found in _NAME.finditer(text):
            if found.start() >= place and self._rules.is_key(found[1]) and (end := _value_end(text, found.end())):
                parts += [text[place : found.end()], MASK]
                place = end
        return "".join([*parts, text[place:]])


def _value_end(text: str, start: int) -> int:
    """Where the value that begins here ends; 0 where there is none."""
    if text[start : start + 1] in ("[", "{", "("):
        return _end_of_brackets(text, start)
    found = _VALUE.match(text, start)
    return found.end() if found else 0


def _end_of_brackets(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`, or the end of the line. Those in quotes close none."""
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\n":
            return place
        if quoted := _TEXT.match(text, place):
            place = quoted.end()
            continue
        depth += (text[place] in "[{(") - (text[place] in ")}]")
        place += 1
        if not depth:
            return place
    return len(text)


def _begins(secret: str, text: str) -> int:
    """Where in this text a secret begins that goes on behind its end; the end, where none does."""
    place = text.find(secret[:_SHORTEST], max(len(text) - len(secret), 0))
    while place >= 0:
        if secret.startswith(text[place:]):
            return place
        place = text.find(secret[:_SHORTEST], place + 1)
    return len(text)


_compiled: tuple[Mapping[str, Any], Rules] | None = None


def site_rules() -> Rules | None:
    """The site's rules; None where it has none, as most sites."""
    global _compiled
    setting = ojs_settings.REDACT
    if not setting:
        return None
    if _compiled is None or _compiled[0] is not setting:
        _compiled = setting, Rules(setting)
    return _compiled[1]


def job(envelope: dict[str, Any]) -> dict[str, Any]:
    """A job's envelope, a schedule or a workflow as it is shown to readers."""
    rules = site_rules()
    shown: dict[str, Any] = envelope if rules is None else rules.frame(envelope, frozenset())
    return shown


def event(job_type: str, data: dict[str, Any]) -> dict[str, Any]:
    """The data of an event. It does not say whether its job was classified: under that rule no event shows results."""
    rules = site_rules()
    if rules is None:
        return data
    hidden = rules.unknown(job_type) if job_type else rules.of_others()
    shown: dict[str, Any] = rules.frame(data, hidden)
    if "progress_message" in shown and "message" in shown:  # the same under the name that others look for
        shown["message"] = shown["progress_message"]
    return shown


def error(job_type: str, value: Any) -> Any:
    """One error of a job whose meta is not at hand, as lists have it."""
    return event(job_type, {"error": value})["error"]


def progress(report: dict[str, Any], job_type: str, meta: Any) -> dict[str, Any]:
    """What `jobs.progress.describe` says; `meta` None where it is not at hand."""
    rules = site_rules()
    if rules is None:
        return report
    hidden = rules.unknown(job_type) if meta is None else rules.hidden(job_type, meta)
    return report | {name: rules.part("progress", report[name], hidden) for name in ("message", "data")}


def part(name: str, value: Any, job_type: str, meta: Any) -> Any:
    """One part of a job as it is shown: `name` is one of `PARTS`, `extra`, or the name of another attribute."""
    rules = site_rules()
    return value if rules is None else rules.part(name, value, rules.hidden(job_type, meta))


def hides(name: str, job_type: str, meta: Any = None) -> bool:
    """Whether this part of such a job is hidden as a whole; without its meta, whether it may be."""
    rules = site_rules()
    if rules is None:
        return False
    return name in (rules.unknown(job_type) if meta is None else rules.hidden(job_type, meta))


def tells(name: str, job_type: str, meta: Any = None) -> bool:
    """Whether what is made of this part (a sentence that quotes it, its digest, its length) may give away what is
    hidden, by its member's name too; without the job's meta, whether it may of any job of this type."""
    rules = site_rules()
    if rules is None:
        return False
    return rules.tells(frozenset({name}), rules.unknown(job_type) if meta is None else rules.hidden(job_type, meta))


def unique_key(value: str, job_type: str, meta: Any = None) -> str:
    """A job's unique key as it is shown: it is a plain digest of arguments and meta."""
    return MASK if value and any(tells(name, job_type, meta) for name in _PUSHED) else value


def hides_refusal(job_type: str) -> bool:
    """Whether the sentence that says why such a job was refused may repeat what is hidden: its arguments or its meta.
    The type is '' where it may be any, as that of the jobs of a workflow."""
    rules = site_rules()
    if rules is None:
        return False
    return not _PUSHED.isdisjoint(rules.unknown(job_type) if job_type else rules.of_others())


def refusal(text: str, job_type: str) -> str:
    """Why a job was refused (`errors.sentence_of`): where the sentence may repeat what is hidden, the code alone."""
    return text.partition(":")[0] if hides_refusal(job_type) else text


def refusal_message(text: str, job_type: str) -> str:
    """The sentence of a refusal, for a record that is kept and has the code beside it: masked before it is stored,
    because events and errors of steps do not say later that a job was refused."""
    return MASK if hides_refusal(job_type) else text


def problems(setting: Any) -> list[str]:
    """What is wrong with a setting, one sentence each."""
    if not isinstance(setting, Mapping):
        return ["It must be a dict."]
    found = [f"{name!r} is unknown: there are keys, types and classified." for name in setting.keys() - _SETTING]
    if not _texts(setting.get("keys", ())):
        found.append("'keys' must be a list of patterns such as '*password*'.")
    types = setting.get("types", {})
    if not isinstance(types, Mapping):
        return [*found, "'types' must be a dict of type patterns to lists of parts."]
    known = PARTS | {"*"}
    for pattern, parts in types.items():
        if not _texts(parts) or not set(parts) <= known:
            found.append(f"'types' for {pattern!r} must be a list of {', '.join(sorted(known))}.")
    if not isinstance(setting.get("classified", False), bool):
        found.append("'classified' must be True or False.")
    return found


_SETTING = {"keys", "types", "classified"}


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(item, str) for item in value)


def _parts(names: Any) -> frozenset[str]:
    """A checkpoint is made of arguments, so it is hidden with them."""
    if "*" in names:
        return PARTS
    found = frozenset(names) & PARTS
    return found | {"checkpoint"} if "args" in found else found


def _matcher(patterns: Any) -> re.Pattern[str] | None:
    translated = [fnmatch.translate(pattern) for pattern in patterns]
    return re.compile("|".join(translated), re.IGNORECASE) if translated else None
