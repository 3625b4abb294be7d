#!/usr/bin/env bash
# Installs one lock file into the virtual environment, every file checked by its hash.
# uv is several times faster than pip; pip is the way out where only pip knows the local index.
# Usage: scripts/install_lock.sh VENV LOCK
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
lock=$2

if "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes \
    --no-build-isolation -r "$lock"; then
    exit 0
fi
echo "uv could not install $lock; trying pip" >&2
exec "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    --no-build-isolation -r "$lock"
