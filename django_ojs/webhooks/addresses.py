"""Which addresses a webhook may reach: the public internet and what the site allows, nothing of its own network.

A receiver's URL comes from a client, and this server would call it from inside. So every address that a name
resolves to is checked at the moment of connecting, and the connection goes to the checked address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache

from django_ojs.conf import ojs_settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Refused(ValueError):
    """This server does not connect to that; the message says why, beginning after the URL."""


#: IPv4 addresses of no public host: this network, private, shared (CGNAT), loopback, link-local, protocol
#: assignments, documentation, the 6to4 relay, benchmarks, multicast, reserved and broadcast.
_BLOCKED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # public in form, and the host's own service in one large cloud
    )
)  # fmt: skip
#: IPv6 is allowed only where global unicast is assigned: loopback, mapped, NAT64, unique local, link-local and
#: multicast addresses all lie outside of it. Within it: protocol assignments (Teredo), documentation, 6to4.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_BLOCKED_V6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _BLOCKED_V4)
    return address.scope_id is None and address in _GLOBAL_V6 and not any(address in network for network in _BLOCKED_V6)


def literal(host: str) -> Address | None:
    """The address that `host` is, in the standard spelling; None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_allowed_name(host: str) -> bool:
    """Whether the site lists this host, by name, as one that webhooks may reach wherever it is."""
    return host in _allowlist(tuple(ojs_settings.WEBHOOK_ALLOWED_HOSTS))[0]


def is_listed(address: Address) -> bool:
    """Whether the site lists this address, or a network around it."""
    networks = _allowlist(tuple(ojs_settings.WEBHOOK_ALLOWED_HOSTS))[1]
    return any(address.version == network.version and address in network for network in networks)


def is_allowed(address: Address) -> bool:
    """Whether a connection may go there."""
    return is_public(address) or is_listed(address)


def lookup(host: str, port: int) -> list[str]:
    """What the name resolves to; tests put another in its place. OSError where it does not."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def resolve(host: str, port: int) -> list[str]:
    """The addresses to connect to, each of them checked. Refused if one is not allowed, OSError if there is none."""
    found = list(dict.fromkeys([host] if literal(host) else lookup(host, port)))
    if not found:
        raise OSError(f"{host} has no address")
    if not is_allowed_name(host):
        check(found)
    return found


def check(found: Iterable[str]) -> None:
    """Raise Refused if one of these addresses is not allowed; the error does not name the address."""
    for text in found:
        address = literal(text)
        if address is None or not is_allowed(address):
            raise Refused("leads to an address that webhooks may not reach")


@lru_cache(maxsize=8)
def _allowlist(entries: tuple[str, ...]) -> tuple[frozenset[str], tuple[Network, ...]]:
    """The names and the networks of WEBHOOK_ALLOWED_HOSTS; a single address is a network of one."""
    names: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry))
        except ValueError:
            names.add(entry.lower().rstrip("."))
    return frozenset(names), tuple(networks)
