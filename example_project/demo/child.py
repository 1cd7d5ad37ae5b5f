"""`python -m example_project.demo.child [-m] TARGET ARGUMENTS…`: run a script or module as a child of the demo.

Standard input is a pipe that the parent holds and never writes to. It closes when the parent ends, however
that happens, kill -9 included; then this process gets a SIGTERM, and a minute later it is gone for certain.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

PATIENCE = 60.0  #: seconds between the SIGTERM and the end; the worker needs its grace period


def main() -> None:
    threading.Thread(target=_follow, args=(_take_stdin(),), name="parent", daemon=True).start()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _take_stdin() -> int:
    """The pipe, which only `_follow` reads; the program finds its standard input empty."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return pipe


def _follow(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main()
