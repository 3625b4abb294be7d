"""Holds: a fork is acknowledged only when its source's table says what the fork reads.

Retention runs in another process and looks at the table alone. Until a commit of the server has
told it, it would take records that a fork has just inherited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import StreamNotFound
from engine.format.offset import START
from engine.table.state import NO_VERSION

if TYPE_CHECKING:
    from engine.streams.stream import Stream
    from engine.types import Offset
    from engine.write.committer import Committer


async def hold(source: Stream, position: Offset, committer: Committer) -> None:
    """Return when retention keeps the source's records up to ``position``.

    Should the fork not come about after all, the hold stays until the next fork goes.
    """
    if position == START:
        return
    source.holds_pending += 1
    try:
        while not _is_told(source, position, committer):
            source.held = max(source.held, position)
            source.state_changed = True
            await committer.commit_now(source)
    finally:
        source.holds_pending -= 1


def _is_told(source: Stream, position: Offset, committer: Committer) -> bool:
    if source.gone:
        raise StreamNotFound("the fork's source was deleted meanwhile")
    if source.is_committing or committer.is_unsure(source):
        # What the table will say then is not known yet: it may even lift an older hold.
        return False
    if source.version == NO_VERSION:
        # No table, so nothing to trim; its first version will tell.
        source.held = max(source.held, position)
        source.state_changed = True
        return True
    return source.table is not None and source.table.held >= position
