#!/usr/bin/env bash
# What the fault suite wants from Debian: strace (kills and errors at a system call), mkfs.ext4 (power
# cuts on a loop device) and a C compiler (a clock that jumps); and tmux, a terminal for the tests of
# `bottomless top`. Without them, or without root, nothing fails here: the tests that need them skip,
# and say so.
set -euo pipefail

wanted=()
command -v strace >/dev/null || wanted+=(strace)
PATH="$PATH:/usr/sbin:/sbin" command -v mkfs.ext4 >/dev/null || wanted+=(e2fsprogs)
PATH="$PATH:/usr/sbin:/sbin" command -v losetup >/dev/null || wanted+=(mount)
command -v tmux >/dev/null || wanted+=(tmux)
command -v cc >/dev/null || wanted+=(gcc libc6-dev)
[ ${#wanted[@]} = 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing for the fault suite: ${wanted[*]}" >&2
    if apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${wanted[@]}" >&2; then
        exit 0
    fi
fi
echo "Some tests will be skipped. On Debian: sudo apt-get install ${wanted[*]}" >&2
