"""Streams in Spark, over HTTP: table and hot tail as one, batch and streaming.

from bottomless.spark import register

register(spark)
spark.read.format("bottomless").option("url", "http://127.0.0.1:4437").option("stream", "orders")

Spark makes these objects in Python processes of its own, on the driver and on the workers, and
sends them around pickled: they hold options and offsets, and open connections where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampType
from typing_extensions import override

from bottomless.backoff import Retry
from bottomless.errors import InvalidRequest
from bottomless.pages import Stored
from bottomless.positions import Since, epoch_ms, parse_start
from bottomless.ranges import Ranges, Span, is_json, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

_URL: Final = "http://127.0.0.1:4437"
_PAGE: Final = 5000
_PAGE_MAX: Final = 10_000
# An idle query asks again at once; the answer waits for new records that long.
_IDLE_S: Final = 1.0
# A person waits for the schema; a task may wait for a server that restarts.
_HURRY: Final = Retry(give_up_s=10.0)
_OPTIONS: Final = frozenset(
    {"url", "stream", "path", "token", "from", "since", "until", "page", "partitions", "max_rows"}
)
_COLUMNS: Final = ["offset", "flushed_at", "data"]
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("bottomless")`` work in this session."""
    spark.dataSource.register(BottomlessSource)


class BottomlessSource(DataSource):
    """The format ``bottomless``: columns as in the stream's table (docs/spark.md)."""

    @classmethod
    @override
    def name(cls) -> str:
        """What to say in ``format``."""
        return "bottomless"

    @override
    def schema(self) -> StructType:
        """The type of ``data`` is that of the table."""
        with _connect(self.options, _HURRY) as ranges:
            content_type = ranges.content_type()
        types = (StringType(), TimestampType(), _type_of(content_type))
        return StructType(
            [StructField(name, type_) for name, type_ in zip(_COLUMNS, types, strict=True)]
        )

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return _BatchReader(_checked(self.options, schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return _StreamReader(_checked(self.options, schema))


class _Slice(InputPartition):
    """What one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class _BatchReader(DataSourceReader):
    """What is there when the query is planned, and nothing that comes later."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    @override
    def partitions(self) -> list[InputPartition]:
        with _connect(self._options, _HURRY) as ranges:
            # The tail first: what is stored meanwhile belongs to the next query.
            end = ranges.end(self._options.get("until"))
            return _slices(ranges, Span(ranges.begin(_start(self._options)), end), self._options)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of its own where there is none.
        return _read(self._options, partition) if isinstance(partition, _Slice) else iter(())


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets of a query: ``offset``, the last one of a batch, and ``after``, the one before its
    first.

    ``after`` is what the batch before has ended with, except in the first one: it begins where the
    options say, and were the place looked up again when a batch is repeated, ``live`` and ``1h``
    would be somewhere else. So the batch carries it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._ranges: Ranges | None = None
        self._target: str | None = None

    @override
    def initialOffset(self) -> dict[str, str]:
        return {"offset": self._connected().begin(_start(self._options))}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        rows = _number(self._options, "max_rows")
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end()

    @override
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        begin = start["offset"]
        end = self._target or self._end()
        if end <= begin and self._target is None:
            self._connected().wait(begin, _IDLE_S)
            end = self._end()
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxRows):
            end = self._connected().first(Span(begin, end), limit.max_rows).end
        return {"offset": end, "after": begin}

    @override
    def reportLatestOffset(self) -> dict[str, str] | None:
        return {"offset": self._end()}

    @override
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        span = Span(end.get("after", start["offset"]), end["offset"])
        return _slices(self._connected(), span, self._options)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Slice)
        return _read(self._options, partition)

    @override
    def stop(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            ranges.close()

    def _end(self) -> str:
        return self._connected().end(self._options.get("until"))

    def _connected(self) -> Ranges:
        if self._ranges is None:
            self._ranges = _connect(self._options, Retry())
        return self._ranges


def _read(options: Mapping[str, str], partition: _Slice) -> Iterator[pa.RecordBatch]:
    """On a worker: a record batch for each page."""
    with _connect(options, Retry()) as ranges:
        content_type = ranges.content_type()
        decode: Callable[[Stored], str | bytes] = Stored.bytes
        if is_text(content_type):
            decode = Stored.json if is_json(content_type) else Stored.text
        type_ = pa.binary() if decode is Stored.bytes else pa.string()
        for records in ranges.pages(partition.span):
            times = [epoch_ms(record.offset) * 1000 for record in records]
            columns = [
                pa.array([record.offset for record in records], pa.string()),
                pa.array(times, pa.int64()).cast(_MICROSECONDS),
                pa.array([decode(record) for record in records], type_),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=_COLUMNS)


def _slices(ranges: Ranges, span: Span, options: Mapping[str, str]) -> list[InputPartition]:
    """Of equal time, as many as were asked for, or as many as make sense."""
    count = _number(options, "partitions")
    return [_Slice(part) for part in ranges.split(span, count)]


def _connect(options: Mapping[str, str], retry: Retry) -> Ranges:
    unknown = {name for name in options if name.lower() not in _OPTIONS}
    if unknown:
        raise InvalidRequest(
            f"there is no option {', '.join(sorted(unknown))}",
            hint=f"There are {', '.join(sorted(_OPTIONS))}.",
        )
    stream = options.get("stream") or options.get("path")
    if not stream:
        raise InvalidRequest("which stream?", hint='Say .option("stream", NAME).')
    page = min(_number(options, "page") or _PAGE, _PAGE_MAX)
    url, token = options.get("url", _URL), options.get("token")
    return Ranges(url, stream, token=token, page=page, retry=retry)


def _start(options: Mapping[str, str]) -> str:
    """Where to begin, as text."""
    start, since = options.get("from"), options.get("since")
    if since is None:
        return start or "beginning"
    if start is not None:
        raise InvalidRequest("from and since are two beginnings: give one of them")
    if not isinstance(parse_start(since), Since):
        raise InvalidRequest(f"since is a time or an age, not {since!r}")
    return since


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"{name} is a number from 1 on, not {text!r}")
    return int(text)


def _checked(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    if schema.names != _COLUMNS:
        raise InvalidRequest(
            f"the columns are {', '.join(_COLUMNS)}", hint="Leave out .schema, and select later."
        )
    return options


def _type_of(content_type: str) -> StringType | BinaryType:
    return StringType() if is_text(content_type) else BinaryType()
