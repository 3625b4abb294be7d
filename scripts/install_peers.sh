#!/usr/bin/env bash
# Installs the servers that `make bench` measures ours against, into .venv/peers: from crates.io, npm
# and the Go module proxy, at fixed versions. Each is optional: what cannot be installed is named, and
# the bench runs without it. Redis comes from the system's own packages.
# Usage: scripts/install_peers.sh FOLDER
set -uo pipefail
peers=$(mkdir -p "$1" && cd "$1" && pwd)

rust=0.1.5
nats=v2.12.0
npm_packages=(@durable-streams/server@0.3.7 @prisma/streams-server@0.1.11 bun@1.4.4)
left_out=()

if [ ! -x "$peers/rust/bin/durable-streams-server" ]; then
    if command -v cargo >/dev/null; then
        echo "durable-streams $rust (Rust; this takes some minutes)" >&2
        cargo install durable-streams --version "$rust" --locked --root "$peers/rust" >&2 ||
            left_out+=("durable-streams: cargo install failed")
    else
        left_out+=("durable-streams: needs cargo, see https://rustup.rs")
    fi
fi

if [ ! -x "$peers/npm/node_modules/.bin/bun" ]; then
    if command -v npm >/dev/null; then
        echo "${npm_packages[*]}" >&2
        # Bun's package fetches its program in an install script, which newer npms ask about first.
        mkdir -p "$peers/npm" && [ -f "$peers/npm/package.json" ] ||
            echo '{"private": true, "allowScripts": {"bun": true}}' >"$peers/npm/package.json"
        npm install --prefix "$peers/npm" --no-fund --no-audit "${npm_packages[@]}" >&2 ||
            left_out+=("@durable-streams/server, @prisma/streams-server: npm install failed")
    else
        left_out+=("@durable-streams/server, @prisma/streams-server: need Node.js with npm")
    fi
fi

if [ ! -x "$peers/bin/nats-server" ]; then
    if command -v go >/dev/null; then
        echo "nats-server $nats" >&2
        GOBIN="$peers/bin" go install "github.com/nats-io/nats-server/v2@$nats" >&2 ||
            left_out+=("nats-server: go install failed")
    else
        left_out+=("nats-server: needs Go, see https://go.dev/dl")
    fi
fi

command -v redis-server >/dev/null || left_out+=("Redis: sudo apt-get install redis-server")
[ ${#left_out[@]} = 0 ] || printf 'Left out: %s\n' "${left_out[@]}" >&2
exit 0
