#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test that needs no GPU; ends with CTest's summary.
# Usage: tests/run.sh [CTest options, such as -R scheduler]
set -euo pipefail
cd "$(dirname "$0")/.."
./deploy/packages.sh

# `dev` finds memory errors in every unit test; `release` is what users run, so the integration tests run on it too.
for preset in dev release; do
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset"
done
ctest --preset dev --parallel 2 "$@"
ctest --preset release --parallel 2 "$@"
