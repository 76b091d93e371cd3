# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a client library, unmodified, against a cluster. Sourced by the scripts that set:
#   suite    the name of the library's checkout
#   tests    files and folders of tests, relative to the checkout
#   api      what follows the address in the library's base URL
#   more_names   files of the library with further names of models
# tests/suites/$suite.txt names the Python packages that the tests need, and $suite.failures the failures that are known.
. "$(dirname "${BASH_SOURCE[0]}")/../integration/lib.sh"
. "$source_dir/tests/suites/lib.sh"
folder=$(suite_folder "$suite")
packages=$source_dir/tests/suites/$suite.txt
. "$source_dir/tests/integration/venv.sh"
"$venv/bin/pip" install --quiet --upgrade "$folder"

# The tests ask for models by the names of the library's vendor.
names=()
while read -r name; do names+=(--served-model-name "$name"); done < <(
    cd "$folder" && { grep -rhoE '(\bmodel(_id)?=|retrieve\($|^ +)"(gpt|claude)[^"]*"' "${tests[@]}" "${more_names[@]}" &&
        grep -rhoE '\bmodel(_id)?="[^"]+"' "${tests[@]}"; } | cut -d'"' -f2 | sort -u
)
start_up --prefill off --router-option "batch-dir=$work/batches" "${names[@]}"
code=0
(cd "$folder" && PYTHONDONTWRITEBYTECODE=1 TEST_API_BASE_URL="http://127.0.0.1:$http_port$api" timeout 1800 \
    "$python" -m pytest -q -p no:cacheprovider -p no:warnings --junit-xml "$work/tests.xml" -o addopts= "${tests[@]}" \
    >"$work/pytest.txt" 2>&1) || code=$?
[ -s "$work/tests.xml" ] || { tail -n 20 "$work/pytest.txt"; fail "pytest ended with $code"; }
echo "$suite $(git -C "$folder" rev-parse --short HEAD)"
"$python" "$source_dir/tests/suites/sdk_report.py" "$work/tests.xml" "$source_dir/tests/suites/$suite.failures"
stop_up
