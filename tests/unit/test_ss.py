"""SeaStreamer's .ss files, read and written: against a reader made from the format's text alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless.backends import ss
from bottomless.errors import DataDamaged, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

CREATED_MS = 1_700_000_000_123


def crc(data: bytes, state: int = 0xFFFF) -> int:
    """CRC-16/CDMA2000, a bit at a time."""
    for byte in data:
        state ^= byte << 8
        for _ in range(8):
            state = ((state << 1) ^ (0xC867 if state & 0x8000 else 0)) & 0xFFFF
    return state


def independent(data: bytes) -> tuple[dict[str, object], list[tuple[object, ...]], list[int]]:
    """Header, messages and the places of beacons; asserts all that the format promises."""
    assert data[:3] == b"\x53\x73\x01"
    assert data[127] == 0x0D
    name_end = 4 + data[3]
    created, interval = struct.unpack(">QI", data[name_end : name_end + 12])
    assert data[name_end + 12 : 127].strip(b"\0") == b""
    clean, beacons, place = bytearray(), [], 128
    while place < len(data):
        if place % interval == 0:
            mark, remaining, count = struct.unpack_from(">BIB", data, place)
            assert mark == 0x0D
            end, items = place + 6, []
            for _ in range(count):
                key_end = end + 1 + data[end]
                key = data[end + 1 : key_end]
                items.append((key, *struct.unpack_from(">QQQH", data, key_end)))
                end = key_end + 26
            assert data[end] == 0x0D
            beacons.append((place, len(clean), remaining, items))
            place = end + 1
        upto = min(len(data), (place // interval + 1) * interval)
        clean += data[place:upto]
        place = upto
    messages, at, states = [], 0, {}
    waiting = list(beacons)
    while at < len(clean):
        key_end = at + 1 + clean[at]
        key = bytes(clean[at + 1 : key_end])
        shard, sequence, at_ms, size = struct.unpack_from(">QQQI", clean, key_end)
        payload = bytes(clean[key_end + 28 : key_end + 28 + size])
        checksum, mark = struct.unpack_from(">HB", clean, key_end + 28 + size)
        assert (checksum, mark) == (crc(payload), 0x0D)
        high, late, running = states.get((key, shard), (0, 0, 0xFFFF))
        running = crc(checksum.to_bytes(2, "big"), running)
        states[key, shard] = (max(high, sequence), max(late, at_ms), running)
        messages.append((key.decode(), shard, sequence, at_ms, payload))
        at = key_end + 28 + size + 3
        while waiting and waiting[0][1] <= at:
            _, behind, remaining, items = waiting.pop(0)
            assert behind + remaining == at
            for item_key, item_shard, *told in items:
                assert tuple(told) == states[item_key, item_shard]
    assert not waiting
    header = {"name": data[4:name_end].decode(), "created": created, "interval": interval}
    return header, messages, [place for place, *_ in beacons]


def written(messages: Sequence[tuple[str, bytes]], *, interval: int = 1024) -> bytes:
    encoder = ss.Encoder(interval=interval)
    parts = [ss.header("file.ss", CREATED_MS, interval)]
    for number, (key, payload) in enumerate(messages):
        parts.append(encoder.add(key, payload, at_ms=CREATED_MS + number))
    data = b"".join(parts)
    assert encoder.position == len(data)
    return data


def read(data: bytes, step: int = 1 << 20) -> list[ss.SsMessage]:
    decoder, found = ss.Decoder("x.ss"), []
    for begin in range(0, len(data), step):
        found += decoder.feed(data[begin : begin + step])
    decoder.feed(b"")
    decoder.end()
    return found


KEYS = st.sampled_from(["orders", "a", "x-1_2.3", "k" * 249])
MESSAGES = st.lists(st.tuples(KEYS, st.binary(max_size=3000)), max_size=30)
SAMPLE = [(f"key-{number % 3}", bytes([number]) * (number * 97 % 260)) for number in range(14)]


def test_ss_checksum_is_that_of_the_catalogue() -> None:
    assert ss.crc16(b"123456789") == 0x4C06
    assert crc(b"123456789") == 0x4C06


@given(st.binary(max_size=300))
def test_ss_checksum_is_right_for_any_bytes(data: bytes) -> None:
    assert ss.crc16(data) == crc(data)


@given(MESSAGES)
@settings(max_examples=60, deadline=None)
def test_ss_files_are_what_an_independent_reader_wants(messages: list[tuple[str, bytes]]) -> None:
    data = written(messages)
    header, found, beacons = independent(data)
    assert header == {"name": "file.ss", "created": CREATED_MS, "interval": 1024}
    assert [(key, payload) for key, _, _, _, payload in found] == messages
    assert beacons == list(range(1024, len(data), 1024))
    sequences: dict[str, int] = {}
    for key, shard, sequence, _, _ in found:
        sequences[str(key)] = sequences.get(str(key), 0) + 1
        assert (shard, sequence) == (0, sequences[str(key)])


@given(MESSAGES, st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_ss_reader_gives_back_what_was_written(
    messages: list[tuple[str, bytes]], step: int
) -> None:
    data = written(messages)
    found = read(data, step)
    assert [(message.key, message.payload) for message in found] == messages
    assert [message.at_ms for message in found] == [CREATED_MS + n for n in range(len(messages))]


def test_ss_reader_goes_on_behind_any_message() -> None:
    data = written(SAMPLE)
    whole = read(data)
    for number, message in enumerate(whole):
        decoder = ss.Decoder("x.ss", position=message.end, interval=1024)
        rest = decoder.feed(data[message.end :])
        assert [found.payload for found in rest] == [p for _, p in SAMPLE[number + 1 :]]
        assert [found.begin for found in rest] == [found.begin for found in whole[number + 1 :]]


def test_ss_file_may_be_cut_off_anywhere() -> None:
    data = written(SAMPLE)
    whole = read(data)
    for size in range(len(data)):
        found = read(data[:size])
        assert found == [message for message in whole if message.end <= size], size


def test_ss_append_goes_on_after_any_cut() -> None:
    data = written(SAMPLE)
    for size in range(128, len(data)):
        decoder = ss.Decoder("x.ss")
        kept = decoder.feed(data[:size])
        encoder = ss.Encoder(decoder.end_position, decoder.interval, decoder.streams)
        more = data[: decoder.end_position] + encoder.open() + encoder.add("new", b"!", at_ms=1)
        _, found, _ = independent(more)
        assert [message[-1] for message in found] == [m.payload for m in kept] + [b"!"]
        assert len(read(more)) == len(kept) + 1


def test_ss_flipped_byte_is_refused_with_its_place_or_changes_no_payload() -> None:
    """Checksums are of payloads and of beacons: that much a reader can promise."""
    data = written(SAMPLE)
    payloads = [payload for _, payload in SAMPLE]
    refused = 0
    for place in range(128, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        try:
            found = read(bytes(damaged))
        except DataDamaged as error:
            refused += "x.ss is damaged at byte " in str(error)
        else:
            # In the last message a wrong length looks like a file that was cut off.
            got = [message.payload for message in found]
            assert got in (payloads, payloads[:-1]), place
    assert refused > 0.8 * (len(data) - 128)


def test_ss_messages_before_the_damage_are_given_first() -> None:
    data = bytearray(written([("a", b"one"), ("a", b"two"), ("a", b"three")]))
    data[data.index(b"two")] ^= 1
    decoder = ss.Decoder("x.ss")
    assert [message.payload for message in decoder.feed(bytes(data))] == [b"one"]
    with pytest.raises(DataDamaged, match="byte 164: a message does not match its checksum"):
        decoder.feed(b"")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PAR1" + b"\0" * 200, "it does not begin as .ss files do"),
        (b"Ss\x02" + b"\0" * 200, "it does not begin as .ss files do"),
        (b"Ss\x01\x00" + b"\0" * 200, "the header is not right"),
        (b"Sx", "it does not begin as .ss files do"),
        (ss.header("x", 1, 1000) + b"x", "no file has beacons every 1000 bytes"),
        (ss.header("x", 1, 1024) + b"\x00" + b"\0" * 40, "a message has no key"),
        (ss.header("x", 1, 1024) + b"\x01/" + b"\0" * 31, "is no stream key"),
        (ss.header("x", 1, 1024) + bytes(896 + 1), "a message has no key"),
    ],
)
def test_ss_file_that_is_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(DataDamaged, match=why):
        read(data)


def test_ss_a_beacon_must_stand_where_it_has_to() -> None:
    data = bytearray(written([("a", b"x" * 2000)]))
    data[1024] = 0
    with pytest.raises(DataDamaged, match="byte 1024: there is no beacon where one has to be"):
        read(bytes(data))


def test_ss_beacons_of_many_streams_take_turns() -> None:
    keys = [f"stream-with-a-long-name-{number:03}" for number in range(100)]
    messages = [(keys[number % 100], b"x" * 100) for number in range(1000)]
    data = written(messages)
    independent(data)
    assert len(read(data)) == 1000
    decoder = ss.Decoder("x.ss")
    told = set()
    place = 1024
    while place < len(data):
        count = data[place + 5]
        end = place + 6
        for _ in range(count):
            told.add(data[end + 1 : end + 1 + data[end]].decode())
            end += 1 + data[end] + 26
        assert end + 1 - place <= 512 + 7
        place += 1024
    assert told == set(keys)
    decoder.feed(data)


def test_ss_beacons_of_a_file_that_seastreamer_appended_to_are_right() -> None:
    """It goes on with the sequence, and begins its running checksums and times anew."""
    data = written([("a", b"x" * 300), ("a", b"y" * 300)])
    anew = {("a", 0): ss.StreamState(sequence=2)}
    more = ss.Encoder(len(data), 1024, anew).add("a", b"z" * 900, at_ms=1)
    assert [message.sequence for message in read(data + more)] == [1, 2, 3]
    wrong = {("a", 0): ss.StreamState(sequence=7)}
    more = ss.Encoder(len(data), 1024, wrong).add("a", b"z" * 900, at_ms=1, sequence=3)
    with pytest.raises(DataDamaged, match="byte 1024: a beacon tells something else of 'a'"):
        read(data + more)


def test_ss_end_of_stream_is_a_message_of_its_own_key() -> None:
    encoder = ss.Encoder()
    data = ss.header("x", 1) + encoder.add("a", b"1", at_ms=5) + encoder.end(7)
    *_, last = read(data)
    assert last.is_end
    assert (last.key, last.payload, last.at_ms) == ("SEA_STREAMER_INTERNAL", b"EOS", 7)
    independent(data)


@pytest.mark.parametrize("key", ["", "a/b", "ä", "x" * 250, "SEA_STREAMER_INTERNAL", "a b"])
def test_ss_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        ss.check_key(key)


def test_ss_long_file_name_is_cut_at_a_character() -> None:
    head = ss.header("ü" * 100, CREATED_MS)
    assert len(head) == 128
    assert head[4 : 4 + head[3]].decode() == "ü" * 55
    read(head)
