"""What users import and type: the client library and the command line.

import bottomless

with bottomless.connect("http://127.0.0.1:4437") as client:
    with client.producer("orders") as producer:
        producer.append({"id": 1, "item": "tea"})
    for record in client.consumer("orders", follow=False):
        print(record.time, record.value)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from bottomless.backends.base import Message
    from bottomless.backoff import Retry
    from bottomless.blocking import Client, Consumer, Producer
    from bottomless.blocking_modes import Member, Resumable
    from bottomless.client import AsyncClient, ListedStream, StreamInfo
    from bottomless.committed import Committed
    from bottomless.consumer import AsyncConsumer, Record
    from bottomless.delivery import Delivered, ProducerOptions
    from bottomless.errors import (
        BottomlessError,
        Conflict,
        DataDamaged,
        DeliveryUnknown,
        Fenced,
        Gone,
        InvalidRequest,
        NotAllowed,
        NotFound,
        Unavailable,
    )
    from bottomless.formats import register_format
    from bottomless.group import GroupInfo
    from bottomless.member import AsyncMember
    from bottomless.membership import MemberOptions
    from bottomless.positions import After, Newest, Since
    from bottomless.producer import AsyncProducer
    from bottomless.resumable import AsyncResumable, ResumableOptions

__all__ = [
    "After",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMember",
    "AsyncProducer",
    "AsyncResumable",
    "BottomlessError",
    "Client",
    "Committed",
    "Conflict",
    "Consumer",
    "DataDamaged",
    "Delivered",
    "DeliveryUnknown",
    "Fenced",
    "Gone",
    "GroupInfo",
    "InvalidRequest",
    "ListedStream",
    "Member",
    "MemberOptions",
    "Message",
    "Newest",
    "NotAllowed",
    "NotFound",
    "Producer",
    "ProducerOptions",
    "Record",
    "Resumable",
    "ResumableOptions",
    "Retry",
    "Since",
    "StreamInfo",
    "Unavailable",
    "connect",
    "connect_async",
    "register_format",
]

# Imported when first used: `bottomless serve` is this package too, and starts without them.
_HOMES: Final = {
    **dict.fromkeys(("Message",), "bottomless.backends.base"),
    **dict.fromkeys(("Retry",), "bottomless.backoff"),
    **dict.fromkeys(("Client", "Consumer", "Producer"), "bottomless.blocking"),
    **dict.fromkeys(("AsyncClient", "ListedStream", "StreamInfo"), "bottomless.client"),
    **dict.fromkeys(("Member", "Resumable"), "bottomless.blocking_modes"),
    **dict.fromkeys(("Committed",), "bottomless.committed"),
    **dict.fromkeys(("AsyncConsumer", "Record"), "bottomless.consumer"),
    **dict.fromkeys(("Delivered", "ProducerOptions"), "bottomless.delivery"),
    **dict.fromkeys(
        (
            "BottomlessError",
            "Conflict",
            "DataDamaged",
            "DeliveryUnknown",
            "Fenced",
            "Gone",
            "InvalidRequest",
            "NotAllowed",
            "NotFound",
            "Unavailable",
        ),
        "bottomless.errors",
    ),
    **dict.fromkeys(("register_format",), "bottomless.formats"),
    **dict.fromkeys(("GroupInfo",), "bottomless.group"),
    **dict.fromkeys(("AsyncMember",), "bottomless.member"),
    **dict.fromkeys(("MemberOptions",), "bottomless.membership"),
    **dict.fromkeys(("After", "Newest", "Since"), "bottomless.positions"),
    **dict.fromkeys(("AsyncProducer",), "bottomless.producer"),
    **dict.fromkeys(("AsyncResumable", "ResumableOptions"), "bottomless.resumable"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever has that name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def connect(url: str, **options: Any) -> Client:
    """A client that blocks. The address chooses the backend: ``http(s)://`` (a server), ``file://``,
    ``stdio://``, ``redis://``, ``kafka://``. The options are those of AsyncClient: ``token`` …
    """
    from bottomless.blocking import Client

    return Client(url, **options)


def connect_async(url: str, **options: Any) -> AsyncClient:
    """A client to be awaited; made on the event loop that uses it. See `connect`."""
    if "://" in url and not url.startswith(("http://", "https://")):
        from bottomless.backends.client import BackendClient

        # It has the same shape, and refuses by name what only a server can do.
        return cast("AsyncClient", BackendClient(url, **options))
    from bottomless.client import AsyncClient

    return AsyncClient(url, **options)
