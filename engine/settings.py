"""Settings of the engine: plain values, frozen, every one with a bound and a default.

Objects (clock, storage, randomness) are constructor arguments, not settings.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from engine.errors import BadSetting

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

_WILDCARD: Final = re.compile(r"[*?\[]")
_OFFSET: Final = re.compile(r"[0-9]{16}_?[0-9]{16}", re.ASCII)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def trim_point(text: str) -> str:
    """An offset in either spelling, or a moment (UTC where it has no zone), as a stored offset;
    empty for none. Its order is that of the offsets. ValueError where it is neither.
    """
    if not text or _OFFSET.fullmatch(text):
        return text.replace("_", "")
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError("write an offset, or a time like 2026-11-17T14:00:00Z") from error
    # An offset begins with the time of its flush in ms: a moment is the place before the records
    # of that ms (docs/format.md).
    return f"{max(0, since_epoch // timedelta(milliseconds=1)):016d}{0:016d}"


TrimPoint = Annotated[str, AfterValidator(trim_point)]


class WalSettings(Section):
    """The write-ahead log: what an acknowledgement rests on."""

    segment_bytes: int = Field(default=64 * MIB, ge=4 * KIB, le=2 * GIB)
    """A segment is closed and a new one begun when it has grown to this size."""
    bytes_max: int = Field(default=2 * GIB, ge=1 * MIB)
    """Appends are refused (503) while this much WAL waits for its Delta commits."""
    group_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB, le=1 * GIB)
    """Most bytes that may wait for the next group commit; more are refused (503)."""


class CommitSettings(Section):
    """When a stream's tail becomes a Delta version."""

    interval_ms: int = Field(default=1000, ge=10, le=3_600_000)
    """A record waits at most about this long for its commit."""
    bytes: int = Field(default=8 * MIB, ge=4 * KIB, le=1 * GIB)
    """A tail of this size is committed without waiting for the interval."""
    threads: int = Field(default=2, ge=1, le=64)
    """How many streams are committed at the same time."""
    checkpoint_every: int = Field(default=100, ge=2, le=100_000)
    """A Delta checkpoint is written every so many versions, so that opening a table stays fast."""
    log_retention_days: int = Field(default=30, ge=1, le=3650)
    """Log entries older than this and covered by a checkpoint are cleaned up."""


class ReadSettings(Section):
    """How history is served."""

    chunk_bytes: int = Field(default=1 * MIB, ge=1 * KIB, le=64 * MIB)
    """A read returns about this much; the client asks again from Stream-Next-Offset."""
    row_group_bytes: int = Field(default=1 * MIB, ge=1 * KIB, le=64 * MIB)
    """Payload of one Parquet row group: what a random read has to decode."""
    cache_bytes: int = Field(default=64 * MIB, ge=0)
    """Memory for decoded row groups; neighbours and other readers are served from it."""
    footers_max: int = Field(default=256, ge=1)
    """How many Parquet footers are kept open."""
    threads: int = Field(default=2, ge=1, le=64)
    """How many row groups are decoded at the same time."""


class LimitSettings(Section):
    """Bounds that keep one caller from hurting the others."""

    name_bytes: int = Field(default=512, ge=16, le=4096)
    """Longest stream name."""
    body_bytes: int = Field(default=16 * MIB, ge=1 * KIB, le=1 * GIB)
    """Largest body of one append (413 above it)."""
    records_per_append: int = Field(default=100_000, ge=1)
    """Most records in one append (413 above it)."""
    producers_per_stream: int = Field(default=10_000, ge=1)
    """Most producer ids a stream remembers (429 above it)."""
    producer_id_bytes: int = Field(default=256, ge=1, le=4096)
    """Longest producer id."""
    stream_seq_bytes: int = Field(default=256, ge=1, le=4096)
    """Longest Stream-Seq value."""
    content_type_bytes: int = Field(default=256, ge=16, le=4096)
    """Longest content type."""
    tail_bytes: int = Field(default=128 * MIB, ge=1 * MIB, le=1 * GIB)
    """Memory for records that are durable but not yet committed, all streams together (503 above
    it).
    """
    live_readers: int = Field(default=10_000, ge=1)
    """Most long-polls and SSE readers at one time (429 above it)."""
    streams: int = Field(default=1_000_000, ge=1)
    """Most streams (429 above it)."""


class CompactSettings(Section):
    """How the compact job joins small files. Also per stream, in conf/streams.toml."""

    target_file_bytes: int = Field(default=128 * MIB, ge=4 * KIB, le=8 * GIB)
    """Files are joined until they have about this size; one of half of it is left alone."""
    files_min: int = Field(default=8, ge=2, le=100_000)
    """Fewer neighbours than this are not worth a rewrite."""
    rows_max: int = Field(default=20_000_000, ge=100)
    """Most rows of one file."""
    settle_seconds: int = Field(default=10, ge=0)
    """Files of the last so many seconds are left alone."""
    round_bytes: int = Field(default=2 * GIB, ge=1 * MIB)
    """Most bytes of one rewrite; more is done in several rounds, each with a commit of its own."""


class RetainSettings(Section):
    """What the retain job keeps. Also per stream, in conf/streams.toml."""

    age_seconds: int = Field(default=0, ge=0)
    """Records older than this are trimmed; 0 keeps them for ever."""
    bytes: int = Field(default=0, ge=0)
    """The oldest files are trimmed while a stream's table is larger than this; 0 for no bound."""
    records: int = Field(default=0, ge=0)
    """The oldest files are trimmed while more records than this would stay; 0 for no bound."""
    before: TrimPoint = ""
    """Files whose records all lie before this offset or time are trimmed; empty for none."""
    vacuum_hours: int = Field(default=168, ge=0, le=168)
    """Replaced and trimmed files are removed from the disk after this time."""


class CommitOverrides(Section):
    """Commit settings of one stream; None for the server's own."""

    interval_ms: int | None = Field(default=None, ge=10, le=3_600_000)
    bytes: int | None = Field(default=None, ge=4 * KIB, le=1 * GIB)


class CompactOverrides(Section):
    """Compaction settings of one stream."""

    target_file_bytes: int | None = Field(default=None, ge=4 * KIB, le=8 * GIB)
    files_min: int | None = Field(default=None, ge=2, le=100_000)
    rows_max: int | None = Field(default=None, ge=100)
    settle_seconds: int | None = Field(default=None, ge=0)
    round_bytes: int | None = Field(default=None, ge=1 * MIB)


class RetainOverrides(Section):
    """Retention settings of one stream."""

    age_seconds: int | None = Field(default=None, ge=0)
    bytes: int | None = Field(default=None, ge=0)
    records: int | None = Field(default=None, ge=0)
    before: TrimPoint | None = None
    vacuum_hours: int | None = Field(default=None, ge=0, le=168)


class StreamOverrides(Section):
    """What a stream has of its own; kept in its table, so that the jobs see it too."""

    ack: Literal["wal", "table"] | None = None
    """When an append is answered: durable in the log (wal), or in the Delta table (table)."""
    commit: CommitOverrides = CommitOverrides()
    compact: CompactOverrides = CompactOverrides()
    retain: RetainOverrides = RetainOverrides()


NO_OVERRIDES = StreamOverrides()


class StreamDeclaration(StreamOverrides):
    """One table of conf/streams.toml: what streams of a name, or a pattern, inherit."""

    content_type: str | None = None
    """With it a stream of exactly this name is created at the start of the server."""
    ttl_seconds: int | None = Field(default=None, ge=1)


def load_declarations(path: Path) -> dict[str, StreamDeclaration]:
    """Read conf/streams.toml; empty where there is none. ValueError says what is wrong in it."""
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    declared = {}
    for name, table in tables.items():
        try:
            declared[name] = StreamDeclaration.model_validate(table)
        except ValidationError as error:
            lines = [f"  {_where(item)}: {item['msg']}" for item in error.errors()]
            raise ValueError("\n".join([f"{path}, [{name}]:", *lines])) from error
        if declared[name].content_type is not None and _WILDCARD.search(name):
            raise ValueError(f"{path}, [{name}]: only a stream's own name can have a content_type")
    return declared


def inherited(declared: dict[str, StreamDeclaration], name: str) -> StreamOverrides:
    """What conf/streams.toml says about a stream; later tables win."""
    found = NO_OVERRIDES
    for pattern, declaration in declared.items():
        if fnmatchcase(name, pattern):
            found = overlay(found, declaration)
    return found


def overlay(under: StreamOverrides, over: StreamOverrides) -> StreamOverrides:
    """Both, the second one on top."""
    fields = set(StreamOverrides.model_fields)
    lower = under.model_dump(exclude_none=True, include=fields)
    upper = over.model_dump(exclude_none=True, include=fields)
    for key, value in upper.items():
        lower[key] = {**lower.get(key, {}), **value} if isinstance(value, dict) else value
    return StreamOverrides.model_validate(lower)


def merge_overrides(old: StreamOverrides, patch: dict[str, Any]) -> StreamOverrides:
    """The settings with some of them changed; None gives one back to the server's settings.

    ``retain.before`` only rises: what was given up once is not asked for again by a late or a
    lower request. BadSetting where a key or a value is not right.
    """
    values = old.model_dump(exclude_defaults=True)
    for key, value in patch.items():
        known = values.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            values[key] = {**known, **value}
        else:
            values[key] = value
    values = {key: value for key, value in values.items() if value is not None}
    try:
        changed = StreamOverrides.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadSetting(
            f"{_where(first)}: {first['msg']}",
            hint="docs/settings.md lists what a stream can be told.",
        ) from error
    known, wanted = old.retain.before, changed.retain.before
    if known is None or wanted is None or wanted >= known:
        return changed
    retain = changed.retain.model_copy(update={"before": known})
    return changed.model_copy(update={"retain": retain})


class MaintainSettings(Section):
    """When the maintain job does what."""

    interval_seconds: int = Field(default=60, ge=1)
    """It looks at every stream this often."""
    index_commits: int = Field(default=1000, ge=1)
    """A stream's index is made anew after so many commits."""
    retain_interval_seconds: int = Field(default=3600, ge=1)
    """Retention and vacuum run this often for each stream."""


class EngineSettings(Section):
    """All of the engine's settings."""

    wal: WalSettings = WalSettings()
    commit: CommitSettings = CommitSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    streams: dict[str, StreamDeclaration] = {}
    """What conf/streams.toml says, by name or pattern."""


def _where(item: ErrorDetails) -> str:
    return ".".join(map(str, item["loc"]))
