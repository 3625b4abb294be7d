"""Forks: where one begins, what it copies, and the hold on what it inherits.

Reads and writes, so it stands above both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from engine.errors import (
    BadFork,
    ContentTypeMismatch,
    StreamExists,
    StreamGone,
    StreamNotFound,
)
from engine.format.batch import SEPARATOR
from engine.types import (
    CreateRequest,
    ForkRequest,
    Offset,
    PayloadKind,
    StreamName,
    media_type_of,
)
from engine.write.holds import hold
from engine.write.ingest import NO_RECORDS, Records

if TYPE_CHECKING:
    from engine.read.reader import Reader
    from engine.streams.stream import Stream
    from engine.write.committer import Committer
    from engine.write.writer import Writer


class Forks:
    """Prepares the creation of a fork."""

    def __init__(self, reader: Reader, writer: Writer, committer: Committer) -> None:
        self._reader = reader
        self._writer = writer
        self._committer = committer

    async def prepare(
        self, request: CreateRequest, fork: ForkRequest
    ) -> tuple[Stream, Records, CreateRequest]:
        """Find the source, fix the position, copy what a sub-offset wants, hold the source."""
        source = await self._source(fork.source)
        position = source.tail if fork.offset is None else fork.offset
        if position > source.tail:
            raise BadFork("the fork offset is beyond the source's tail")
        wanted = request.content_type
        if wanted and media_type_of(wanted) != media_type_of(source.meta.content_type):
            raise ContentTypeMismatch("a fork has the content type of its source")
        prefix = NO_RECORDS
        if fork.sub_offset:
            prefix = await self._prefix(source, position, fork.sub_offset)
        await hold(source, position, self._committer)
        if await self._source(fork.source) is not source:
            raise StreamNotFound("the fork's source was replaced meanwhile")
        fixed = ForkRequest(fork.source, position, fork.sub_offset)
        return source, prefix, msgspec.structs.replace(request, fork=fixed)

    async def _source(self, name: StreamName) -> Stream:
        try:
            return await self._writer.require(name)
        except StreamGone as error:
            raise StreamExists("the fork's source was deleted") from error

    async def _prefix(self, source: Stream, position: Offset, sub_offset: int) -> Records:
        is_json = source.kind is PayloadKind.JSON
        wanted = sub_offset if is_json else 1
        records = await self._reader.append_at(source, position, count_max=wanted)
        if not is_json and records:
            records = [records[0][:sub_offset]] if len(records[0]) >= sub_offset else []
        if len(records) < wanted:
            raise BadFork("the sub-offset is beyond the append that begins at the fork offset")
        if source.kind is PayloadKind.TEXT:
            try:
                records[0].decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadFork("the sub-offset cuts a UTF-8 character in two") from error
        lengths = np.array([len(record) for record in records], dtype="<u4")
        return Records(len(records), SEPARATOR.join(records), lengths)
