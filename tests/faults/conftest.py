"""The ledger of the run: every fault and every control that ended, however it ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.ledger import Ledger, Tally
from tests.faults.whole import WholeCheck

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

LEDGER = pytest.StashKey[Ledger]()
TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Where a test of a fault counts."""
    marker = request.node.get_closest_marker("fault")
    assert marker is not None, "the test names no row: @pytest.mark.fault(id, what)"
    made = Tally(*marker.args)
    request.node.stash[TALLY] = made
    return made


@pytest.fixture
def whole(spark: SparkSession, tmp_path: Path) -> WholeCheck:
    """The last look at a root whose server has stopped: tables, readStream, and the check job."""
    return WholeCheck(spark, tmp_path / "whole")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or not report.passed:
        _note(item, report)
    return report


def _note(item: pytest.Item, report: pytest.TestReport) -> None:
    ledger = item.config.stash[LEDGER]
    why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    outcome = f"not run: {why.removeprefix('Skipped: ')}" if report.skipped else "broken"
    if (control := item.get_closest_marker("control")) is not None:
        ledger.add_control(*control.args, "noticed" if report.passed else outcome)
    elif (fault := item.get_closest_marker("fault")) is not None:
        tally = item.stash.get(TALLY, Tally(*fault.args))
        tally.outcome = "held" if report.passed else outcome
        ledger.add(tally)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("BOTTOMLESS_FAULTS_LEDGER")
    if path is not None:
        session.config.stash[LEDGER].save(Path(path))
