"""The consumers that keep their place on the server, without ``await``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from bottomless.consumer import Record
    from bottomless.group import GroupInfo
    from bottomless.member import AsyncMember
    from bottomless.portal import Portal
    from bottomless.positions import Start
    from bottomless.resumable import AsyncResumable


class _Keeping:
    """What both have."""

    def __init__(self, portal: Portal, consumer: AsyncResumable | AsyncMember) -> None:
        self._portal = portal
        self._reader = consumer
        self.stream = consumer.stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._reader.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = self.next()
        if record is None:
            raise StopIteration
        return record

    @property
    def position(self) -> str | None:
        """Behind the last value that was handed out."""
        return self._reader.position

    def next(self, timeout_s: float | None = None) -> Record | None:
        """The next value; those before it count as handled. None at the end, or where none came
        in ``timeout_s`` seconds.
        """
        record = self._reader.take_one()
        if record is None and self._portal.call(self._reader.fill(timeout_s)):
            record = self._reader.take_one()
        return record

    def take(self) -> list[Record]:
        """All values that are here already; they count as handled with the call after this one."""
        return self._reader.take()

    def commit(self) -> None:
        """Store that everything handed out so far is handled."""
        self._portal.call(self._reader.commit())

    def close(self) -> None:
        """What was handed out is handled: commit it, and stop."""
        self._portal.call(self._reader.close())


class Resumable(_Keeping):
    """Goes on where the last one of its name stopped."""

    def __init__(self, portal: Portal, consumer: AsyncResumable) -> None:
        super().__init__(portal, consumer)
        self._consumer = consumer
        self.name = consumer.name

    @property
    def committed(self) -> str | None:
        """Where the next one of this name would begin."""
        return self._consumer.committed

    def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later."""
        self._portal.call(self._consumer.seek(time))

    def rewind(self, start: Start = "beginning") -> None:
        """Go on from there."""
        self._portal.call(self._consumer.rewind(start))


class Member(_Keeping):
    """One of a group that shares the records."""

    def __init__(self, portal: Portal, member: AsyncMember) -> None:
        super().__init__(portal, member)
        self._member = member
        self.group = member.group

    @property
    def name(self) -> str | None:
        """Its name in the group; None while it is no member."""
        return self._member.name

    def info(self) -> GroupInfo:
        """How far the group is."""
        return self._portal.call(self._member.info())
