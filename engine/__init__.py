"""The log itself: durable streams that are Delta tables. These names are its public face."""

from engine.clock import Clock, SystemClock
from engine.errors import BottomlessError
from engine.format.json import json_member
from engine.format.moment import parse_moment, position_at
from engine.format.names import table_folder
from engine.format.offset import START, format_stored, format_wire, parse_offset
from engine.log import Log
from engine.read.live import Follower
from engine.settings import EngineSettings
from engine.types import (
    Ack,
    AppendRequest,
    AppendResult,
    CreateRequest,
    CreateResult,
    ForkRequest,
    Offset,
    PayloadKind,
    ProducerStamp,
    ReadResult,
    RecordsResult,
    StreamInfo,
    StreamName,
    StreamSummary,
    check_stream_name,
    payload_kind,
)

__all__ = [
    "START",
    "Ack",
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
    "RecordsResult",
    "StreamInfo",
    "StreamName",
    "StreamSummary",
    "SystemClock",
    "check_stream_name",
    "format_stored",
    "format_wire",
    "json_member",
    "parse_moment",
    "parse_offset",
    "payload_kind",
    "position_at",
    "table_folder",
]
