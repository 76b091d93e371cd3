# SPDX-License-Identifier: Apache-2.0
# Sourced after lib.sh. Sets $python: an interpreter with the packages of $packages (default: clients.txt), in a virtual
# environment $venv of the build folder that later runs use again. ${pip_options[@]} are more options of pip. Ends the
# test as skipped when the packages cannot be installed; in CI that is a failure.
packages=${packages:-$source_dir/tests/integration/clients.txt}
venv=$(cd "$bin/.." && pwd)/python-$(basename "$packages" .txt)
python=$venv/bin/python3
declare -a pip_options

create_venv() {
    [ -d "$venv" ] && cmp -s "$packages" "$venv/installed.txt" && return
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "${pip_options[@]}" -r "$packages" &&
        cp "$packages" "$venv/installed.txt"
}

exec 7>"$venv.lock"
flock 7 # another test may be creating it
if ! create_venv >"$work/venv.log" 2>&1; then
    tail -n 3 "$work/venv.log"
    [ "${CI:-}" != true ] || fail "the packages of $packages cannot be installed from the package index"
    echo "skipped: the packages of $packages cannot be installed from the package index"
    exit 77
fi
exec 7>&-
