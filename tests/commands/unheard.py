"""Run commands whose stdout and stderr are broken, each in a copy of this process: for `test_unheard`.

What every command needs is imported before the copies are made, which would each do it again.

Arguments: how they are broken, the numbers of the descriptors, and a JSON list of commands. The report goes to
descriptor 3: for each command its exit code, or the exception that left it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import django
from django.core.checks import run_checks
from django.core.management import execute_from_command_line, load_command_class
from django.core.management.base import BaseCommand


def break_streams(how: str, numbers: list[int]) -> None:
    names = {1: "stdout", 2: "stderr"}
    for number in numbers:
        match how:
            case "missing":  # what Python makes of `2>&-`
                os.close(number)
                setattr(sys, names[number], None)
            case "closed":  # by what runs in the command: Django itself makes no command if they are closed before
                close_later(names[number])
            case "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), number)
            case "unread":
                reader, writer = os.pipe()
                os.dup2(writer, number)
                os.close(reader)
                os.close(writer)


def close_later(name: str) -> None:
    execute = BaseCommand.execute

    def close_and_execute(self: Any, *args: Any, **options: Any) -> Any:
        getattr(sys, name).close()
        return execute(self, *args, **options)

    BaseCommand.execute = close_and_execute  # type: ignore[method-assign]


def run(words: list[str]) -> int | str:
    """The exit code, or what left the command."""
    code: int | str = 0
    try:
        execute_from_command_line(["manage.py", *words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else repr(end.code)
    except BaseException as error:  # noqa: BLE001
        return "".join(traceback.format_exception(error))
    try:  # as the interpreter does at its end
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
    except BaseException as error:  # noqa: BLE001
        return f"flush: {error!r}"
    return code


def main() -> None:
    how, numbers, commands = sys.argv[1], [int(digit) for digit in sys.argv[2]], json.loads(sys.argv[3])
    django.setup()
    run_checks()
    for name, *_ in commands:
        load_command_class("django_ojs", name)
    for words in commands:
        pid = os.fork()
        if not pid:
            break_streams(how, numbers)
            os.write(3, json.dumps(run(words)).encode() + b"\n")
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
