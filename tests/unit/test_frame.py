"""WAL bytes: round trips, and every possible cut and flip of a small segment."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import ChecksumMismatch, DataCorrupt, VersionUnsupported
from engine.format.batch import Batch
from engine.format.frame import (
    SEGMENT_HEADER_BYTES,
    AppendEntry,
    AppendMeta,
    CreateEntry,
    DeleteEntry,
    StreamMeta,
    decode_frames,
    decode_segment_header,
    encode_append,
    encode_create,
    encode_delete,
    encode_frame,
    encode_segment_header,
)
from engine.format.offset import make_offset

FIRST_LSN = 7
EPOCH = 1_760_000_000_000
META = StreamMeta(id=2**62, name="a/ü", content_type="text/plain", created_at_ms=1, ttl_seconds=5)


def frame(lsn: int, *entries: list) -> bytes:
    payload = b"".join(part for parts in entries for part in parts)
    return encode_frame(lsn, EPOCH + lsn, len(entries), payload) + payload


def append(lsn: int, data: bytes, count: int = 1) -> list:
    lengths = None
    if count > 1:
        lengths = np.array([len(part) for part in data.split(b",")], dtype="<u4")
    batch = Batch(make_offset(EPOCH + lsn, 1), count, data, lengths)
    return encode_append(1, make_offset(EPOCH, lsn), batch, closes=False, meta=None)


def segment() -> tuple[bytes, list[int]]:
    """Three frames, and where each ends."""
    frames = [
        frame(7, encode_create(META), append(7, b"first")),
        frame(8, append(8, b"1,22,333", 3)),
        frame(9, append(9, b"third"), encode_delete(1)),
    ]
    ends = np.cumsum([SEGMENT_HEADER_BYTES, *map(len, frames)])[1:].tolist()
    return encode_segment_header(FIRST_LSN) + b"".join(frames), ends


def decode(data: bytes) -> list:
    """What a start-up makes of a segment: one item per frame."""
    first_lsn = decode_segment_header(data, path="p")
    if first_lsn is None:
        return []
    found = decode_frames(data, first_lsn=first_lsn, path="p")
    return [(one.lsn, one.epoch, [plain(entry) for entry in one.entries]) for one in found]


def plain(entry: object) -> object:
    if isinstance(entry, AppendEntry) and entry.batch is not None:
        batch = entry.batch
        lengths = batch.record_lengths().tolist()
        return entry.previous, batch.first, batch.last, bytes(batch.data), lengths, entry.meta
    return entry


def test_frame_round_trip_keeps_every_field():
    meta = AppendMeta("prodücer", 2**53 - 1, 4, "seq")
    batch = Batch(make_offset(EPOCH, 5), 2, b"1,22", np.array([1, 2], dtype="<u4"))
    closing = encode_append(9, make_offset(3, 4), batch, closes=True, meta=meta)
    only_close = encode_append(9, make_offset(3, 4), None, closes=True, meta=None)
    payload = b"".join([*encode_create(META), *closing, *only_close, *encode_delete(9)])
    data = encode_segment_header(1) + encode_frame(1, EPOCH, 4, payload) + payload
    (found,) = decode_frames(data, first_lsn=1, path="p")
    assert (found.lsn, found.epoch, found.end) == (1, EPOCH, len(data))
    created, appended, closed, deleted = found.entries
    assert created == CreateEntry(META.id, META)
    assert (appended.stream_id, appended.previous) == (9, make_offset(3, 4))
    assert appended.closes
    assert appended.meta == meta
    assert (appended.batch.first, appended.batch.last) == (batch.first, batch.last)
    assert appended.batch.lengths.tolist() == [1, 2]
    assert closed == AppendEntry(9, make_offset(3, 4), None, True, None)
    assert deleted == DeleteEntry(9)


def test_frame_cut_anywhere_gives_the_whole_frames_before_it():
    data, ends = segment()
    everything = decode(data)
    assert len(everything) == 3
    for length in range(len(data)):
        whole = sum(end <= length for end in ends)
        assert decode(data[:length]) == everything[:whole], f"cut at {length}"


def test_frame_cut_anywhere_and_padded_with_zeros_gives_the_whole_frames_before_it():
    """A file system may have made the file longer before it wrote the data."""
    data, ends = segment()
    everything = decode(data)
    for length in range(SEGMENT_HEADER_BYTES, len(data)):
        padded = data[:length] + bytes(len(data) - length)
        whole = sum(end <= length or padded[:end] == data[:end] for end in ends)
        assert decode(padded) == everything[:whole], f"cut at {length}"


@pytest.mark.parametrize("mask", [1, 0x80, 0xFF])
def test_frame_with_any_byte_flipped_is_never_wrong_and_hides_no_good_frame(mask: int):
    data, ends = segment()
    everything = decode(data)
    last_begin = ends[-2]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= mask
        try:
            found = decode(bytes(flipped))
        except DataCorrupt:
            assert place < last_begin, f"byte {place}: a torn last frame is no reason to refuse"
            continue
        if found == everything:
            assert place < SEGMENT_HEADER_BYTES, f"byte {place} is not covered by a checksum"
        else:
            assert found == everything[:-1], f"byte {place}"
            assert place >= last_begin, f"byte {place}: a good frame was dropped in silence"


def test_frame_of_an_unknown_kind_is_refused_by_name():
    payload = b"\x63" + bytes(15)
    data = encode_segment_header(1) + encode_frame(1, EPOCH, 1, payload) + payload
    with pytest.raises(VersionUnsupported, match="99"):
        list(decode_frames(data, first_lsn=1, path="p"))


def test_frame_torn_with_an_old_frame_in_its_payload_is_only_torn():
    """Somebody keeps copies of a WAL in a stream: its bytes are data, not frames."""
    old = frame(1, append(1, b"x"))
    torn = frame(2, append(2, b"copy:" + old + b":end"))[:-2]
    data = encode_segment_header(1) + old + torn
    found = list(decode_frames(data, first_lsn=1, path="p"))
    assert [one.lsn for one in found] == [1]


def test_frame_out_of_sequence_is_refused():
    data = encode_segment_header(1) + frame(1, append(1, b"a")) + frame(3, append(3, b"c"))
    data += frame(4, append(4, b"d"))
    with pytest.raises(ChecksumMismatch):
        list(decode_frames(data, first_lsn=1, path="p"))


def test_segment_header_of_another_program_is_refused():
    with pytest.raises(VersionUnsupported):
        decode_segment_header(b"#!/bin/sh\n" + bytes(100), path="p")


def test_batch_skip_and_take_agree_with_a_list():
    records = [b"1", b"", b"333", b"4,4", b'"5"']
    lengths = np.array([len(record) for record in records], dtype="<u4")
    batch = Batch(100, len(records), b",".join(records), lengths)
    for begin in range(len(records)):
        rest = batch.skip(begin)
        for count in range(1, rest.count + 1):
            part = rest.take(count)
            assert bytes(part.data) == b",".join(records[begin : begin + count])
            assert (part.first, part.last) == (100 + begin, 100 + begin + count - 1)
    for limit in range(20):
        fitting = batch.count_within(limit)
        if fitting:
            assert len(b",".join(records[:fitting])) <= limit
        if fitting < len(records):
            assert len(b",".join(records[: fitting + 1])) > limit
