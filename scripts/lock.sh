#!/usr/bin/env bash
# Regenerates every lock: requirements/*.txt with hashes, and the npm lock of the protocol suite.
# No lock names the index it was resolved from: whoever installs uses the index they trust, and
# the hashes make that safe.
# Usage: scripts/lock.sh UV [extra uv arguments, e.g. --upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1
shift

compile() { # compile NAME ARGS...: one lock for every Python from 3.11 on.
    local target=requirements/$1.txt
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$target" "$@"
    if grep -nE '://|^-' "$target"; then
        echo "lock: $target names an address" >&2
        exit 1
    fi
    echo "locked $target"
}

compile tools requirements/tools.in "$@"
compile base pyproject.toml --constraints requirements/tools.txt "$@"
compile dev pyproject.toml requirements/tools.in --extra spark --extra jwt --extra redis --extra kafka --extra dev \
    --constraints requirements/tools.txt --constraints requirements/base.txt "$@"
compile node requirements/node.in "$@"

# npm writes the address of every file unless told not to; `npm ci` does not need it, because the
# lock has the versions and the hashes.
if command -v npm >/dev/null; then
    (cd tests/conformance && npm install --package-lock-only --omit-lockfile-registry-resolved \
        --ignore-scripts --no-audit --no-fund --loglevel=error)
    if grep -n '"resolved"' tests/conformance/package-lock.json; then
        echo "lock: tests/conformance/package-lock.json names an address" >&2
        exit 1
    fi
    echo "locked tests/conformance/package-lock.json"
else
    echo "no npm here: tests/conformance/package-lock.json left as it is"
fi
