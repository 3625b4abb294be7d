"""From a request's body to records: split, check, refuse. Whatever could fail at commit fails here
(F8).

JSON records keep their own bytes: a big integer, 1.0, key order and duplicate keys all survive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from engine.errors import BadJson, BadText, PayloadTooLarge
from engine.format.batch import SEPARATOR
from engine.format.json import JSON_SPACE, split_json, without_pairs
from engine.types import PayloadKind

if TYPE_CHECKING:
    from engine.settings import LimitSettings

_SCAN_BYTES: Final = 1 << 18
_QUOTE, _COMMA = b'",'
_OPENING: Final = np.frombuffer(b"[{", np.uint8)
_CLOSING: Final = np.frombuffer(b"]}", np.uint8)


class Records(msgspec.Struct, frozen=True):
    """The records of one append, as a batch wants them; offsets come later."""

    count: int
    data: bytes
    lengths: np.ndarray | None


NO_RECORDS: Final = Records(0, b"", None)


def parse_body(body: bytes, kind: PayloadKind, limits: LimitSettings) -> Records:
    """Records of a non-empty body; a JSON array is taken apart one level deep and may be empty."""
    if len(body) > limits.body_bytes:
        raise PayloadTooLarge(f"the body is larger than {limits.body_bytes} bytes")
    if kind is PayloadKind.BYTES:
        return Records(1, body, None)
    _check_utf8(body, kind)
    if kind is PayloadKind.TEXT:
        return Records(1, body, None)
    return _parse_json(body, limits)


def _check_utf8(body: bytes, kind: PayloadKind) -> None:
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body is not valid UTF-8 (byte {error.start})"
        raise (BadJson if kind is PayloadKind.JSON else BadText)(message) from error


def _parse_json(body: bytes, limits: LimitSettings) -> Records:
    if body.lstrip(JSON_SPACE).startswith(b"["):
        _refuse_too_many(body, limits.records_per_append)
    records = split_json(body)
    if not records:
        return NO_RECORDS
    if len(records) > limits.records_per_append:
        raise _too_many(limits.records_per_append)
    if len(records) == 1:
        return Records(1, bytes(records[0]), None)
    lengths = np.fromiter(map(len, records), dtype="<u4", count=len(records))
    return Records(len(records), SEPARATOR.join(records), lengths)


def _refuse_too_many(body: bytes, records_max: int) -> None:
    """Count the array's elements before they become objects.

    Decoding 5 million of them took 1.6 s and 400 MB; counting stops after the first too many.
    """
    # The length first: to count the commas takes as long as the parser.
    if len(body) <= records_max or body.count(b",") < records_max:
        return
    # Escaped quotes do not end a string.
    plain = without_pairs(body).replace(b'\\"', b"__")
    in_string, depth, commas = 0, 0, 0
    for begin in range(0, len(plain), _SCAN_BYTES):
        block = np.frombuffer(plain, np.uint8)[begin : begin + _SCAN_BYTES]
        quotes = np.cumsum(block == _QUOTE) + in_string
        outside = quotes % 2 == 0
        steps = np.isin(block, _OPENING).astype(np.int64) - np.isin(block, _CLOSING)
        depths = np.cumsum(steps * outside) + depth
        commas += int(np.count_nonzero((block == _COMMA) & outside & (depths == 1)))
        if commas >= records_max:
            raise _too_many(records_max)
        in_string, depth = int(quotes[-1]) % 2, int(depths[-1])


def _too_many(records_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"an append holds at most {records_max} records",
        hint="Send the records in several appends.",
    )
