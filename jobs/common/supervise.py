"""One stream never costs the others: whatever goes wrong with it is one line of the report.

The only place of the jobs that looks at many streams. A stream that is deleted while a job works on
it is no failure: its files may go at any moment, with any error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from engine.errors import BottomlessError, InvalidRequest, StreamNotFound
from engine.format.names import table_folder
from engine.table.schema import LOG_FOLDER
from engine.types import StreamName
from jobs.common.settings import BadJobSettings
from jobs.common.tables import explain, find_folders, find_table, open_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.storage import LocalStorage
    from jobs.common.report import Report
    from jobs.common.tables import StreamTable

SPARK_ERRORS: Final = (PySparkException, Py4JError)
_LINE_MAX: Final = 500
# A chain of causes longer than this goes round in a circle.
_CAUSES_MAX: Final = 20


def for_each_table(
    storage: LocalStorage,
    names: list[str] | None,
    report: Report,
    work: Callable[[StreamTable], object],
) -> None:
    """Do the work for the named streams, or for all; report what fails and go on."""
    for place in names or find_folders(storage, None):
        table: StreamTable | None = None
        try:
            table = find_table(storage, place) if names else open_table(storage, place)
            if table is not None:
                work(table)
        except BadJobSettings:
            raise
        except (StreamNotFound, InvalidRequest) as error:
            report.fail(f"{place}: {describe(error)}")
        except Exception as error:  # noqa: BLE001  (supervised: one line, and the next stream)
            folder = table_folder(StreamName(place)) if names else place
            if is_gone(storage, folder, table):
                report.say(f"{place}: was deleted meanwhile")
            else:
                report.fail(f"{place if table is None else table.name}: {describe(error)}")


def is_gone(storage: LocalStorage, folder: str, table: StreamTable | None) -> bool:
    """Whether the stream has been deleted since; also where another one has its name now."""
    if not storage.exists(f"{folder}/{LOG_FOLDER}"):
        return True
    if table is None:
        return False
    try:
        now = open_table(storage, folder)
    except Exception:  # noqa: BLE001  (supervised: what cannot be opened is not gone, but damaged)
        return False
    return now is None or now.meta.id != table.meta.id


def describe(error: BaseException) -> str:
    """One line that says what went wrong, whoever raised it."""
    if isinstance(error, BottomlessError):
        return explain(error)
    if isinstance(error, Py4JNetworkError):
        return "Spark's JVM has ended or does not answer"
    if isinstance(error, Py4JJavaError):
        return f"Spark failed: {_of_java(error)}"
    if isinstance(error, SPARK_ERRORS):
        return f"Spark failed: {_line(str(error))}"
    return f"{type(error).__name__}: {_line(str(error))}"


def _of_java(error: Py4JJavaError) -> str:
    """What the exception says, and what it began with: the JVM wraps one in the other."""
    try:
        exception = error.java_exception
        line = cause = _line(exception.toString())
        for _ in range(_CAUSES_MAX):
            exception = exception.getCause()
            if exception is None:
                break
            cause = _line(exception.toString())
    except Py4JError:
        return "the JVM has ended"
    return line if cause in line else f"{line} (because of {cause})"


def _line(text: str) -> str:
    """The first line; the rest is a stack."""
    lines = text.strip().splitlines()
    return lines[0][:_LINE_MAX] if lines else "no reason given"
