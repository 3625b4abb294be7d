#!/usr/bin/env bash
# Creates the virtual environment and puts the locked installer into it.
# Usage: scripts/make_venv.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Bottomless needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1)." >&2
    echo "Install one and name it: make PYTHON=python3.12 ..." >&2
    exit 1
fi

# Debian ships the venv module without ensurepip, in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
    else
        echo "Python's venv module is missing. On Debian: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi

"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r requirements/tools.txt
