"""Fetches the Delta jars once, checks them against requirements/jars.sha256, and writes a stamp.

Spark could resolve them itself (spark.jars.packages), but then every cold start waits for Maven
and trusts what it gets. Here the Ivy inside PySpark downloads exactly the jars of the lock, from
its own default repository; set IVY_SETTINGS to an ivysettings.xml to use a mirror.

Without Java this says what is missing and succeeds: only Spark needs the jars.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "jars.sha256"
TARGET = Path(sys.prefix) / "delta-jars"
ATTEMPTS = 3


def main() -> int:
    """Make the jar folder equal to the lock."""
    wanted = read_lock()
    if mismatches(wanted):
        java = find_java()
        if java is None:
            return 0
        download(java, wanted)
    if wrong := mismatches(wanted):
        for name in wrong:
            (TARGET / name).unlink(missing_ok=True)
        print(f"jars: not as locked in {LOCK.name}, removed: {', '.join(wrong)}", file=sys.stderr)
        return 1
    for stray in set(TARGET.glob("*.jar")) - {TARGET / name for name in wanted}:
        stray.unlink()
    write_spark_conf(wanted)
    (TARGET / ".stamp").touch()
    print(f"jars: {len(wanted)} Delta jars ready")
    return 0


def write_spark_conf(wanted: dict[str, str]) -> None:
    """Let a plain `spark-submit jobs/compact.py` find the defaults, the jars and this Python."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None, "the jars come after the dev requirements"
    assert spark.origin is not None
    target = Path(spark.origin).parent / "conf"
    target.mkdir(exist_ok=True)
    # Where spark-submit looks for its home if the python3 of the PATH has no PySpark.
    home = Path(sys.prefix) / "bin" / "spark-distribution"
    home.unlink(missing_ok=True)
    home.symlink_to(target.parent)
    jars = ",".join(str(TARGET / name) for name in wanted)
    lines = [
        (ROOT / "conf" / "spark-defaults.conf").read_text(),
        "# Written by scripts/fetch_jars.py for this virtual environment.",
        f"spark.jars {jars}",
        f"spark.pyspark.python {Path(sys.prefix) / 'bin' / 'python'}",
    ]
    (target / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    shutil.copyfile(ROOT / "conf" / "log4j2.properties", target / "log4j2.properties")


def read_lock() -> dict[str, str]:
    """Return file name to SHA-256. The format is that of sha256sum."""
    lines = [line.split() for line in LOCK.read_text().splitlines() if line[:1] not in ("", "#")]
    return {name: digest for digest, name in lines}


def mismatches(wanted: dict[str, str]) -> list[str]:
    """Return the names that are missing or have other bytes than locked."""
    return [name for name, digest in wanted.items() if sha256(TARGET / name) != digest]


def sha256(path: Path) -> str | None:
    """Return the digest of a file, or None if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def find_java() -> str | None:
    """Return a Java home, installing one where that is possible."""
    found = subprocess.run(
        [ROOT / "scripts" / "find_java.sh", "--install"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return found.stdout.strip() if found.returncode == 0 else None


def download(java_home: str, wanted: dict[str, str]) -> None:
    """Let Ivy fetch the wanted jars into the target folder; retry, for networks fail."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None, "the jars come after the dev requirements"
    assert spark.origin is not None
    [ivy] = Path(spark.origin).parent.glob("jars/ivy-*.jar")
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "ivy.xml"
        module.write_text(ivy_module(wanted))
        command = [
            f"{java_home}/bin/java",
            # Its own cache folder: nothing is taken from, or left in, the user's home.
            f"-Divy.default.ivy.user.dir={folder}",
            *["-jar", str(ivy), "-ivy", str(module), "-warn"],
            *["-retrieve", f"{TARGET}/[organisation]_[artifact]-[revision].[ext]"],
        ]
        if settings := os.environ.get("IVY_SETTINGS"):
            command += ["-settings", settings]
        for attempt in range(1, ATTEMPTS + 1):
            print(f"jars: fetching {len(wanted)} jars (attempt {attempt})", flush=True)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0 and not mismatches(wanted):
                return
            print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)


def ivy_module(wanted: dict[str, str]) -> str:
    """Return an Ivy file that asks for the locked jars and for nothing they depend on.

    A name reads organisation_module-revision.jar, as Spark itself names downloaded jars.
    """
    rows = []
    for name in wanted:
        organisation, _, rest = name.removesuffix(".jar").partition("_")
        module, _, revision = rest.rpartition("-")
        rows.append(
            f'<dependency org="{organisation}" name="{module}" rev="{revision}"'
            ' conf="default->master" transitive="false"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="bottomless" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(rows)}</dependencies></ivy-module>"
    )


if __name__ == "__main__":
    sys.exit(main())
