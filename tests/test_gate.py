"""A run of `.ci/run` that is killed leaves no process and no folder."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

#: Instead of `.ci/steps.sh`: two lanes, each of which starts what a step starts, says so to descriptor $SAY, and waits.
#: Servers leave their session and overwrite their environment, and some processes do not end when they are asked to.
STEPS = """
[[ $1 != gate ]] || { echo "one | two"; exit; }
(cd "$CI_WORK/tmp" && exec setsid env -i sleep 600) &
env -i timeout 600 tail -f "$CI_WORK/$1.log" &
setsid bash -c 'trap "" TERM; exec sleep 600' &
echo "$CI_WORK" >&"$SAY"
wait
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `.ci/run` needs of a checkout, with `STEPS` as its steps."""
    shutil.copytree(settings.BASE_DIR / ".ci", tmp_path / ".ci")
    (tmp_path / ".ci/steps.sh").write_text(STEPS)
    return tmp_path


@pytest.fixture
def said(checkout: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run, and what it writes to. All its processes inherit that, so that it ends with the last of them."""
    reader, writer = os.pipe()
    run = subprocess.Popen(
        ["bash", checkout / ".ci/run"], env=os.environ | {"SAY": str(writer)}, pass_fds=[writer],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    yield run, reader
    run.kill()  # what it left is for .ci/watch.sh to end
    run.wait()
    os.close(reader)


@pytest.mark.wide
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=["SIGTERM", "SIGKILL"])
def test_a_run_that_is_killed_leaves_nothing(
    number: signal.Signals, code: int, said: tuple[subprocess.Popen[bytes], int]
) -> None:
    run, descriptor = said
    with os.fdopen(os.dup(descriptor)) as lines:
        folder, other = (Path(lines.readline().strip()) for _ in range(2))
    assert folder == other
    assert folder.is_dir()

    run.send_signal(number)
    assert run.wait(120) == code
    waiting = select.poll()
    waiting.register(descriptor)
    assert waiting.poll(120_000), "It did not happen in time: processes of the run are left"
    assert os.read(descriptor, 1) == b"", "nobody can write to it, and .ci/watch.sh has ended too"
    assert not folder.exists()
