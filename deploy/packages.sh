#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building and testing need, if any is missing. Nothing else on the machine changes.
# Uses apt-get as root or through sudo; does nothing, and needs no network, once they are there.
set -euo pipefail

packages=(
    gcc g++ libc6-dev cmake ninja-build pkg-config
    libgrpc-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
    libopenmpi-dev openmpi-bin
    libpcre2-dev libjansson-dev libutf8proc-dev
    check jq
    python3-grpcio python3-protobuf # the interoperability tests' foreign client
)

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null; then
    as_root=(sudo)
else
    echo "these packages are missing, and installing them needs root or sudo: ${missing[*]}" >&2
    exit 1
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt=("${as_root[@]}" apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
