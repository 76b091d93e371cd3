#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A page in headless Chromium uses the HTTP API of another origin with --cors-origin: answers, streams, headers, errors.
# A page of a third origin can neither read answers nor make the cluster work.
. "$(dirname "$0")/lib.sh"

if ! command -v chromium >/dev/null; then
    [ "${CI:-}" != true ] || fail "chromium is not installed (deploy/packages.sh --browser)"
    echo "skipped: chromium is not installed (deploy/packages.sh --browser)"
    exit 77
fi
choose_ports
page_port=$(free_port)
while [ "$page_port" = "$http_port" ]; do page_port=$(free_port); done
mkdir "$work/pages"
echo "<!doctype html><title>client</title>" >"$work/pages/index.html"
start pages python3 -m http.server --bind 127.0.0.1 --directory "$work/pages" "$page_port"
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --cors-origin "http://127.0.0.1:$page_port"
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "the worker group is ready" ready
wait_until 30 "the page is served" curl -sf "http://127.0.0.1:$page_port/"
python3 "$source_dir/tests/integration/cors_browser.py" "http://127.0.0.1:$http_port" "http://127.0.0.1:$page_port/" \
    "http://localhost:$page_port/"
