#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a test if there is a GPU; otherwise skips it. Usage: on_gpu.sh PROGRAM [ARGUMENTS]
if [ ! -e /dev/nvidiactl ]; then
    echo "skipped: this machine has no NVIDIA GPU"
    exit 77
fi
exec "$@"
