#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a build and its tests need and that are missing, and llguidance for structured
# output into build/llguidance (deploy/llguidance.sh). Needs neither root nor network when none is missing. Everything
# but structured output works without llguidance, so a failed download of it is one sentence and no error.
# Usage: deploy/packages.sh [--bench] [--browser] [--deploy] [--lint] [--fuzz] [--monitoring] [--proxy] [--valgrind]
#   --bench  also oneDNN, which `forepack bench kernels` compares with its own kernels
#   --browser  also Chromium, in which a test looks at the live page
#   --deploy  also debhelper and lintian for packages, systemd-nspawn and mmdebstrap for their test, podman and
#             buildah for images, Slurm, and libfaketime for deploy/chaos
#   --lint   also clang-format, clang-tidy and cppcheck, for tests/lint.sh
#   --fuzz   also clang with libFuzzer, for the preset `fuzz`
#   --monitoring  also Prometheus, for the test of the alerts
#   --proxy  also nginx and HAProxy, for the test of deploy/proxy
#   --valgrind  also valgrind, for tests/instructions.py and tests/valgrind.sh
set -euo pipefail

packages=(
    gcc g++ libc6-dev cmake ninja-build pkg-config
    libgrpc-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
    libopenmpi-dev openmpi-bin iproute2
    libpcre2-dev libjansson-dev libutf8proc-dev libssl-dev openssl zlib1g-dev
    check jq
    python3-grpcio python3-protobuf # the Python client of the interoperability tests
    python3-venv curl # official clients: tests/integration/venv.sh installs them from PyPI
    libpython3-dev # libpython, whose symbols llguidance's library needs
)
for flag; do
    case $flag in
    --bench) packages+=(libdnnl-dev) ;;
    --browser) packages+=(chromium) ;;
    --deploy) packages+=(debhelper lintian mmdebstrap systemd-container gpg podman buildah runc catatonit dpkg-dev
        munge slurmctld slurmd slurm-client faketime) ;;
    --lint) packages+=(clang-format-14 clang-tidy-14 cppcheck) ;;
    --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
    --monitoring) packages+=(prometheus) ;;
    --proxy) packages+=(nginx-light haproxy) ;;
    --valgrind) packages+=(valgrind) ;;
    --help) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown flag $flag (--help lists all)" >&2; exit 2 ;;
    esac
done

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
install_llguidance() { "$(dirname "$0")/llguidance.sh" || true; }
[ ${#missing[@]} -gt 0 ] || { install_llguidance; exit 0; }

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null; then
    as_root=(sudo)
else
    echo "missing packages: ${missing[*]}; installing them needs root or sudo" >&2
    exit 1
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt=("${as_root[@]}" apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600)
"${apt[@]}" update
# Tests of --deploy start the services that they need, such as slurmctld. Those of the packages must not start.
policy=/usr/sbin/policy-rc.d
if [[ " $* " = *" --deploy "* ]] && [ ! -e $policy ]; then
    trap '"${as_root[@]}" rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod 0755 $policy
fi
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
install_llguidance
