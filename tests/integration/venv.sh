# SPDX-License-Identifier: Apache-2.0
# Sourced after lib.sh. Sets $python: an interpreter with the packages of clients.txt, in a virtual environment of the
# build folder that later runs use again. Ends the test as skipped when the packages cannot be installed.
packages=$source_dir/tests/integration/clients.txt
venv=$(cd "$bin/.." && pwd)/python-clients
python=$venv/bin/python3

create_venv() {
    [ -d "$venv" ] && cmp -s "$packages" "$venv/installed.txt" && return
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv" && "$venv/bin/pip" install --quiet -r "$packages" && cp "$packages" "$venv/installed.txt"
}

exec 7>"$venv.lock"
flock 7 # another test may be creating it
if ! create_venv >"$work/venv.log" 2>&1; then
    tail -n 3 "$work/venv.log"
    echo "skipped: the packages of tests/integration/clients.txt cannot be installed from the package index"
    exit 77
fi
exec 7>&-
