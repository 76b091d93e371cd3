#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The fault matrix: 12 faults while streams of 9 features run (matrix/matrix.py). All processes run in namespaces of their
# own, so nothing of the host's network, files and processes is touched, and nothing is left.
# Usage: matrix.sh [STREAMS [FAULT]...]: STREAMS of each fault and feature, 93 by default, which are 10,044 in all
if [ "$(id -u)" != 0 ] || ! type ip unshare nsenter mpirun >/dev/null 2>&1 || ! unshare --net --mount --pid --fork true || [ ! -e /dev/net/tun ]; then
    echo "matrix: needs root, namespaces, /dev/net/tun, ip (iproute2), unshare, nsenter and mpirun"
    exit 77
fi
. "$(dirname "$0")/lib.sh"
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || { [ "${CI:-}" != true ] && exit 77; }

run() { # run COMMAND...: as process 1 of new namespaces, with which all its processes end
    unshare --net --mount --pid --mount-proc --fork --kill-child bash -c 'ip link set lo up && "$@"' -- "$@"
}
mpi_files=$(mktemp -d /tmp/fp-XXXX) # mpirun's sockets need a short path
code=0
TMPDIR=$mpi_files run python3 "$source_dir/tests/integration/matrix/matrix.py" "$bin" "$source_dir" "$work/matrix" "${1:-93}" "${@:2}" || code=$?
rm -rf "$mpi_files"
exit $code
