#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Http11Probe: its requests, read from the C# of its checkout, go to a server on lib/http. docs/conformance.md gives the
# reason of each test that is not passed.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
suite=$(suite_folder Http11Probe)
here=$(cd "$(dirname "$0")" && pwd)

mkfifo "$work/go"
"$bin/http11probe_server" <"$work/go" >"$work/port" &
started+=($!)
exec 5>"$work/go"
named() { [ -s "$work/port" ]; }
wait_until 30 "the server names its port" named
PYTHONDONTWRITEBYTECODE=1 python3 "$here/http11probe.py" "$suite" "$(cat "$work/port")" >"$work/results.txt"
cat "$work/results.txt"
# The suite asks for 400 where 413 or 431 says more: docs/conformance.md.
equal "MAL-CL-OVERFLOW MAL-LONG-METHOD MAL-POST-CL-HUGE-NO-BODY" "$(awk '$1 == "Fail" || $1 == "Error" {print $2}' "$work/results.txt" |
    sort | paste -sd ' ')" "tests that fail"
grep -q "^tests: 215, " "$work/results.txt" || fail "not all of the suite's 215 tests ran"
