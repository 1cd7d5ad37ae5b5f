"""How a site's tasks are found and named, what `check` says about them, and that nothing else is ever run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings as site
from django.core.checks import run_checks
from django.utils.module_loading import import_string

from django_ojs import enqueue, job
from django_ojs.client.sync import sync
from django_ojs.cron import runs
from django_ojs.models import CronSchedule, Job
from django_ojs.registry import Registry, registry
from django_ojs.rules import retrypolicy
from django_ojs.tasks import discovery, scheduled
from django_ojs.tasks.task import from_path
from django_ojs.testing import WorkerJobs
from tests.tasks.api import InvalidTask, task, task_backends
from tests.tasks.app import tasks
from tests.worker.conftest import WorkerThread

OURS = "django_ojs.tasks.OJSBackend"


def nothing() -> None: ...


def twin(name: str, qualname: str) -> Any:
    def function() -> None: ...

    function.__module__, function.__qualname__ = name, qualname
    return function


def test_a_backend_of_others_that_is_not_there_does_no_harm(settings: Any) -> None:
    settings.TASKS = {"gone": {"BACKEND": "does.not.Exist"}, "default": {"BACKEND": OURS}}
    assert discovery.aliases() == ["default"]


# Names


@pytest.mark.parametrize(
    "path,type",
    [
        ("shop.tasks.send_email", "shop.tasks.send_email"),
        ("Shop.tasks.Emails.send", "shop.tasks.emails.send"),
        ("shop._private.__send", "shop.private.send"),
        ("shop.tasks.größe", "shop.tasks.gr__e"),
        ("shop2.t.ALL_2", "shop2.t.all_2"),
        ("shop.tasks.__", "shop.tasks.x"),
    ],
)
def test_a_path_becomes_a_job_type(path: str, type: str) -> None:
    assert from_path(path) == type


def test_two_tasks_with_one_type_are_refused_with_both_places(handlers: Registry) -> None:
    task(twin("shop.tasks", "send"))
    with pytest.raises(InvalidTask, match=r"'shop.tasks.send' has two handlers, shop.tasks.send and Shop.tasks._send"):
        task(twin("Shop.tasks", "_send"))
    assert registry.types() == ["shop.tasks.send"]


def test_a_task_and_a_handler_do_not_share_a_type(handlers: Registry) -> None:
    task(twin("shop.tasks", "send"))
    job("shop.tasks.send")(nothing)
    assert ["two handlers" in fault.message for fault in handlers.faults()] == [True]


def test_a_reloaded_module_replaces_its_tasks(handlers: Registry) -> None:
    first, second = twin("shop.tasks", "send"), twin("shop.tasks", "send")
    task(first)
    task(second)
    definition: Any = registry.get("shop.tasks.send")
    assert definition.task.func is second


def test_a_type_that_is_too_long_is_refused(handlers: Registry) -> None:
    with pytest.raises(InvalidTask, match="at most 255"):
        task(twin("shop.tasks", "x" * 250))


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="Django 6.0 has no options of backends in @task")
def test_options_of_ours_in_the_decorator(handlers: Registry) -> None:
    made = task(max_attempts=4, backoff="2s", job_type="email.send")(twin("shop.tasks", "send"))
    assert (made.max_attempts, made.backoff, made.job_type) == (4, "2s", "email.send")
    assert registry.types() == ["email.send"]
    with pytest.raises(InvalidTask, match="must be one or more segments"):
        task(job_type="E-Mail")(twin("shop.tasks", "other"))
    with pytest.raises(TypeError, match="max_atempts"):
        task(max_atempts=4)(twin("shop.tasks", "other"))


def test_a_task_needs_a_function_of_a_module(handlers: Registry) -> None:
    def local() -> None: ...

    with pytest.raises(InvalidTask, match="module level"):
        task(local)


# Discovery


@pytest.fixture
def undiscovered(handlers: Registry) -> Registry:
    """A registry that has not looked for handlers yet, in a process that has imported them all."""
    handlers._discovered = False
    return handlers


@pytest.fixture
def fresh_app(settings: Any) -> Iterator[None]:
    """The app of the tests is installed, and its module not imported yet."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.tasks.app"]
    kept = sys.modules.pop("tests.tasks.app.tasks")
    yield
    sys.modules["tests.tasks.app.tasks"] = kept
    sys.modules["tests.tasks.app"].tasks = kept  # type: ignore[attr-defined]


def test_the_tasks_module_of_each_app_is_found(undiscovered: Registry, fresh_app: None) -> None:
    assert "tests.tasks.app.tasks.add" in undiscovered.types()


def test_tasks_of_other_backends_are_known_too(
    undiscovered: Registry, fresh_app: None, drain: Callable[..., WorkerThread], signals: Callable[[], Any]
) -> None:
    """`.using(backend=...)` in a web process sends them here, and this worker has never heard of it."""
    handle = enqueue("tests.tasks.app.tasks.of_another_backend", "loud")
    drain()
    assert handle.refresh().result == "LOUD"
    assert [sender.__name__ for _, sender, _ in signals()] == ["OJSBackend", "OJSBackend"]


def test_a_task_of_another_backend_is_sent_here(handlers: Registry, drain: Callable[..., WorkerThread]) -> None:
    result = tasks.of_another_backend.using(backend="default").enqueue("loud")
    drain()
    result.refresh()
    assert (result.return_value, result.backend) == ("LOUD", "default")


def test_modules_that_the_options_name_are_imported(
    undiscovered: Registry, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere_tasks.py").write_text("from tests.tasks.api import task\n@task\ndef hidden() -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"modules": ["elsewhere_tasks"]}}}
    try:
        assert undiscovered.types() == ["elsewhere_tasks.hidden"]
    finally:
        sys.modules.pop("elsewhere_tasks", None)


def test_without_a_backend_of_ours_nothing_is_imported(undiscovered: Registry, fresh_app: None, settings: Any) -> None:
    settings.TASKS = {"default": site.TASKS["immediate"]}
    assert undiscovered.types() == []
    settings.TASKS = {}
    discovery.discover()
    assert "tests.tasks.app.tasks" not in sys.modules


def test_a_task_may_be_defined_before_the_apps_are_ready(tmp_path: Path) -> None:
    """A models.py imports its tasks: no model of ours may be imported along with them."""
    script = (
        "from django.conf import settings\n"
        "settings.configure(USE_TZ=True, TASKS={'default': {'BACKEND': 'django_ojs.tasks.OJSBackend'}})\n"
        "from tests.tasks.api import task\n"
        "import tests.tasks.early\n"
        "import sys\n"
        "assert 'django_ojs.models' not in sys.modules\n"
        "print(tests.tasks.early.early)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=site.BASE_DIR
    )
    assert done.returncode == 0, done.stderr
    assert "OJSTask(" in done.stdout


@pytest.mark.skipif(find_spec("django_tasks") is None or django.VERSION < (6, 0), reason="needs both APIs")
def test_a_library_that_uses_the_backport_works_beside_djangos_own(handlers: Registry, drain: Any) -> None:
    import django_tasks

    made: Any = django_tasks.task(vars(tasks)["add"].func)
    result = made.enqueue(2, b=3)
    drain()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 5)


# Checks


def found(settings: Any, **params: Any) -> list[Any]:
    settings.TASKS = {"default": {"BACKEND": OURS, **params}}
    return [problem for problem in run_checks() if str(problem.id).startswith("django_ojs.")]


def test_e201_a_queue_that_ojs_does_not_allow(settings: Any) -> None:
    problems = found(settings, QUEUES=["default", "high_priority", "Mail"])
    assert [problem.id for problem in problems] == ["django_ojs.E201", "django_ojs.E201"]
    assert "'high_priority'" in problems[1].msg
    assert found(settings, QUEUES=["default", "high-priority", "v1.mail"]) == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"backoff": "soon"},
        {"backoff": {"max_interval": "x"}},
    ],
)
def test_e202_options_that_cannot_be(settings: Any, options: dict[str, Any]) -> None:
    (problem,) = found(settings, OPTIONS=options)
    assert (problem.id, bool(problem.hint)) == ("django_ojs.E202", True)


@pytest.mark.parametrize("modules", ["shop.emails", ["shop.does_not_exist"], [5]])
def test_e004_a_module_that_cannot_be_imported(undiscovered: Registry, settings: Any, modules: Any) -> None:
    (problem,) = found(settings, OPTIONS={"modules": modules})
    assert problem.id == "django_ojs.E004"
    assert str(modules) in problem.msg


def test_w201_an_option_of_another_backend(settings: Any) -> None:
    (problem,) = found(settings, OPTIONS={"max_attempt": 3, "modules": ["tests.tasks.app.tasks"]})
    assert (problem.id, problem.hint) == ("django_ojs.W201", "Did you mean 'max_attempts'?")


def test_e203_and_w203_the_api_is_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(discovery.check_home()) == []
    settings.TASKS = {"default": site.TASKS["immediate"]}
    monkeypatch.setattr(discovery, "available", lambda: False)
    assert list(discovery.check_home()) == []
    settings.TASKS = {"default": {"BACKEND": OURS}}
    assert [problem.id for problem in discovery.check_home()] == ["django_ojs.E203"]


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has the framework itself")
def test_w203_the_backport_is_no_app(settings: Any) -> None:
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "django_tasks"]
    assert [problem.id for problem in discovery.check_home()] == ["django_ojs.W203"]


def test_hints_name_the_modules_that_workers_import(settings: Any) -> None:
    """Who leaves handlers in `tasks.py`, where another queue had them, is not told that this is right."""
    assert discovery.modules() == "jobs.py / tasks.py"
    settings.OJS = {"JOBS_MODULE": "tasks"}
    assert discovery.modules() == "tasks.py"
    settings.OJS = {}
    settings.TASKS = {}
    assert discovery.modules() == "jobs.py"


@pytest.mark.django_db
def test_w202_jobs_that_nobody_runs(handlers: Registry) -> None:
    tasks.add.enqueue(1)
    for _ in range(2):
        enqueue("shop.tasks.renamed")
    problems = discovery.check_waiting(databases=["default"])
    assert [(problem.id, problem.msg) for problem in problems] == [
        ("django_ojs.W202", "2 jobs of the type 'shop.tasks.renamed' wait, and no worker runs this type.")
    ]
    assert "imported by workers: jobs.py / tasks.py of an app" in str(problems[0].hint)
    assert discovery.check_waiting(databases=[]) == []
    Job.objects.filter(type="shop.tasks.renamed").delete()
    assert discovery.check_waiting(databases=["default"]) == []


# A whole site


@pytest.mark.slow
@pytest.mark.sqlite_too
def test_a_worker_process_runs_the_tasks_of_its_site(child_environment: dict[str, str], handlers: Registry) -> None:
    results = [tasks.add.enqueue(n, b=1) for n in range(5)]
    failing, later = tasks.fail.enqueue("in a process"), tasks.aadd.using(queue_name="mail").enqueue(1, 2)
    command = [sys.executable, "manage.py", "ojs_worker", "--until-empty", "--verbosity", "2"]
    environment = child_environment | {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings"}
    done = subprocess.run(
        command, check=False, env=environment, cwd=site.BASE_DIR, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for result in (*results, failing, later):
        result.refresh()
    assert [result.return_value for result in results] == [1, 2, 3, 4, 5]
    assert (failing.status, later.return_value) == ("FAILED", 3)
    assert failing.errors[0].traceback.endswith("ValueError: in a process\n")
    assert "tests.tasks.app.tasks.of_another_backend" in done.stdout


def test_the_names_of_the_package_are_there() -> None:
    import django_ojs.tasks

    for name in django_ojs.tasks.__all__:
        assert import_string(f"django_ojs.tasks.{name}").__module__.startswith("django_ojs.tasks.")
    assert set(django_ojs.tasks.__all__) <= set(dir(django_ojs.tasks))
    with pytest.raises(AttributeError, match="no attribute 'OJSBackends'"):
        _ = django_ojs.tasks.OJSBackends
    assert task_backends["default"].alias == "default"


# Schedules, and jobs that no code of the site enqueues


SIX = {"default": {"BACKEND": OURS, "OPTIONS": {"max_attempts": 6, "backoff": "2s"}}}


@pytest.mark.django_db
def test_a_task_has_the_attempts_of_its_backend_whoever_enqueues_it(
    handlers: Registry, api: Any, settings: Any
) -> None:
    settings.TASKS = SIX
    settings.OJS = {"RETRY": {"max_attempts": 2}, "ALLOW_ANONYMOUS": True}
    task(twin("shop.tasks", "send"))
    job("shop.plain", retry={"max_attempts": 9})(nothing)

    def pushed(**body: Any) -> tuple[int, str]:
        answer = api.post("/jobs", {"args": [], **body})
        row = Job.objects.get(pk=answer.json()["job"]["id"])
        return row.max_attempts, row.retry

    attempts, policy = pushed(type="shop.tasks.send")
    assert (attempts, retrypolicy.from_json(policy).initial_ms) == (6, 2000)
    assert pushed(type="shop.tasks.send", retry={"max_attempts": 4})[0] == 4
    assert pushed(type="shop.plain")[0] == pushed(type="of.another")[0] == 2
    body = {"name": "nightly", "cron": "0 3 * * *", "type": "shop.tasks.send", "args": []}
    assert api.post("/cron", body).status_code == 201
    _, row = runs.trigger("nightly")
    assert row["max_attempts"] == 6


@pytest.mark.django_db
def test_modules_that_cannot_be_imported_keep_no_job_from_being_pushed(
    handlers: Registry, api: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    def broken(type: str) -> Any:
        raise ImportError("no module named shop")

    monkeypatch.setattr(registry, "get", broken)
    assert api.post("/jobs", {"type": "of.another", "args": []}).status_code == 201
    assert "Looking for the handler of a job failed: ImportError" in caplog.text


@pytest.mark.django_db
def test_a_task_has_a_schedule(handlers: Registry, settings: Any, ojs_worker: WorkerJobs) -> None:
    settings.TASKS = SIX
    called: list[tuple[Any, ...]] = []

    def send(kind: str) -> None:
        called.append((kind,))

    send.__module__, send.__qualname__ = "shop.tasks", "send"
    made = scheduled(cron="0 9 * * *", timezone="Europe/Paris", cron_args=["daily"])(task(send))
    assert made.func is send
    sync()
    schedule = CronSchedule.objects.get()
    assert (schedule.name, schedule.timezone) == ("shop.tasks.send", "Europe/Paris")
    handle = ojs_worker.trigger("shop.tasks.send")
    ojs_worker.drain().raise_first()
    assert (called, handle.refresh().state, handle.row["max_attempts"]) == ([("daily",)], "completed", 6)
    assert made.get_result(str(handle.id)).status == "SUCCESSFUL"


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"cron": "0 25 * * *"}, "hour '25'"), ({}, "give cron="), ({"cron": "@daily", "queue": "a"}, "queue="),
        ({"cron": "@daily", "cron_args": [1]}, "cannot take these arguments"),
    ],
)  # fmt: skip
def test_a_schedule_of_a_task_that_cannot_be_kept_is_refused(
    handlers: Registry, options: dict[str, Any], complaint: str
) -> None:
    made = task(twin("shop.tasks", "send"))
    with pytest.raises(InvalidTask, match=complaint):
        scheduled(**options)(made)
    assert not registry.get("shop.tasks.send").cron_options  # type: ignore[union-attr]
    with pytest.raises(TypeError, match="above @task"):
        scheduled(cron="@daily")(nothing)


def test_under_another_backend_a_task_has_no_schedule(handlers: Registry) -> None:
    made = task(backend="immediate")(twin("shop.tasks", "send"))
    assert scheduled(cron="0 9 * * *")(made) is made
    assert registry.types() == []
