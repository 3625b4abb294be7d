"""SeaStreamer's .ss files: the bytes, and nothing but the bytes.

A header of 128 bytes, then messages. At every multiple of the interval a beacon stands in the
middle of whatever is there, and tells how far each stream is: `Encoder` puts them in, `Decoder`
takes them out.
All numbers are big-endian. docs/backends.md has the layout.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bottomless.errors import DataDamaged, InvalidRequest

HEADER_BYTES: Final = 128
INTERVAL: Final = 1 << 20
MAGIC: Final = b"Ss\x01"
END_MARK: Final = 0x0D
INTERNAL_KEY: Final = "SEA_STREAMER_INTERNAL"
END_OF_STREAM: Final = b"EOS"
KEY_BYTES_MAX: Final = 249

_KEY_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_POLYNOMIAL: Final = 0xC867
_NAME_BYTES_MAX: Final = HEADER_BYTES - 17
# Behind the key: shard, sequence, timestamp, and in messages the size of the payload.
_MARKS: Final = struct.Struct(">QQQ")
_MESSAGE: Final = struct.Struct(">QQQI")
_TAIL: Final = struct.Struct(">HB")
_HEADER_NUMBERS: Final = struct.Struct(">QI")
_BEACON: Final = struct.Struct(">BIB")


@functools.cache
def _crc_table() -> array[int]:
    """What two bytes make of a state; made when the first file is opened, in some 30 ms."""
    one = []
    for start in range(256):
        state = start << 8
        for _ in range(8):
            state = (state << 1) ^ _POLYNOMIAL if state & 0x8000 else state << 1
        one.append(state & 0xFFFF)
    half = [(start << 8 & 0xFF00) ^ one[start >> 8] for start in range(65536)]
    return array("H", [(state << 8 & 0xFF00) ^ one[state >> 8] for state in half])


def crc16(data: bytes, state: int = 0xFFFF) -> int:
    """CRC-16/CDMA2000, two bytes at a time."""
    table = _crc_table()
    pairs = array("H", data if len(data) % 2 == 0 else data[:-1])
    if sys.byteorder == "little":
        pairs.byteswap()
    for pair in pairs:
        state = table[state ^ pair]
    if len(data) % 2:
        state ^= data[-1] << 8
        for _ in range(8):
            state = (state << 1) ^ _POLYNOMIAL if state & 0x8000 else state << 1
        state &= 0xFFFF
    return state


def is_key(key: str) -> bool:
    """Whether SeaStreamer takes it as a stream's name."""
    raw = key.encode()
    return 0 < len(raw) <= KEY_BYTES_MAX and _KEY_BYTES.issuperset(raw)


def check_key(key: str) -> str:
    """The key; InvalidRequest where SeaStreamer would not take it."""
    if not is_key(key) or key == INTERNAL_KEY:
        raise InvalidRequest(
            f"{key!r} is no stream key of SeaStreamer",
            hint=f"They have 1 to {KEY_BYTES_MAX} letters, digits, dots, dashes and underscores.",
        )
    return key


@dataclass(frozen=True, slots=True)
class SsMessage:
    """One message, and where it ends in the file."""

    key: str
    shard: int
    sequence: int
    at_ms: int
    payload: bytes
    begin: int
    end: int

    @property
    def is_end(self) -> bool:
        """The mark behind the last message."""
        return self.key == INTERNAL_KEY and self.payload == END_OF_STREAM


@dataclass(slots=True)
class StreamState:
    """How far one stream is: what its beacons say."""

    sequence: int = 0
    at_ms: int = 0
    checksum: int = 0xFFFF

    def add(self, sequence: int, at_ms: int, crc: int) -> None:
        """One more message."""
        self.sequence = max(self.sequence, sequence)
        self.at_ms = max(self.at_ms, at_ms)
        self.checksum = crc16(crc.to_bytes(2, "big"), self.checksum)


Streams = dict[tuple[str, int], StreamState]


def header(file_name: str, created_ms: int, interval: int = INTERVAL) -> bytes:
    """The first bytes of a file."""
    name = file_name.encode()[:_NAME_BYTES_MAX]
    # A name that was cut in the middle of a character would be no text.
    name = name.decode(errors="ignore").encode()
    head = MAGIC + bytes([len(name)]) + name + _HEADER_NUMBERS.pack(created_ms, interval)
    return head.ljust(HEADER_BYTES - 1, b"\0") + bytes([END_MARK])


@dataclass(slots=True)
class Encoder:
    """Makes messages into bytes for the end of a file."""

    position: int = HEADER_BYTES
    interval: int = INTERVAL
    streams: Streams = field(default_factory=dict)
    _turn: int = 0

    def open(self) -> bytes:
        """What has to stand here before the next message: a beacon, or nothing."""
        return self._beacon(0) if self.position % self.interval == 0 else b""

    def add(self, key: str, payload: bytes, *, at_ms: int, sequence: int | None = None) -> bytes:
        """A message of shard 0, with the beacons that fall into it."""
        state = self.streams.setdefault((key, 0), StreamState())
        if sequence is None:
            sequence = state.sequence + 1
        crc = crc16(payload)
        state.add(sequence, at_ms, crc)
        name = key.encode()
        numbers = _MESSAGE.pack(0, sequence, at_ms, len(payload))
        data = b"".join((bytes([len(name)]), name, numbers, payload, _TAIL.pack(crc, END_MARK)))
        return self._interleave(data)

    def end(self, at_ms: int) -> bytes:
        """The mark behind the last message."""
        return self.add(INTERNAL_KEY, END_OF_STREAM, at_ms=at_ms, sequence=0)

    def _interleave(self, data: bytes) -> bytes:
        room = self.interval - self.position % self.interval
        if len(data) < room:
            self.position += len(data)
            return data
        parts, begin = [], 0
        while begin < len(data):
            room = self.interval - self.position % self.interval
            part = data[begin : begin + room]
            begin += len(part)
            self.position += len(part)
            parts.append(part)
            if len(part) == room:
                parts.append(self._beacon(len(data) - begin))
        return b"".join(parts)

    def _beacon(self, remaining: int) -> bytes:
        """Streams take turns where there is no room for all."""
        items: list[bytes] = []
        size = 0
        waiting = list(self.streams.items())
        turn = self._turn % len(waiting) if waiting else 0
        for (key, shard), state in waiting[turn:] + waiting[:turn]:
            name = key.encode()
            item = bytes([len(name)]) + name
            item += _MARKS.pack(shard, state.sequence, state.at_ms)
            item += state.checksum.to_bytes(2, "big")
            size += len(item)
            if size > self.interval // 2 or len(items) == 255:
                break
            items.append(item)
        self._turn += len(items)
        found = _BEACON.pack(END_MARK, remaining, len(items)) + b"".join(items)
        found += bytes([END_MARK])
        self.position += len(found)
        return found


@dataclass(frozen=True, slots=True)
class _Beacon:
    at: int
    """Where it stands in the file."""
    behind: int
    """How many bytes of messages are before it, counted from where the decoder began."""
    remaining: int
    items: tuple[tuple[str, int, int], ...]
    """Key, shard, highest sequence."""


class Decoder:
    """Makes bytes into messages. Begins with a file, or at a position between two messages."""

    def __init__(self, name: str, *, position: int = 0, interval: int = INTERVAL) -> None:
        self._name = name
        self._knows_all = position == 0
        self._has_header = position > 0
        self.interval = interval
        self._raw = bytearray()
        self._at = position
        """Where the first byte of ``_raw`` stands in the file."""
        self._clean = bytearray()
        """Bytes of messages, without beacons."""
        self._taken = 0
        """Bytes of messages before ``_clean``."""
        self._stretches: deque[tuple[int, int]] = deque([(0, position)])
        self._beacons: deque[_Beacon] = deque()
        self._is_behind_beacon = False
        self._error: DataDamaged | None = None
        self.streams: Streams = {}
        self.position = position
        """Behind the last whole message."""

    @property
    def end_position(self) -> int:
        """Behind the last whole message and the beacon after it: where an append goes on."""
        return self.position if self._clean else self._at

    def feed(self, data: bytes) -> list[SsMessage]:
        """More bytes; returns the messages that are whole now. Those before a damaged place come
        first, then DataDamaged.
        """
        if self._error is not None:
            raise self._error
        self._raw += data
        if not self._has_header and not self._read_header():
            return []
        found: list[SsMessage] = []
        try:
            try:
                while self._separate():
                    pass
            finally:
                self._take_messages(found)
        except DataDamaged as error:
            self._error = error
            if not found:
                raise
        return found

    def end(self) -> None:
        """No more bytes come. A file may be cut off anywhere; but not only because a length in it
        is wrong.
        """
        if self._error is not None:
            raise self._error
        for beacon in self._beacons:
            self._check_remaining(beacon)
        clean = bytes(self._clean)
        place = clean.find(END_MARK)
        while place >= 0:
            if self._is_message(clean, place + 1):
                raise self._damaged(self._file_place(self._taken), "its length is wrong")
            place = clean.find(END_MARK, place + 1)

    def _read_header(self) -> bool:
        raw = bytes(self._raw[:HEADER_BYTES])
        if not MAGIC.startswith(raw[:3]):
            raise self._damaged(0, "it does not begin as .ss files do")
        if len(raw) < HEADER_BYTES:
            return False
        begin = 4 + raw[3]
        if raw[3] > _NAME_BYTES_MAX or raw[-1] != END_MARK:
            raise self._damaged(0, "the header is not right")
        _, self.interval = _HEADER_NUMBERS.unpack_from(raw, begin)
        if self.interval == 0 or self.interval % 1024:
            raise self._damaged(begin + 8, f"no file has beacons every {self.interval} bytes")
        del self._raw[:HEADER_BYTES]
        self._has_header = True
        self._at = self.position = HEADER_BYTES
        self._stretches = deque([(0, HEADER_BYTES)])
        return True

    def _separate(self) -> bool:
        """Move bytes of messages over to ``_clean``, up to the next beacon; or take that beacon."""
        if not self._raw:
            return False
        if self._at % self.interval == 0 and not self._is_behind_beacon:
            size = self._beacon_size()
            if size is None:
                return False
            self._at += size
            del self._raw[:size]
            self._is_behind_beacon = True
            self._stretches.append((self._taken + len(self._clean), self._at))
            return True
        count = min(len(self._raw), self.interval - self._at % self.interval)
        self._clean += self._raw[:count]
        del self._raw[:count]
        self._at += count
        self._is_behind_beacon = False
        return True

    def _beacon_size(self) -> int | None:
        """Read the beacon that stands here; None where it is not whole yet."""
        raw = self._raw
        if raw[0] != END_MARK:
            raise self._damaged(self._at, "there is no beacon where one has to be")
        if len(raw) < _BEACON.size:
            return None
        _, remaining, count = _BEACON.unpack_from(raw)
        place, items = _BEACON.size, []
        for _ in range(count):
            begin = place + 1
            if place >= len(raw):
                return None
            marks = begin + raw[place]
            place = marks + _MARKS.size + 2
            if place > len(raw):
                return None
            key = self._key(bytes(raw[begin:marks]), self._at)
            shard, sequence, _ = _MARKS.unpack_from(raw, marks)
            items.append((key, shard, sequence))
        if place >= len(raw):
            return None
        if raw[place] != END_MARK:
            raise self._damaged(self._at, "a beacon does not end where it should")
        behind = self._taken + len(self._clean)
        self._beacons.append(_Beacon(self._at, behind, remaining, tuple(items)))
        return place + 1

    def _take_messages(self, found: list[SsMessage]) -> None:
        clean, place = bytes(self._clean), 0
        self._check_beacons(self._taken)
        while (end := self._message_end(clean, place)) is not None:
            message = self._message(clean, place, end)
            place = end
            self.position = message.end
            self._check_beacons(self._taken + place)
            found.append(message)
        self._taken += place
        del self._clean[:place]

    def _message_end(self, clean: bytes, place: int) -> int | None:
        """None where the message is not whole yet."""
        if place >= len(clean):
            return None
        numbers = place + 1 + clean[place]
        if clean[place] == 0:
            raise self._damaged(self._file_place(self._taken + place), "a message has no key")
        if numbers + _MESSAGE.size > len(clean):
            return None
        size: int = _MESSAGE.unpack_from(clean, numbers)[3]
        end = numbers + _MESSAGE.size + size + _TAIL.size
        return end if end <= len(clean) else None

    def _message(self, clean: bytes, place: int, end: int) -> SsMessage:
        begin_at = self._file_place(self._taken + place)
        numbers = place + 1 + clean[place]
        key = self._key(clean[place + 1 : numbers], begin_at)
        shard, sequence, at_ms, _ = _MESSAGE.unpack_from(clean, numbers)
        payload = clean[numbers + _MESSAGE.size : end - _TAIL.size]
        crc, mark = _TAIL.unpack_from(clean, end - _TAIL.size)
        if mark != END_MARK:
            raise self._damaged(begin_at, "a message does not end where it should")
        if crc != crc16(payload):
            raise self._damaged(begin_at, "a message does not match its checksum")
        self.streams.setdefault((key, shard), StreamState()).add(sequence, at_ms, crc)
        end_at = self._file_end(self._taken + end)
        return SsMessage(key, shard, sequence, at_ms, payload, begin_at, end_at)

    def _is_message(self, clean: bytes, place: int) -> bool:
        """Whether a whole message stands there, by its checksum."""
        end = (
            self._message_end(clean, place)
            if clean[place : place + 1] not in (b"", b"\0")
            else None
        )
        if end is None or clean[end - 1] != END_MARK:
            return False
        numbers = place + 1 + clean[place]
        payload = clean[numbers + _MESSAGE.size : end - _TAIL.size]
        return (
            _KEY_BYTES.issuperset(clean[place + 1 : numbers])
            and crc16(payload) == _TAIL.unpack_from(clean, end - _TAIL.size)[0]
        )

    def _check_beacons(self, place: int) -> None:
        """Up to a place between two messages: do they say what was read?"""
        while self._beacons and self._beacons[0].behind <= place:
            beacon = self._beacons.popleft()
            if beacon.behind + beacon.remaining != place:
                raise self._damaged(beacon.at, "a beacon does not fit the message around it")
            # SeaStreamer 0.5 begins times and running checksums anew when it appends to a file, so
            # only the sequence is the same in every good file.
            for key, shard, sequence in beacon.items if self._knows_all else ():
                state = self.streams.get((key, shard))
                if state is None or state.sequence != sequence:
                    raise self._damaged(beacon.at, f"a beacon tells something else of {key!r}")

    def _check_remaining(self, beacon: _Beacon) -> None:
        """In a message that is cut off."""
        clean = bytes(self._clean)
        if not clean or 1 + clean[0] + _MESSAGE.size > len(clean):
            return
        size: int = _MESSAGE.unpack_from(clean, 1 + clean[0])[3]
        whole = 1 + clean[0] + _MESSAGE.size + size + _TAIL.size
        if beacon.behind + beacon.remaining != self._taken + whole:
            raise self._damaged(self._file_place(self._taken), "its length is wrong")

    def _key(self, raw: bytes, at: int) -> str:
        if not raw or not _KEY_BYTES.issuperset(raw):
            raise self._damaged(at, f"{raw[:40]!r} is no stream key")
        return raw.decode()

    def _file_place(self, place: int) -> int:
        """Where in the file a message begins; called in order."""
        while len(self._stretches) > 1 and self._stretches[1][0] <= place:
            self._stretches.popleft()
        begin, at = self._stretches[0]
        return at + place - begin

    def _file_end(self, place: int) -> int:
        """Where a message ends: before a beacon that stands right behind it."""
        begin, at = self._stretches[0]
        for stretch in self._stretches:
            if stretch[0] >= place:
                break
            begin, at = stretch
        return at + place - begin

    def _damaged(self, at: int, why: str) -> DataDamaged:
        return DataDamaged(f"{self._name} is damaged at byte {at}: {why}")
