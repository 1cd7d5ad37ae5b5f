"""The files of docs/production: what they start exists, what they ask for is there, and the pages show them all."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.urls import URLPattern, URLResolver, get_resolver, resolve

from benchmarks import serving
from django_ojs.conf import Settings
from django_ojs.database import parse_url, url_of
from django_ojs.realtime.routing import websocket_urlpatterns
from django_ojs.realtime.views import StreamingEventViewSet
from django_ojs.registry import registry

with registry.isolated():  # its jobs are no handlers of the site that the tests run in
    from example_project.management.commands import ojs_demo

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "production"
FILES = PAGES / "files"
URLS = "example_project.urls"
UNITS = sorted(FILES.glob("*.service"))
#: What starts the site's processes in an argument vector: the rest of it follows.
PROGRAMS = ("python", "gunicorn", "uvicorn")
#: What the example site reads from the environment.
SITE = "".join((ROOT / "example_project" / name).read_text(encoding="utf-8") for name in ("settings.py", "paths.py"))
VARIABLES = set(re.findall(r'(?:environ\.get|_list|_on)\("(\w+)"', SITE))


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def strings(document: Any) -> Iterator[Any]:
    """Every mapping and list within a document, itself included."""
    yield document
    for below in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from strings(below)


def vectors() -> Iterator[tuple[str, list[str]]]:
    """Every command line that the files start a process of the site with, as (file, arguments)."""
    for path in UNITS:
        yield path.name, shlex.split(unit(path)["Service"]["ExecStart"])
    for name in ("compose.yaml", "kubernetes.yaml"):
        for found in strings(list(yaml.safe_load_all((FILES / name).read_text(encoding="utf-8")))):
            if isinstance(found, list) and found and found[0] in PROGRAMS:
                yield name, found
    for line in re.findall(r"(?:CMD|RUN) (.*)", (FILES / "Dockerfile").read_text(encoding="utf-8")):
        if line.startswith("["):
            yield "Dockerfile", yaml.safe_load(line)
        elif "manage.py" in line:
            yield "Dockerfile", shlex.split(line[line.index("python ") :])


def shell_lines() -> Iterator[tuple[str, list[str]]]:
    """The lines of the pages that call `manage.py`, and of operators' commands within other texts."""
    for page in sorted(PAGES.glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", "").splitlines():
                if "manage.py " in line:
                    words = shlex.split(line, comments=True)
                    yield page.name, words[next(i for i, word in enumerate(words) if word.endswith("manage.py")) :]


def parse(arguments: list[str]) -> Any:
    """What the command's own parser makes of `manage.py …`; an argument that it does not know ends the test."""
    name, rest = arguments[1], arguments[2:]
    assert name in get_commands(), f"there is no command {name}"
    app = get_commands()[name]
    command = app if not isinstance(app, str) else load_command_class(app, name)
    parser = command.create_parser("manage.py", name)
    parser.exit = parser.error = lambda *told: pytest.fail(f"manage.py {shlex.join(arguments[1:])}: {told}")
    return parser.parse_args(rest)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_have_what_systemd_needs(path: Path) -> None:
    parsed = unit(path)
    assert parsed.sections() == ["Unit", "Service", "Install"]
    service = parsed["Service"]
    assert service["ExecStart"].startswith(service["WorkingDirectory"] + "/.venv/bin/")
    assert service["EnvironmentFile"] == "/etc/shop/site.env"
    assert (service["User"], service["NoNewPrivileges"]) == ("shop", "yes")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text(encoding="utf-8"))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", *sorted(tmp_path.glob("*.service"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    told = [line for line in done.stderr.splitlines() if any(path.stem in line for path in UNITS)]
    assert told == []


def test_every_command_line_is_one_that_the_command_has() -> None:
    found = list(vectors())
    assert {name for name, _ in found} == {
        *(path.name for path in UNITS),
        "compose.yaml",
        "kubernetes.yaml",
        "Dockerfile",
    }
    for name, (path, *rest) in found:
        program = Path(path).name
        if program == "python" and rest[0] == "manage.py":
            parse(rest)
        elif program in ("gunicorn", "uvicorn"):
            module, attribute = rest[0].split(":")
            source = (ROOT / f"{module.replace('.', '/')}.py").read_text(
                encoding="utf-8"
            )  # imported, it sets Django up
            assert f"\n{attribute} = " in source, name
        else:
            assert (program, rest[0]) == ("python", "-c"), name


def test_uvicorn_has_the_options_that_it_gets() -> None:
    from uvicorn.main import main

    known = {option for parameter in main.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for name, (program, *rest) in vectors():
        if Path(program).name == "uvicorn":
            assert {word for word in rest if word.startswith("--")} <= known, name


def test_uvicorn_reads_the_bodies_of_clients_that_offer_http2() -> None:
    found = [(name, words) for name, (program, *words) in vectors() if Path(program).name == "uvicorn"]
    found += [("ojs_bench", words) for name, words, _ in serving.servers(8000) if name == "uvicorn"]
    found += [("ojs_demo", ojs_demo.server_command(8000))]
    assert len(found) == 5
    for name, words in found:
        assert ["--http", "h11"] in [words[at : at + 2] for at in range(len(words))], name


def test_every_line_of_the_pages_that_calls_manage_py_is_right() -> None:
    found = list(shell_lines())
    assert len(found) > 10
    for _, arguments in found:
        parse([word.replace("$(hostname", "web1").replace("-s)-42", "-42") for word in arguments])


def test_every_variable_is_one_that_the_example_site_reads() -> None:
    env = dict(
        line.split("=", 1)
        for line in (FILES / "site.env").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    compose = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))
    kubernetes = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8")))
    given = {
        "site.env": set(env),
        "compose.yaml": set(compose["services"]["worker"]["environment"]),
        "kubernetes.yaml": {
            name for part in kubernetes for name in {**part.get("stringData", {}), **part.get("data", {})}
        },
    }
    assert {name: sorted(names - VARIABLES) for name, names in given.items()} == {name: [] for name in given}
    needed = {"DJANGO_SECRET_KEY", "DJANGO_ALLOWED_HOSTS", "DATABASE_URL", "DJANGO_DEBUG"}
    assert all(needed <= names for names in given.values())
    assert parse_url(env["DATABASE_URL"], ROOT)["NAME"] == "shop"


def test_a_database_url_can_say_what_a_pooler_needs() -> None:
    assert "?disable_server_side_cursors=true" in (PAGES / "database.md").read_text(encoding="utf-8")
    config = parse_url("postgres://a@b/c?disable_server_side_cursors=true", ROOT)
    assert config["DISABLE_SERVER_SIDE_CURSORS"] is True
    assert parse_url(url_of(config), ROOT) == config


def test_probes_ask_for_paths_that_are_there_and_name_a_host() -> None:
    documents = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8")))
    asked = [found["httpGet"] for found in strings(documents) if isinstance(found, dict) and "httpGet" in found]
    hosts = {part["data"]["DJANGO_ALLOWED_HOSTS"] for part in documents if part["kind"] == "ConfigMap"}
    assert [probe["path"] for probe in asked] == ["/healthz", "/readyz"]
    for probe in asked:
        assert resolve(probe["path"], URLS)
        assert {header["value"] for header in probe["httpHeaders"] if header["name"] == "Host"} == hosts
    compose = (FILES / "compose.yaml").read_text(encoding="utf-8")
    for path in re.findall(r"127\.0\.0\.1:\d+(/[\w/]*)'", compose):
        assert resolve(path, URLS)


def test_workers_get_the_time_that_their_jobs_have() -> None:
    least = Settings().SHUTDOWN_GRACE_PERIOD + 15
    worker = unit(FILES / "ojs-worker@.service")["Service"]
    compose = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))["services"]["worker"]
    pods = [
        part["spec"]["template"]["spec"]
        for part in yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8"))
        if part["metadata"]["name"] == "shop-worker"
    ]
    assert float(worker["TimeoutStopSec"]) >= least
    assert float(compose["stop_grace_period"].removesuffix("s")) >= least
    assert [pod["terminationGracePeriodSeconds"] >= least for pod in pods] == [True]
    assert worker["Restart"] == "on-failure"


def test_pods_select_and_route_to_what_is_there() -> None:
    documents = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8")))
    names = {(part["kind"], part["metadata"]["name"]) for part in documents}
    assert len(names) == len(documents)
    pods = [part["spec"]["template"] for part in documents if part["kind"] == "Deployment"]
    for part in documents:
        if part["kind"] == "Deployment":
            assert part["spec"]["selector"]["matchLabels"] == part["spec"]["template"]["metadata"]["labels"]
        if part["kind"] == "Service":
            (pod,) = [pod for pod in pods if pod["metadata"]["labels"] == part["spec"]["selector"]]
            ports = {port["containerPort"] for c in pod["spec"]["containers"] for port in c.get("ports", ())}
            assert {port["targetPort"] for port in part["spec"]["ports"]} <= ports
    for found in strings(documents):
        if isinstance(found, dict) and "envFrom" in found:
            assert ("ConfigMap", found["envFrom"][0]["configMapRef"]["name"]) in names
            assert ("Secret", found["envFrom"][1]["secretRef"]["name"]) in names


def streaming_paths() -> Iterator[str]:
    """A path for each view that answers with a stream, and for each WebSocket.

    `EventViewSet` serves the log page by page, and tickets.
    """

    def walk(patterns: Any, prefix: str) -> Iterator[str]:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, route)
            elif isinstance(pattern, URLPattern):
                view = getattr(pattern.callback, "cls", pattern.callback)
                if view.__module__ == "django_ojs.realtime.views" and view is not StreamingEventViewSet:
                    yield "/" + re.sub(r"<[^>]+>", "some-id", route)

    yield from walk(get_resolver(URLS).url_patterns, "")
    for pattern in websocket_urlpatterns:
        yield f"/{pattern.pattern}"


def test_nginx_sends_streams_and_sockets_to_asgi_and_nothing_else() -> None:
    text = (FILES / "nginx.conf").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"location ~ (\S+) \{\s+proxy_pass http://asgi;", text)
    paths = list(streaming_paths())
    assert len(paths) > 6
    assert [path for path in paths if not re.search(pattern, path)] == []
    for path in ("/ojs/v1/jobs", "/ojs/v1/events", "/ojs/v1/jobs/some-id", "/ojs/v1/queues/mail", "/admin/"):
        assert not re.search(pattern, path)
    limit = re.search(r"client_max_body_size (\d+)m;", text)
    assert limit
    assert int(limit[1]) * 2**20 > Settings().MAX_BATCH_BYTES
    ports = set(re.findall(r"server 127\.0\.0\.1:(\d+);", text))
    asked = {
        word.rpartition(":")[2]
        for _, words in vectors()
        for word in words
        if "127.0.0.1:" in word and "urllib" not in word and "ojs_grpc" not in words  # which speaks HTTP/2
    }
    asked |= {words[words.index("--port") + 1] for _, words in vectors() if "--port" in words}
    assert asked == ports


@pytest.mark.skipif(not shutil.which("sh"), reason="needs a shell")
def test_the_backup_is_a_script_that_a_shell_can_read() -> None:
    subprocess.run(["sh", "-n", FILES / "backup.sh"], check=True, timeout=30)


def test_each_file_is_on_a_page_and_each_page_names_files_that_are_there() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    named = {name.rstrip(")") for name in re.findall(r"files/([\w.@-]+)", text)}
    assert named == {path.name for path in FILES.iterdir()}
