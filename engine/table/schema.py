"""The public table layout: columns, Delta schema, properties. Documented in docs/format.md."""

from __future__ import annotations

import json
import uuid
from typing import Final

import pyarrow as pa

from engine.types import PayloadKind

PARTITION_COLUMN: Final = "flush_date"
STREAM_PROPERTY: Final = "bottomless.stream"
STATE_PROPERTY: Final = "bottomless.state"
LOG_FOLDER: Final = "_delta_log"

PROTOCOL: Final = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def data_type(kind: PayloadKind) -> pa.DataType:
    """String for what is known to be UTF-8, binary for everything else."""
    return pa.binary() if kind is PayloadKind.BYTES else pa.string()


def arrow_schema(kind: PayloadKind) -> pa.Schema:
    """Columns inside the Parquet files; the partition column lives in the folder names."""
    return pa.schema(
        [
            pa.field("offset", pa.string(), nullable=False),
            pa.field("flushed_at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("key", pa.string()),
            pa.field("data", data_type(kind), nullable=False),
            pa.field("append_seq", pa.int32(), nullable=False),
        ]
    )


def delta_schema(kind: PayloadKind) -> str:
    """The schemaString of the table's metadata. Nullable throughout: files of other writers may be
    so.
    """
    columns = [
        ("offset", "string"),
        ("flushed_at", "timestamp"),
        ("key", "string"),
        ("data", "binary" if kind is PayloadKind.BYTES else "string"),
        ("append_seq", "integer"),
        (PARTITION_COLUMN, "date"),
    ]
    fields = [
        {"name": name, "type": type_name, "nullable": True, "metadata": {}}
        for name, type_name in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def table_properties(*, checkpoint_every: int, log_retention_days: int) -> dict[str, str]:
    """The delta.* properties every stream's table is created with."""
    return {
        "delta.checkpointInterval": str(checkpoint_every),
        "delta.logRetentionDuration": f"interval {log_retention_days} days",
        "delta.deletedFileRetentionDuration": "interval 7 days",
        "delta.dataSkippingNumIndexedCols": "2",
        "delta.enableDeletionVectors": "false",
    }


def table_id(stream_id: int) -> str:
    """The Delta table id of a stream's incarnation."""
    return str(uuid.UUID(int=stream_id))
