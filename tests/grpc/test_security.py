"""Who may call: keys, scopes and limits as over HTTP, and TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from django_ojs import keys
from django_ojs.grpc import messages
from django_ojs.grpc.definition import MESSAGES, METHODS, Stub
from django_ojs.grpc.server import TLS, check_exposure
from django_ojs.jobs.push import push
from django_ojs.models import AuditEntry, Job, Worker
from tests.grpc.serving import Served, serving
from tests.grpc.streaming import Listener, refused


@pytest.fixture
def guarded(transactional_db: None, settings: Any) -> Iterator[Served]:
    """A server whose callers need keys."""
    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": False}
    with serving() as found:
        yield found
    connections.close_all()


def key(*scopes: str, **limits: Any) -> str:
    made = keys.create(f"key-{'-'.join(scopes)}", scopes=list(scopes), **limits)
    return made.text if hasattr(made, "text") else made[1]


PUBLIC = {"Manifest", "Health"}


@pytest.mark.parametrize("rpc", sorted(METHODS))
def test_every_rpc_but_the_public_ones_needs_a_key(guarded: Served, rpc: str) -> None:
    call = getattr(guarded.stub, rpc)
    message = METHODS[rpc].request()
    try:
        answer = call(message, timeout=60)
        if METHODS[rpc].streams:
            list(answer)
    except grpc.RpcError as error:
        code = error.code().name
    else:
        code = "OK"
    assert code == ("OK" if rpc in PUBLIC else "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "metadata",
    [
        {"authorization": "Bearer ojs_nothing"},
        {"x_ojs_api_key": "ojs_nothing"},
        {"authorization": "Bearer ojs_a", "x_ojs_api_key": "ojs_b"},
        {"authorization": "Basic eDp5", "x_ojs_api_key": "ojs_b"},
    ],
)
def test_a_bad_key_comes_before_a_bad_request(guarded: Served, metadata: dict[str, str]) -> None:
    refused = guarded.refused("Enqueue", {"type": "No Type"}, **metadata)
    assert (refused.code.name, refused.reason) == ("UNAUTHENTICATED", "unauthenticated")
    assert b"ojs_" not in refused.raw.replace(b"ojs_apikey", b"")


def test_a_broken_message_of_a_stranger_is_not_looked_at(guarded: Served) -> None:
    call = guarded.channel.unary_unary("/ojs.v1.OJSService/Enqueue")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_list_for_a_stranger_is_not_looked_at(guarded: Served) -> None:
    message = MESSAGES["ListDeadLetterRequest"]()
    message.attributes["type"].SetInParent()  # a value of no kind
    with pytest.raises(grpc.RpcError) as caught:
        guarded.stub.ListDeadLetter(message, timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as caught:
        guarded.stub.ListDeadLetter(message, metadata=[("x-ojs-api-key", key("read"))], timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_key_may_do_what_its_scope_says(guarded: Served) -> None:
    push = key("push")
    job = guarded.call("Enqueue", {"type": "a", "args": []}, authorization=f"Bearer {push}")["job"]
    guarded.call("Enqueue", {"type": "a", "args": []}, x_ojs_api_key=push)
    guarded.call("Enqueue", {"type": "a", "args": []}, x_ojs_api_key=push, authorization=f"Bearer {push}")
    refused = guarded.refused("Fetch", {"queues": ["default"]}, x_ojs_api_key=push)
    assert (refused.code.name, refused.reason) == ("PERMISSION_DENIED", "permission_denied")
    assert refused.info.metadata["required_scope"] == "work"
    assert refused.info.metadata["principal"] == "key:key-push"
    assert refused.info.metadata["operation"]
    assert guarded.refused("CancelJob", {"job_id": job["id"]}, x_ojs_api_key=push).code.name == "PERMISSION_DENIED"
    assert Job.objects.filter(state="available").count() == 3


def test_a_key_is_limited_to_its_queues_and_types(guarded: Served) -> None:
    limited = key("push", "work", queues=["mail"], job_types=["mail.*"])
    guarded.call("Enqueue", {"type": "mail.send", "args": [], "options": {"queue": "mail"}}, x_ojs_api_key=limited)
    for document in ({"type": "mail.send", "args": []}, {"type": "a", "args": [], "options": {"queue": "mail"}}):
        assert guarded.refused("Enqueue", document, x_ojs_api_key=limited).code.name == "PERMISSION_DENIED"
    refused = guarded.refused("Fetch", {"queues": ["mail", "other"]}, x_ojs_api_key=limited)
    assert refused.info.metadata["queue"] == "other"
    assert len(guarded.call("Fetch", {"queues": ["mail"]}, x_ojs_api_key=limited)["jobs"]) == 1


@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
@pytest.mark.parametrize("rpc", ["Enqueue", "EnqueueBatch"])
def test_a_push_of_a_limited_key_ends_and_shows_no_job_beyond_it(guarded: Served, rpc: str, on_conflict: str) -> None:
    unique = {"keys": ["args"], "on_conflict": on_conflict}
    document = {"type": "mail.send", "args": [1], "queue": "b", "unique": unique}
    row = push([{**document, "meta": {"secret": "for no one else"}}])[0].row
    assert row is not None
    own = {"type": "mail.send", "args": [1], "options": {"queue": "a", "unique": unique}}
    body = own if rpc == "Enqueue" else {"jobs": [own]}
    refused = guarded.refused(rpc, body, x_ojs_api_key=key("push", queues=["a"]))
    assert (refused.code.name, refused.reason) == ("ALREADY_EXISTS", "duplicate")
    assert str(row["id"]).encode() not in refused.raw
    assert b"for no one else" not in refused.raw
    assert b"existing" not in refused.raw
    assert Job.objects.get().state == "available"


class ByName(BaseAuthentication):
    def authenticate(self, request: Request) -> Any:
        user = get_user_model().objects.filter(username=request.META.get("HTTP_X_NAME", "")).first()
        return user and (user, None)


def test_whom_a_class_of_the_site_knows_has_streams_too(guarded: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "AUTHENTICATION_CLASSES": [f"{__name__}.{ByName.__name__}"]}
    get_user_model().objects.create_superuser("ann", "ann@example.org", "x")
    events = Listener(guarded, "StreamEvents", {"event_types": ["job.enqueued"]}, x_name="ann")
    jobs = Listener(guarded, "StreamJobs", {"queues": ["default"], "worker_id": "w"}, x_name="ann")
    job = guarded.call("Enqueue", {"type": "a", "args": []}, x_name="ann")["job"]
    assert [events.next()["data"]["job_id"], jobs.next()["id"]] == [job["id"], job["id"]]
    events.leave()
    jobs.leave()


def test_operators_and_refusals_are_audited(guarded: Served) -> None:
    admin, push = key("admin"), key("push")
    guarded.call("PauseQueue", {"queue": "mail"}, x_ojs_api_key=admin, x_ojs_request_id="pause-1")
    guarded.refused("PauseQueue", {"queue": "mail"}, x_ojs_api_key=push)
    entries = list(AuditEntry.objects.order_by("id").values_list("action", "target", "outcome"))
    assert ("queue.pause", "mail", "success") in entries or ("queue.pause", "mail", "ok") in entries
    assert [entry for entry in entries if entry[2] == "denied"]


def test_keys_do_not_travel_in_the_open(settings: Any) -> None:
    settings.DEBUG, settings.OJS = False, {}
    for address in ("127.0.0.1:9090", "localhost:9090", "[::1]:9090", "unix:/run/ojs.sock"):
        check_exposure(address, None)
    for address in ("0.0.0.0:9090", "[::]:9090", "10.0.0.1:9090", "ojs.example.com:9090"):
        with pytest.raises(ImproperlyConfigured, match=r"GRPC_TLS_CERTIFICATE.*GRPC_BEHIND_TLS_PROXY"):
            check_exposure(address, None)
        check_exposure(address, TLS(Path("c"), Path("k")))
    settings.OJS = {"GRPC_BEHIND_TLS_PROXY": True}
    check_exposure("0.0.0.0:9090", None)
    settings.DEBUG, settings.OJS = True, {}
    check_exposure("0.0.0.0:9090", None)


def test_half_a_configuration_of_tls_is_refused(settings: Any) -> None:
    settings.OJS = {"GRPC_TLS_CERTIFICATE": "c.pem"}
    with pytest.raises(ImproperlyConfigured, match="GRPC_TLS_KEY"):
        TLS.of_settings()
    settings.OJS = {"GRPC_TLS_CLIENT_CA": "ca.pem"}
    with pytest.raises(ImproperlyConfigured, match="GRPC_TLS_CERTIFICATE"):
        TLS.of_settings()
    settings.OJS = {"GRPC_TLS_CERTIFICATE": "/nowhere/c.pem", "GRPC_TLS_KEY": "/nowhere/k.pem"}
    found = TLS.of_settings()
    assert found is not None
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        found.credentials()


class Authority:
    """A CA of this test."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), ca=True)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """A certificate and its key."""
        own = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(subject, own.public_key(), ca=False), own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def _sign(self, subject: x509.Name, public: Any, *, ca: bool) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        )  # fmt: skip
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def tls(folder: Path, authority: Authority, client_ca: bytes | None = None) -> TLS:
    certificate, private = authority.issue("server")
    (folder / "c.pem").write_bytes(certificate)
    (folder / "k.pem").write_bytes(private)
    if client_ca is not None:
        (folder / "ca.pem").write_bytes(client_ca)
    return TLS(folder / "c.pem", folder / "k.pem", folder / "ca.pem" if client_ca is not None else None)


def manifest(served: Served, root: bytes, pair: tuple[bytes, bytes] | None = None) -> str:
    """What a client gets that trusts `root` and shows `pair`."""
    certificate, private = pair or (None, None)
    credentials = grpc.ssl_channel_credentials(root, private, certificate)
    with grpc.secure_channel(served.address, credentials) as channel:
        try:
            Stub(channel).Manifest(messages.to_message("ManifestRequest", {}), timeout=60)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


@pytest.mark.django_db(transaction=True)
def test_tls_and_its_files_when_they_change(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    with serving(tls=tls(tmp_path, first)) as served:
        assert manifest(served, first.certificate) == "OK"
        assert manifest(served, second.certificate) == "UNAVAILABLE"
        tls(tmp_path, second)
        assert manifest(served, second.certificate) == "OK"
        assert manifest(served, first.certificate) == "UNAVAILABLE"
        (tmp_path / "c.pem").unlink()  # the old ones stay
        assert manifest(served, second.certificate) == "OK"
    connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_a_client_without_a_certificate_is_refused_in_the_handshake(tmp_path: Path) -> None:
    ours, clients, others = Authority("ours"), Authority("clients"), Authority("others")
    with serving(tls=tls(tmp_path, ours, clients.certificate)) as served:
        assert manifest(served, ours.certificate) == "UNAVAILABLE"
        assert manifest(served, ours.certificate, others.issue("x")) == "UNAVAILABLE"
        assert manifest(served, ours.certificate, clients.issue("x")) == "OK"
    connections.close_all()


def test_the_worker_of_another_key_is_nobodys_business(guarded: Served) -> None:
    owner, other = key("work", "push", queues=["b"]), key("work", "read", "push", queues=["a"])
    guarded.call("Heartbeat", {"worker_id": "wb"}, x_ojs_api_key=owner)
    job = guarded.call("Enqueue", {"type": "a", "args": [], "options": {"queue": "a"}}, x_ojs_api_key=other)["job"]
    before = [*Worker.objects.values(), *Job.objects.values()]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("Heartbeat", {"worker_id": "wb", "state": "terminate"}),
        ("Heartbeat", {"id": "wb"}),
        ("Heartbeat", {"id": job["id"], "worker_id": "wb"}),
        ("Fetch", {"queues": ["a"], "worker_id": "wb"}),
        ("Ack", {"job_id": job["id"], "worker_id": "wb"}),
        ("Nack", {"job_id": job["id"], "worker_id": "wb", "error": {"code": "x", "message": "x"}}),
    ]
    for rpc, document in calls:
        assert guarded.refused(rpc, document, x_ojs_api_key=other).code.name == "PERMISSION_DENIED", (rpc, document)
    stream = refused(guarded, "StreamJobs", {"queues": ["a"], "worker_id": "wb"}, x_ojs_api_key=other)
    assert stream.code.name == "PERMISSION_DENIED"
    assert [*Worker.objects.values(), *Job.objects.values()] == before
    assert guarded.call("Fetch", {"queues": ["a"], "worker_id": "wa"}, x_ojs_api_key=other)["jobs"]


def test_a_heartbeat_for_a_job_leaves_the_row_of_its_worker_alone(guarded: Served) -> None:
    work, other = key("work", "push"), key("work", "read")
    guarded.call("Enqueue", {"type": "a", "args": []}, x_ojs_api_key=work)
    (job,) = guarded.call("Fetch", {"queues": ["default"], "worker_id": "w"}, x_ojs_api_key=work)["jobs"]
    Worker.objects.update(state="quiet", active_jobs=7)
    until, before = Job.objects.get().visible_until, Worker.objects.values().get()
    for text in (work, other):
        document = {"id": job["id"], "visibility_timeout_ms": 7_200_000}
        answer = guarded.call("Heartbeat", document, x_ojs_api_key=text)
        assert answer["state"] == "quiet", "what its worker is to do"
    assert Job.objects.get().visible_until > until
    assert Worker.objects.values().get() == before


@pytest.mark.parametrize("free", [False, True])
def test_a_heartbeat_for_the_worker_of_another_tells_nothing_of_its_jobs(guarded: Served, free: bool) -> None:
    owner, foreigner = key("work", "push"), key("work", queues=["a"])
    guarded.call("Enqueue", {"type": "b.run", "args": [], "options": {"queue": "b"}}, x_ojs_api_key=owner)
    guarded.call("Fetch", {"queues": ["b"], "worker_id": "wb"}, x_ojs_api_key=owner)
    if free:
        Worker.objects.update(owner="", queues=None)
    until = Job.objects.get().visible_until
    document = {"worker_id": "wb", "visibility_timeout_ms": 7_200_000}
    if free:
        answer = guarded.call("Heartbeat", document, x_ojs_api_key=foreigner)
        assert not any(map(answer.get, ("jobs_extended", "jobs_lost", "cancelled_jobs")))
    else:
        refused = guarded.refused("Heartbeat", document, x_ojs_api_key=foreigner)
        assert (refused.code.name, refused.info.metadata.get("queue")) == ("PERMISSION_DENIED", None)
        assert "another caller" in refused.message
    assert Job.objects.get().visible_until == until
