"""What the fault suite tried, how often, and what it found: the table of docs/durability.md.

A test names its row with ``@pytest.mark.fault("C1", "kill -9 at a random moment")`` and counts in
the fixture ``tally``. ``@pytest.mark.control("C1", "…")`` names the negative control of the row: a
test that passes only if the oracle has found the damage it did on purpose.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Tally:
    """One test's contribution to a row."""

    id: str
    what: str
    tried: int = 0
    """How often the fault was injected."""
    checked: int = 0
    """Acknowledged appends that were looked for afterwards, and found."""
    note: str = ""
    """A figure worth showing, e.g. the longest recovery."""
    outcome: str = "held"
    """held, broken, or not run: why."""


@dataclass(slots=True)
class Row:
    """All tests of one id."""

    id: str
    what: list[str] = field(default_factory=list)
    tried: int = 0
    checked: int = 0
    notes: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    controls: list[tuple[str, str]] = field(default_factory=list)
    """What was taken away, and whether the oracle noticed."""


class Ledger:
    """The rows of one run."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, tally: Tally) -> None:
        """A test of a fault has ended."""
        row = self.rows.setdefault(tally.id, Row(tally.id))
        if tally.what not in row.what:
            row.what.append(tally.what)
        row.tried += tally.tried
        row.checked += tally.checked
        row.notes += [tally.note] if tally.note else []
        row.outcomes.append(tally.outcome)

    def add_control(self, id_: str, what: str, outcome: str) -> None:
        """A negative control has ended."""
        row = self.rows.setdefault(id_, Row(id_))
        row.controls.append((what, outcome))

    def save(self, path: Path) -> None:
        """For scripts/write_durability.py."""
        rows = [asdict(self.rows[id_]) for id_ in sorted(self.rows)]
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
