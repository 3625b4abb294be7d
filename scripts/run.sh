#!/usr/bin/env bash
# Starts the server, and beside it, where Java is present, the maintenance of its streams.
# The server starts at once; what Spark needs is set up behind its back.
# Usage: scripts/run.sh BIN ROOT HOST PORT
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1 root=$2 host=$3 port=$4

maintain() {
    # The shell becomes Python, and Spark's JVM is a child of that: one signal ends them all.
    local log="$root/_jobs/maintain.log"
    mkdir -p "$root/_jobs"
    # The one before is kept, so that the log never grows for years.
    [ ! -e "$log" ] || mv -f "$log" "$log.1"
    if [ ! -e .venv/delta-jars/.stamp ]; then
        make --no-print-directory jars >>"$log" 2>&1 || return 0
    fi
    exec "$bin/bottomless" maintain --root "$root" >>"$log" 2>&1
}

if ! scripts/find_java.sh >/dev/null 2>&1; then
    echo "run: no Java 17 or newer, so the streams are not compacted; the server needs none" >&2
    exec "$bin/bottomless" serve --root "$root" --host "$host" --port "$port"
fi

echo "run: maintenance writes to $root/_jobs/maintain.log" >&2
maintain &
keeper=$!
"$bin/bottomless" serve --root "$root" --host "$host" --port "$port" &
server=$!
# One signal to this script reaches both; the server decides when it is over, and how.
trap 'kill -TERM $server $keeper 2>/dev/null || true' TERM INT HUP
code=0
wait $server || code=$?
# A trapped signal ends the first wait early: wait again for the drain.
while kill -0 $server 2>/dev/null; do wait $server || code=$?; done
kill -TERM $keeper 2>/dev/null || true
# It ends within seconds; what does not is not left behind.
for _ in {1..150}; do
    kill -0 $keeper 2>/dev/null || exit $code
    sleep 0.1
done
kill -KILL $keeper 2>/dev/null || true
exit $code
