"""The consumers that keep their place on the server, without ``await``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bottomless.consumer import Record
from bottomless.reading import Reading

if TYPE_CHECKING:
    from datetime import datetime

    from bottomless.group import GroupInfo
    from bottomless.member import AsyncMember
    from bottomless.portal import Portal
    from bottomless.positions import Start
    from bottomless.resumable import AsyncResumable


class Resumable(Reading[Record]):
    """Goes on where the last one of its name stopped. A value counts as handled when the next one
    is asked for.
    """

    def __init__(self, portal: Portal, consumer: AsyncResumable) -> None:
        super().__init__(portal, consumer)
        self._consumer = consumer
        self.name = consumer.name

    @property
    def committed(self) -> str | None:
        """Where the next one of this name would begin."""
        return self._consumer.committed

    def commit(self) -> None:
        """Store that everything handed out so far is handled."""
        self._portal.call(self._consumer.commit())

    def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later."""
        self._portal.call(self._consumer.seek(time))

    def rewind(self, start: Start = "beginning") -> None:
        """Go on from there."""
        self._portal.call(self._consumer.rewind(start))


class Member(Reading[Record]):
    """One of a group that shares the records. A value counts as handled when the next one is asked
    for.
    """

    def __init__(self, portal: Portal, member: AsyncMember) -> None:
        super().__init__(portal, member)
        self._member = member
        self.group = member.group

    @property
    def name(self) -> str | None:
        """Its name in the group; None while it is no member."""
        return self._member.name

    def commit(self) -> None:
        """Store that everything handed out so far is handled."""
        self._portal.call(self._member.commit())

    def info(self) -> GroupInfo:
        """How far the group is."""
        return self._portal.call(self._member.info())
