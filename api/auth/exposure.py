"""Who can reach the server: without access control nobody but this machine may."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from api.settings import BadSettings

if TYPE_CHECKING:
    from api.settings import Settings


def check_exposure(settings: Settings, address: str) -> None:
    """BadSettings if other machines could reach ``address`` and nobody would be asked for a token.

    Checked twice: with the setting, and with the address the socket really has.
    """
    if settings.auth.mode == "on" or is_loopback(address):
        return
    raise BadSettings(
        f"other machines can reach http.host {settings.http.host!r}, and auth.mode is off:"
        " everybody could read, write and delete every stream. Make a token (bottomless token"
        " create --help) and set BOTTOMLESS_AUTH__MODE=on, or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether every address that ``host`` stands for is this machine's own."""
    try:
        return _is_loopback_address(host)
    except ValueError:
        pass
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback_address(str(item[4][0])) for item in found)


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
