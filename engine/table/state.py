"""A version of a table: its live files, its txn numbers, its properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from engine.format.offset import make_offset
from engine.table.actions import (
    COUNTER_APP,
    EPOCH_APP,
    HELD_COUNTER_APP,
    HELD_EPOCH_APP,
    RECORDS_APP,
    REWRITTEN_APP,
    TRIMMED_COUNTER_APP,
    TRIMMED_EPOCH_APP,
    TRIMMED_RECORDS_APP,
    DataFile,
    LogEntry,
)

if TYPE_CHECKING:
    from engine.types import Offset

NO_VERSION: Final = -1


@dataclass(slots=True)
class TableState:
    """A version of the table: its live files in offset order, its txn numbers, its properties."""

    version: int = NO_VERSION
    files: dict[str, DataFile] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, str] = field(default_factory=dict)

    @property
    def committed(self) -> Offset:
        """The last offset that is in the table."""
        return make_offset(self.txns.get(EPOCH_APP, 0), self.txns.get(COUNTER_APP, 0))

    @property
    def trimmed(self) -> Offset:
        """The last offset that retention has removed; all zeros where it never removed any."""
        return make_offset(
            self.txns.get(TRIMMED_EPOCH_APP, 0), self.txns.get(TRIMMED_COUNTER_APP, 0)
        )

    @property
    def held(self) -> Offset:
        """Up to here forks need the records, so retention must leave them."""
        return make_offset(self.txns.get(HELD_EPOCH_APP, 0), self.txns.get(HELD_COUNTER_APP, 0))

    @property
    def write_amplification(self) -> float:
        """How often a record was written on average, its first commit included."""
        return 1 + self.txns.get(REWRITTEN_APP, 0) / max(1, self.records)

    @property
    def records(self) -> int:
        """Records ever committed, those that retention has removed included."""
        if RECORDS_APP in self.txns:
            return self.txns[RECORDS_APP]
        # Written before tables counted.
        return sum(file.rows for file in self.files.values())

    @property
    def records_trimmed(self) -> int:
        """Records that retention has removed."""
        return self.txns.get(TRIMMED_RECORDS_APP, 0)

    def apply(self, entry: LogEntry, version: int) -> None:
        """Advance by one entry."""
        for path in entry.removes:
            self.files.pop(path, None)
        for file in entry.adds:
            self.files[file.path] = file
        self.txns.update(entry.txns)
        if entry.configuration is not None:
            self.configuration = entry.configuration
        self.version = version
