#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints for each kind of vulnerability of SECURITY.md the router's CPU time for the costliest request in ms, and the growth of
# router and worker in MiB.
# Usage: bench/vulnerabilities.sh [FOLDER]: folder of the programs (default build/release/bin)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
FOREPACK_BIN=$(cd "${1:-$here/build/release/bin}" && pwd) FOREPACK_SOURCE=$here exec "$here/tests/integration/vulnerabilities.sh" times
