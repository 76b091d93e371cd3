#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures Forepack's CUDA backend on this machine's GPU in under nine minutes. The results are a folder with
# table.md, and the same folder as one tar file. Nothing else should run on the GPU.
# Usage: run.sh [--out DIR] [--limit SECONDS] [--trial]      (run.sh --help explains them)
# Exit codes: 0 all steps passed, 1 a step failed, 2 something is missing, 3 no GPU can be used. A second run with the same
# --out does the steps that did not pass in the first one.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
for python in python3 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
        exec "$python" "$here/kit.py" "$@"
    fi
done
echo "run.sh: Python 3.8 or later was not found" >&2
exit 2
