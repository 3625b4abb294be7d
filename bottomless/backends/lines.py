"""SeaStreamer's line format: ``[timestamp | stream_key | sequence | shard_id] payload``.

Any of the four may be missing from either end, as long as what is there is in that order and a
sequence has a key. A line without a bracket is a payload.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bottomless.backends.ss import is_key
from bottomless.errors import DataDamaged

_HEADER: Final = re.compile(rb"\[([^\]]+)\] ?")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says."""

    payload: bytes
    at_ms: int | None = None
    key: str = ""
    sequence: int | None = None
    shard: int | None = None


def parse_line(line: bytes) -> Line:
    """A line without its end; DataDamaged where its header is none."""
    found = _HEADER.match(line)
    if found is None:
        return Line(line)
    head = found[1].decode(errors="replace")
    parts = [part.strip() for part in head.split("|")]
    at_ms = _time_ms(parts[0])
    rest = parts if at_ms is None else parts[1:]
    if len(rest) > 3 or (rest and not is_key(rest[0])):
        raise _no_header(head)
    numbers = [int(part) for part in rest[1:] if _NUMBER.fullmatch(part)]
    if len(numbers) != len(rest[1:]):
        raise _no_header(head)
    return Line(
        line[found.end() :],
        at_ms,
        rest[0] if rest else "",
        numbers[0] if numbers else None,
        numbers[1] if len(numbers) > 1 else None,
    )


def format_line(line: Line) -> bytes:
    """The line, without its end."""
    parts = [] if line.at_ms is None else [time_text(line.at_ms)]
    if line.key:
        numbers = [number for number in (line.sequence, line.shard) if number is not None]
        parts += [line.key, *map(str, numbers)]
    return b"[" + " | ".join(parts).encode() + b"] " + line.payload


def time_text(at_ms: int) -> str:
    """As SeaStreamer writes it: UTC, with ms."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{at_ms % 1000:03}"


def _time_ms(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1000 + int((found[2] or "").ljust(3, "0")[:3])


def _no_header(head: str) -> DataDamaged:
    return DataDamaged(
        f"[{head}] is no header of SeaStreamer's line format",
        hint="It is [timestamp | stream_key | sequence | shard_id]; a payload that begins with a"
        " bracket needs a header before it.",
    )
