#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The live page in headless Chromium: keys, empty states, bins, contrast and widths in light, dark and on a phone, no
# error of scripts or of the content security policy, and its text if the router is silent or gone. FOREPACK_SCREENSHOTS=DIR
# keeps pictures.
. "$(dirname "$0")/lib.sh"

if ! command -v chromium >/dev/null; then
    [ "${CI:-}" != true ] || fail "chromium is not installed (deploy/packages.sh --browser)"
    echo "skipped: chromium is not installed (deploy/packages.sh --browser)"
    exit 77
fi
keys=$work/keys
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key tenant --tenant acme
key operator --tenant ops --operator
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys"
router=$last_pid
answers() { curl -sf "http://127.0.0.1:$http_port/health"; }
wait_until 30 "the router answers" answers

mkfifo "$work/go"
exec 5<>"$work/go"
: >"$work/page.log"
/usr/bin/python3 "$source_dir/tests/integration/live_browser.py" "http://127.0.0.1:$http_port/" "$work" \
    ${FOREPACK_SCREENSHOTS:+"$FOREPACK_SCREENSHOTS"} <&5 >>"$work/page.log" 2>&1 &
page=$!
started+=("$page")
page_said() { grep -q "^$1" "$work/page.log" || ! kill -0 "$page"; }
reached() { # reached STEP: the browser is there and waits
    wait_until 60 "the page is at $1" page_said "$1"
    grep -q "^$1" "$work/page.log" || fail "the page did not reach: $1"
}
reached empty
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --node-id "<b>&\"'"
start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1
status_json() { "$bin/forepack" status --server "$server" --api-key-file "$work/operator.key" --json; }
wait_until 30 "the worker group is ready" nodes worker 1
wait_until 30 "the speculator is ready" nodes speculator 1
echo >&5
"$bin/forepack" batch --server "$server" --api-key-file "$work/operator.key" --prefill on --max-tokens 3 \
    --input "$prompts" --output "$work/out.jsonl" 2>"$work/batch.log"
reached serving
kill -STOP "$router"
echo >&5
reached silent
kill -CONT "$router"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"
echo >&5
reached gone
echo >&5
wait "$page" || fail "the browser test ended with $?"
