"""The log itself: durable streams that are Delta tables. These names are its public face."""

from engine.clock import Clock, SystemClock
from engine.errors import BottomlessError
from engine.format.names import table_folder
from engine.format.offset import START, format_stored, format_wire, parse_offset
from engine.log import Follower, Log
from engine.settings import EngineSettings
from engine.types import (
    AppendRequest,
    AppendResult,
    CreateRequest,
    CreateResult,
    ForkRequest,
    Offset,
    PayloadKind,
    ProducerStamp,
    ReadResult,
    StreamInfo,
    StreamName,
    check_stream_name,
    payload_kind,
)

__all__ = [
    "START",
    "AppendRequest",
    "AppendResult",
    "BottomlessError",
    "Clock",
    "CreateRequest",
    "CreateResult",
    "EngineSettings",
    "Follower",
    "ForkRequest",
    "Log",
    "Offset",
    "PayloadKind",
    "ProducerStamp",
    "ReadResult",
    "StreamInfo",
    "StreamName",
    "SystemClock",
    "check_stream_name",
    "format_stored",
    "format_wire",
    "parse_offset",
    "payload_kind",
    "table_folder",
]
