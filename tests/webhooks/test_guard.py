"""Where a webhook may go: nothing of our own network, however the URL, the name or the receiver puts it."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from django_ojs.webhooks import addresses, transport
from django_ojs.webhooks.transport import DeliveryOutcome, WebhookRequest
from tests.webhooks.receiver import Handler, Receiver

INTERNAL = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.8", "192.168.1.1", "198.18.0.1", "203.0.113.7", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "168.63.129.16",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "100::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "3fff::1", "4000::1", "5f00::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "192.167.255.255", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]


@pytest.fixture
def strict(settings: Any) -> None:
    settings.OJS = {}


def send(url: str, timeout: float = 5.0, **headers: str) -> transport.DeliveryReply:
    return transport.send(WebhookRequest(url, b"{}", headers, timeout, frozenset(headers)))


@pytest.mark.parametrize("address", INTERNAL)
def test_internal_addresses_are_refused_as_literals_and_behind_names(
    strict: None, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    assert not addresses.is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises((addresses.AddressRefused, addresses.Malformed)):
        addresses.parse_url(f"https://{host}/")
    monkeypatch.setattr(addresses, "lookup", lambda name, port: ["8.8.8.8", address])
    reply = send("https://innocent.example.com/")
    assert reply.verdict is DeliveryOutcome.DEAD
    assert "may not reach" in reply.error
    assert address not in reply.error, "nobody learns our network from it"


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_let_through(strict: None, address: str) -> None:
    assert addresses.is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    assert addresses.parse_url(f"https://{host}/x").host == address


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost/", "https://LOCALHOST./", "https://a.localhost/", "https://db.internal/",
        "https://printer.local/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/",
        "https://0177.0.0.1/", "https://017700000001/", "https://1.2.3.4.5/", "https://example.0x1/",
        "https://user:pass@example.com/", "https://@example.com/", "https://example.com:22/", "https://example.com:0/",
        "https://example.com:6379/", "http://example.com/", "https://example.com:80/",
    ],
)  # fmt: skip
def test_urls_against_the_policy_are_refused(strict: None, url: str) -> None:
    with pytest.raises((addresses.AddressRefused, addresses.Malformed)):
        addresses.parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "/hook", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://x/",
        "https://", "https:///x", "https:example.com", "https://exa mple.com/", "https://example.com/a b",
        "https://example.com\\@127.0.0.1/", "https://example.com/\r\nHost: x", "https://example.com/\0",
        "https://bücher.example/", "https://exa%6Dple.com/", "https://[::1", "https://[1.2.3.4]/", "https://a..b/",
        "https://-a.example/", "https://example.com:99999/", "https://example.com:x/", "https://e.com/" + "a" * 2048,
        "https://*.example.com/", "https://example.com:443:80/", "jav\tascript:alert(1)",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(strict: None, url: str) -> None:
    with pytest.raises((addresses.AddressRefused, addresses.Malformed)):
        addresses.parse_url(url)


def test_the_allowlist_names_hosts_and_networks(settings: Any) -> None:
    settings.OJS = {"WEBHOOK_ALLOWED_HOSTS": ["hooks.internal", "10.1.0.0/16", "1.1.1.1"], "WEBHOOK_PORTS": [443, 8443]}
    assert addresses.parse_url("https://hooks.internal:9000/").port == 9000
    assert addresses.parse_url("https://10.1.2.3:9000/").host == "10.1.2.3"
    assert addresses.parse_url("https://1.1.1.1:9000/").port == 9000
    for other in ("https://other.internal/", "https://10.2.0.1/", "https://8.8.8.8:9000/"):
        with pytest.raises(addresses.AddressRefused):
            addresses.parse_url(other)


def test_the_connection_goes_to_the_checked_address_under_the_name_of_the_url(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """A second look-up would be answered with another address: there must be none."""
    settings.OJS = {**settings.OJS, "WEBHOOK_ALLOWED_HOSTS": ["hooks.example.com"]}
    answers = iter([["127.0.0.1"]])
    monkeypatch.setattr(addresses, "lookup", lambda host, port: next(answers))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    reply = send(f"http://hooks.example.com:{receiver.port}/x")
    assert reply.verdict is DeliveryOutcome.SUCCESS
    assert receiver.got[0].headers["Host"] == f"hooks.example.com:{receiver.port}"


def test_every_redirect_is_checked_anew(receiver: Receiver) -> None:
    receiver.plan((302, {"Location": "http://169.254.169.254/latest/meta-data/"}, b""))
    reply = send(receiver.url())
    assert (reply.verdict, reply.status) == (DeliveryOutcome.DEAD, None)
    assert "may not reach" in reply.error


@pytest.mark.parametrize(
    "location", ["https://db.internal/", "file:///etc/passwd", "https://a b/", "//127.1/", "\\x", "https://[::1"]
)
def test_a_redirect_to_anything_forbidden_ends_it(receiver: Receiver, location: str) -> None:
    receiver.plan((307, {"Location": location}, b""))
    assert send(receiver.url()).verdict is DeliveryOutcome.DEAD
    assert len(receiver.got) == 1


def test_three_redirects_are_followed_with_the_body_and_a_fourth_is_not(receiver: Receiver) -> None:
    receiver.plan(*[(308, {"Location": f"/{n}"}, b"") for n in range(3)], 204)
    assert send(receiver.url()).verdict is DeliveryOutcome.SUCCESS
    assert [got.path for got in receiver.got] == ["/hook", "/0", "/1", "/2"]
    assert {got.body for got in receiver.got} == {b"{}"}
    receiver.plan(*[(308, {"Location": "/again"}, b"")] * 4)
    reply = send(receiver.url())
    assert (reply.verdict, reply.error) == (DeliveryOutcome.DEAD, "More than 3 redirects.")


def test_headers_of_the_subscription_go_to_its_own_origin_only(receiver: Receiver) -> None:
    other = Receiver()
    try:
        receiver.plan((307, {"Location": other.url()}, b""))
        transport.send(
            WebhookRequest(
                receiver.url(), b"{}", {"Authorization": "s", "X-OJS-Signature": "x"}, 5, frozenset({"Authorization"})
            )
        )
    finally:
        other.close()
    assert receiver.got[0].headers["Authorization"] == "s"
    assert "Authorization" not in other.got[0].headers
    assert other.got[0].headers["X-OJS-Signature"] == "x"


def test_nobody_listening_and_no_such_name_are_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reply = send(f"http://127.0.0.1:{port}/")
    assert (reply.verdict, reply.error) == (DeliveryOutcome.RETRY, "The connection was refused.")
    reply = send("https://nobody.invalid/")
    assert (reply.verdict, reply.error) == (DeliveryOutcome.RETRY, "The name of the host could not be resolved.")


def test_the_timeout_is_for_everything_and_not_for_each_byte(receiver: Receiver) -> None:
    stop = threading.Event()

    def trickle(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.05):
            handler.wfile.write(b"X-Drip: drop\r\n")

    receiver.plan(trickle, lambda handler: stop.wait(60))
    try:
        for _ in range(2):
            reply = send(receiver.url(), timeout=0.5)
            assert (reply.verdict, reply.error) == (DeliveryOutcome.RETRY, "No answer within 0.5 s.")
    finally:
        stop.set()


def test_a_body_that_never_ends_is_read_for_a_while_only(receiver: Receiver) -> None:
    stop = threading.Event()

    def drip(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nbegin")
        handler.wfile.flush()
        stop.wait(60)

    receiver.plan(drip)
    try:
        reply = send(receiver.url(), timeout=0.5)
    finally:
        stop.set()
    assert (reply.verdict, reply.body) == (DeliveryOutcome.SUCCESS, "begin")


@pytest.mark.parametrize(
    "raw", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 banana\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + b"z"]
)
def test_what_is_no_http_is_no_crash(receiver: Receiver, raw: bytes) -> None:
    receiver.plan(lambda handler: handler.wfile.write(raw))
    assert send(receiver.url()).verdict in (DeliveryOutcome.RETRY, DeliveryOutcome.SUCCESS)


def test_bytes_that_no_database_takes_are_replaced(receiver: Receiver) -> None:
    receiver.plan((200, {}, b"a\0b\xff"))
    assert send(receiver.url()).body == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """For hooks.example.com, signed by itself."""
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.example.com")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example.com")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    chain, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(*encoding))
    return chain, private


def test_tls_is_verified_against_the_name_of_the_url(
    receiver: Receiver, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    chain, private = certificate
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, private)
    names: list[str] = []
    server.sni_callback = lambda sock, name, context: names.append(name)
    receiver.server.socket = server.wrap_socket(receiver.server.socket, server_side=True)
    settings.OJS = {**settings.OJS, "WEBHOOK_ALLOWED_HOSTS": ["hooks.example.com", "other.example.com"]}
    monkeypatch.setattr(addresses, "lookup", lambda host, port: ["127.0.0.1"])
    reply = send(f"https://hooks.example.com:{receiver.port}/")
    assert (reply.verdict, reply.error) == (DeliveryOutcome.RETRY, "TLS failed: self-signed certificate.")
    trusting = ssl.create_default_context(cafile=str(chain))
    monkeypatch.setattr(transport, "tls_context", lambda: trusting)
    assert send(f"https://hooks.example.com:{receiver.port}/").verdict is DeliveryOutcome.SUCCESS
    assert names[-1] == "hooks.example.com"
    reply = send(f"https://other.example.com:{receiver.port}/")
    assert reply.verdict is DeliveryOutcome.RETRY
    assert "Hostname mismatch" in reply.error
    assert len(receiver.got) == 1


def test_plain_http_at_a_tls_port_is_a_tls_failure(receiver: Receiver) -> None:
    reply = send(f"https://127.0.0.1:{receiver.port}/")
    assert reply.verdict is DeliveryOutcome.RETRY
    assert reply.error.startswith("TLS failed")
