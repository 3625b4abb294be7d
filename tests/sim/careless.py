"""Precautions taken away inside this process, and put back: the oracle must notice.

Those that live in the engine are the ones of tests/faults/careless.py; those of LocalStorage have
their counterpart on the simulated disk here.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from engine.format import frame
from engine.storage import LocalStorage
from engine.streams import producers
from engine.write import writer
from engine.write.group import GroupCommit
from engine.write.segments import Segments
from engine.write.wal import Wal
from tests.faults import careless
from tests.sim.storage import SimStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOUCHED = (frame, producers, writer, GroupCommit, LocalStorage, Segments, Wal)


@contextlib.contextmanager
def _in_engine(name: str) -> Iterator[None]:
    """As for a real server, and undone."""
    kept = [(owner, dict(vars(owner))) for owner in TOUCHED]
    careless.PRECAUTIONS[name]()
    try:
        yield
    finally:
        for owner, values in kept:
            for key, value in values.items():
                if vars(owner).get(key) is not value:
                    setattr(owner, key, value)


def _trust(self: SimStorage, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        SYNC(self, descriptor)


SYNC = SimStorage.sync


@dataclass(frozen=True, slots=True)
class Precaution:
    """What to do without it, and which schedules find that out."""

    without: Callable[[], Any]
    temper: str = "mixed"
    seeds_max: int = 500


def _engine(name: str, temper: str) -> Precaution:
    return Precaution(lambda: _in_engine(name), temper)


def _storage(name: str, value: Callable[..., object], temper: str) -> Precaution:
    return Precaution(lambda: mock.patch.object(SimStorage, name, value), temper)


PRECAUTIONS = {
    "ack-first": _engine("ack-first", "power"),
    "no-checksum": _engine("no-checksum", "syncs"),
    "wall-clock": _engine("wall-clock", "mixed"),
    "no-dedupe": _engine("no-dedupe", "power"),
    "early-trim": _engine("early-trim", "power"),
    "no-wal-sync": _storage("sync", lambda self, descriptor: None, "power"),
    "no-table-sync": _storage("sync_all", lambda self: None, "power"),
    "no-folder-sync": _storage("_sync_folder", lambda self, path: None, "power"),
    "trust-failed-sync": _storage("sync", _trust, "syncs"),
    "trust-memory": _storage("forget_cached", lambda self, path: None, "table-syncs"),
}


def taken_away(name: str) -> Any:
    """A context in which the precaution is missing."""
    return PRECAUTIONS[name].without()
