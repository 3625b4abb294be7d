"""The streams this library keeps for itself: positions of resumable consumers, logs of groups.

They are streams like all others, under names nobody takes by accident, so the server needs no new
state and everybody can read them.
"""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from bottomless.errors import Conflict, InvalidRequest, NotAllowed, NotFound
from bottomless.positions import START, After, before, parse_start
from bottomless.transport import records_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bottomless.client import AsyncClient
    from bottomless.positions import Start
    from bottomless.transport import Transport

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Only the end of such a stream counts. A commit of its table once in a while is enough: what is
# acknowledged is safe in the server's log anyway.
_SETTINGS: Final = {"retain": {"records": 10_000}, "commit": {"interval_ms": 5000}}


PAGE: Final = 10_000
# An answer may also end because it is large: the server's bound is 8 MiB of records.
_WHOLE_BYTES: Final = 4 << 20


class StoredEntry(msgspec.Struct):
    """A record of such a stream."""

    offset: str
    data: msgspec.Raw = msgspec.Raw(b"")


class StoredPage(msgspec.Struct):
    """An answer of the records dialect."""

    records: list[StoredEntry]


_decode_page: Final = msgspec.json.Decoder(StoredPage).decode


def position_stream(stream: str, name: str) -> str:
    """Where the positions of a resumable consumer are."""
    return f"_positions/{checked_name(name)}/{stream}"


def group_stream(stream: str, group: str) -> str:
    """Where a group's log is."""
    return f"_groups/{checked_name(group)}/{stream}"


def checked_name(name: str) -> str:
    """One segment of a stream's name, so that no two pairs of names meet in one stream."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no name of a consumer or group",
            hint="Up to 100 letters, digits, '.', '_' and '-', with a letter or digit first.",
        )
    return name


async def make(client: AsyncClient, stream: str) -> None:
    """Make such a stream where it is missing."""
    try:
        found = (await client.info(stream)).content_type
    except NotFound:
        found = ""
    if found and not found.startswith("application/json"):
        raise Conflict(f"{stream} is there already, and is {found}", hint="Delete it first.")
    if not found and await client.create(stream):
        # Without the right to change settings it only takes more room.
        with contextlib.suppress(NotAllowed, NotFound):
            await client.settings(stream, **_SETTINGS)


async def fixed(client: AsyncClient, stream: str, start: Start) -> str:
    """The start as a position that means the same later on."""
    start = parse_start(start) if isinstance(start, str) else start
    if start == "beginning":
        return START
    if isinstance(start, After):
        return start.position
    if start != "live":
        first = await client.consumer(stream, start, follow=False, page=1).next()
        if first is not None:
            return before(first.offset)
    try:
        return (await client.info(stream)).tail.replace("_", "")
    except NotFound:
        # Everything that will be there is new.
        return START


def read_page(content: bytes) -> tuple[list[StoredEntry], bool]:
    """The entries of an answer to a request of PAGE, and whether there were no more."""
    found = _decode_page(content).records
    return found, len(found) < PAGE and len(content) < _WHOLE_BYTES


async def entries_since(transport: Transport, stream: str, since_ms: int) -> list[StoredEntry]:
    """Everything that was stored at that time or later, or at all where that is 0."""
    params = {"offset": START}
    if since_ms > 0:
        params = {"since": datetime.fromtimestamp(since_ms / 1000, UTC).isoformat()}
    found: list[StoredEntry] = []
    is_end = False
    while not is_end:
        params["limit"] = str(PAGE)
        response = await transport.call("GET", records_path(stream), params=params)
        more, is_end = read_page(response.content)
        found += more
        params = {"offset": found[-1].offset if found else START}
    return found


def json_array(entries: Sequence[object]) -> bytes:
    """The body of an append."""
    return msgspec.json.encode(list(entries))
