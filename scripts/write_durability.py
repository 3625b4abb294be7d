"""Write the table of a `make test-faults` run into docs/durability.md, between its two marks.

Several ledgers are one table: the tests may have been shared among several runs.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "durability.md"
MARKS = re.compile(r"(<!-- faults: begin -->\n).*?(<!-- faults: end -->)", re.DOTALL)
HEAD = (
    "| id | fault | tried | acks checked | lost | negative control |\n|---|---|--:|--:|--:|---|\n"
)


def main() -> int:
    """Exit 1 where something was lost or a control did not notice: the table says it as well."""
    rows = merge([json.loads(Path(name).read_text()) for name in sys.argv[1:]])
    lines = [line_of(row) for row in rows]
    tried, checked = (sum(row[key] for row in rows) for key in ("tried", "checked"))
    when = datetime.now(UTC).date().isoformat()
    kernel = platform.release().partition("-")[0]
    head = f"Run of {when}, Linux {kernel}, Python {platform.python_version()}:"
    sums = f"{tried:,} faults, {checked:,} acknowledged appends looked for."
    table = HEAD + "\n".join(lines)
    PAGE.write_text(MARKS.sub(rf"\g<1>{head} {sums}\n\n{table}\n\g<2>", PAGE.read_text()))
    print(table)
    return int(any(is_bad(row) for row in rows))


def merge(ledgers: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per id: counts added up, lists joined."""
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for ledger in ledgers for row in ledger):
        known = rows.setdefault(row["id"], {"id": row["id"]})
        for key, value in row.items():
            if key == "what":
                known[key] = list(dict.fromkeys(known.get(key, []) + value))
            elif key != "id":
                known[key] = known[key] + value if key in known else value
    return [rows[id_] for id_ in sorted(rows)]


def is_bad(row: dict[str, Any]) -> bool:
    """A promise was broken, or the harness would not have noticed."""
    outcomes = [*row["outcomes"], *(outcome for _, outcome in row["controls"])]
    return "broken" in outcomes


def line_of(row: dict[str, Any]) -> str:
    """One row; what was not run says why."""
    left_out = sorted({text for text in row["outcomes"] if text.startswith("not run")})
    lost = "**BROKEN**" if "broken" in row["outcomes"] else "0" if row["tried"] else "-"
    what = "; ".join([*row["what"], *row["notes"], *left_out])
    controls = "; ".join(f"{what}: {outcome}" for what, outcome in row["controls"]) or "-"
    cells = [row["id"], what, f"{row['tried']:,}", f"{row['checked']:,}", lost, controls]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
