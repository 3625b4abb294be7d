"""The whole error hierarchy. One root, few kinds, stable codes.

BottomlessError                     code, hint, details
├── InvalidRequest                  fix the call
│   ├── BadStreamName
│   ├── BadOffset
│   ├── BadJson
│   ├── BadText
│   ├── BadFork
│   ├── BadProducer
│   ├── BadSetting
│   └── PayloadTooLarge
├── Conflict                        the stream's state says no
│   ├── StreamExists
│   ├── ContentTypeMismatch
│   ├── SequenceGap
│   ├── SequenceRegressed
│   ├── StreamClosed
│   ├── VersionTooOld
│   └── ChangeLost
├── NotFound
│   └── StreamNotFound
├── Gone
│   ├── StreamGone
│   └── OffsetTrimmed
├── Fenced                          another writer owns it
│   ├── StaleEpoch
│   └── OwnershipLost
├── Unavailable                     retry later (retry_after_ms)
│   ├── Overloaded
│   ├── TooManyProducers
│   ├── TooManyReaders
│   ├── TooManyStreams
│   ├── RootLocked
│   └── StorageUnavailable
├── CommitUnknown                   the outcome is not known; recovery decides
└── DataCorrupt                     stored bytes are not what was written
    ├── ChecksumMismatch
    ├── TableDamaged
    └── VersionUnsupported
"""

from __future__ import annotations

from typing import ClassVar


class BottomlessError(Exception):
    """Root of every error this product raises on purpose."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class InvalidRequest(BottomlessError):
    """The call itself is wrong; repeating it unchanged cannot succeed."""

    code = "invalid_request"


class BadStreamName(InvalidRequest):
    """The stream name breaks a naming rule."""

    code = "bad_stream_name"


class BadOffset(InvalidRequest):
    """The offset is not one of ours."""

    code = "bad_offset"


class BadJson(InvalidRequest):
    """The body of a JSON stream is not what RFC 8259 calls JSON."""

    code = "bad_json"


class BadText(InvalidRequest):
    """The body of a text stream is not valid UTF-8."""

    code = "bad_text"


class BadFork(InvalidRequest):
    """The fork position does not exist in the source stream."""

    code = "bad_fork"


class BadProducer(InvalidRequest):
    """A new producer epoch must begin at sequence 0."""

    code = "bad_producer"


class BadSetting(InvalidRequest):
    """A setting of a stream is unknown or out of range."""

    code = "bad_setting"


class PayloadTooLarge(InvalidRequest):
    """The body or the number of records is over the configured bound."""

    code = "payload_too_large"


class Conflict(BottomlessError):
    """The state of the stream does not allow the call."""

    code = "conflict"


class StreamExists(Conflict):
    """The stream exists with another configuration."""

    code = "stream_exists"


class ContentTypeMismatch(Conflict):
    """The append's media type is not the stream's."""

    code = "content_type_mismatch"


class SequenceGap(Conflict):
    """A producer's sequence number skips ahead."""

    code = "sequence_gap"

    def __init__(self, *, expected: int, received: int) -> None:
        super().__init__(
            f"producer sequence gap: expected {expected}, received {received}",
            hint="Send the missing sequence numbers first, then repeat this append.",
        )
        self.expected = expected
        self.received = received


class SequenceRegressed(Conflict):
    """Stream-Seq is not greater than the last accepted one."""

    code = "sequence_regressed"


class StreamClosed(Conflict):
    """The stream is closed; nothing more can be appended."""

    code = "stream_closed"

    def __init__(self, tail: int) -> None:
        super().__init__("the stream is closed", hint="Read it, or create another stream.")
        self.tail = tail


class VersionTooOld(Conflict):
    """The append's version is lower than one the stream has already seen."""

    code = "version_too_old"

    def __init__(self, *, current: int, provided: int) -> None:
        super().__init__(
            f"the stream is at version {current}; {provided} may not append any more",
            hint="A newer producer has taken over. Start over with a higher version.",
        )
        self.current = current
        self.provided = provided


class ChangeLost(Conflict):
    """A job's change to a table came too late: another one has replaced its input files."""

    code = "change_lost"


class NotFound(BottomlessError):
    """There is no such thing."""

    code = "not_found"


class StreamNotFound(NotFound):
    """No stream of that name (it may have expired)."""

    code = "stream_not_found"


class Gone(BottomlessError):
    """It was there and will not come back."""

    code = "gone"


class StreamGone(Gone):
    """The stream is deleted but kept for its forks."""

    code = "stream_gone"


class OffsetTrimmed(Gone):
    """The offset is older than the retained data."""

    code = "offset_trimmed"

    def __init__(self, earliest: int) -> None:
        digits = f"{earliest:032d}"
        super().__init__(
            "the offset is older than what is retained",
            hint=f"Read from {digits[:16]}_{digits[16:]}, or from -1: both begin with the oldest"
            " record there is.",
        )
        self.earliest = earliest


class Fenced(BottomlessError):
    """Another writer has taken over."""

    code = "fenced"


class StaleEpoch(Fenced):
    """The producer's epoch is older than the one the stream knows."""

    code = "stale_epoch"

    def __init__(self, *, current: int) -> None:
        super().__init__(
            f"producer epoch is stale; the current epoch is {current}",
            hint="Another instance uses this producer id. Start over with a higher epoch.",
        )
        self.current = current


class OwnershipLost(Fenced):
    """Another process has committed to this stream's table with a higher owner number."""

    code = "ownership_lost"


class Unavailable(BottomlessError):
    """Nothing was done; the same call may succeed later."""

    code = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        retry_after_ms: int = 1000,
        **details: object,
    ) -> None:
        super().__init__(message, hint=hint, **details)
        self.retry_after_ms = retry_after_ms


class Overloaded(Unavailable):
    """A bounded queue is full."""

    code = "overloaded"


class TooManyProducers(Unavailable):
    """The stream holds as many producer ids as it may."""

    code = "too_many_producers"


class TooManyReaders(Unavailable):
    """The server holds as many live readers as it may."""

    code = "too_many_readers"


class TooManyStreams(Unavailable):
    """The server holds as many streams as it may."""

    code = "too_many_streams"


class RootLocked(Unavailable):
    """Another process uses the data folder."""

    code = "root_locked"


class StorageUnavailable(Unavailable):
    """The disk or object store refused; nothing was acknowledged."""

    code = "storage_unavailable"


class CommitUnknown(BottomlessError):
    """A commit may or may not have happened; nobody retries blindly."""

    code = "commit_unknown"


class DataCorrupt(BottomlessError):
    """Stored bytes are not what was written."""

    code = "data_corrupt"


class ChecksumMismatch(DataCorrupt):
    """A WAL frame in the middle of the log fails its checksum."""

    code = "checksum_mismatch"


class TableDamaged(DataCorrupt):
    """A stream's Delta table lost commits that were known to be durable."""

    code = "table_damaged"


class VersionUnsupported(DataCorrupt):
    """Data written in a format this version does not know."""

    code = "version_unsupported"
