#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack debug: a bundle has what a report needs and no secret, and a request is found in the log of every process that
# it passed. Errors are one sentence.
. "$(dirname "$0")/lib.sh"

expect() { # expect CODE PATTERN COMMAND...
    local code=0
    "${@:3}" >"$work/out" 2>"$work/err" </dev/null || code=$?
    equal "$1" "$code" "exit code of ${*:3}: $(cat "$work/err")"
    grep -qE -- "$2" "$work/err" || fail "${*:3}: '$(cat "$work/err")' does not match '$2'"
    equal 1 "$(wc -l <"$work/err")" "lines of the error"
}
for format in logfmt json; do
    rm -f "$work"/keys*
    (umask 077 && "$bin/forepack" keys add --file "$work/keys" --id boss --tenant ops --operator >"$work/boss.key" 2>/dev/null)
    (umask 077 && "$bin/forepack" keys add --file "$work/keys" --id acme --tenant acme >"$work/acme.key" 2>/dev/null)
    (umask 077 && echo cluster-secret-7391 >"$work/token")
    as() { "$bin/forepack" "${@:2}" --server "$server" --api-key-file "$work/$1.key"; }
    status_json() { as boss status --json; }
    choose_ports
    node=(--router "$node_server" --threads 1 --log-level debug --log-format $format --cluster-token-file "$work/token")
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$work/keys" --log-format $format \
        --cluster-token-file "$work/token" --score-timeout-ms 600000
    router=$last_pid
    start worker "$bin/forepack-worker" --model "$main_model" --node-id w "${node[@]}"
    worker=$last_pid
    start speculator "$bin/forepack-speculator" --model "$spec_model" --node-id s "${node[@]}"
    speculator=$last_pid
    wait_until 60 "the nodes are ready" status_is '.ready and (.nodes | length == 2)'
    secret="Zanzibar is the password"
    jq -rj 'select(.id) | .prompt' <(sed -n 1p "$prompts") >"$work/prompt"
    echo "$secret" >>"$work/prompt"
    as acme generate --id 'my "own" id' --prompt-file "$work/prompt" --max-tokens 3 --ignore-eos --prefill on >/dev/null
    as acme generate --id other --prompt Hello --max-tokens 3 >/dev/null
    logs=("$work/router.log" "$work/worker.log" "$work/speculator.log")
    is_done() { grep -q "request_done.*other" "$work/router.log"; }
    wait_until 10 "the requests are done in the log" is_done

    # The request in each log, and no other request.
    found() { "$bin/forepack" debug request "$1" "${logs[@]}" >"$work/lines"; }
    wait_until 20 "the worker has logged the end" grep -q sequence_done "$work/worker.log"
    found 'my "own" id' || fail "the request was not found"
    for pair in router.log:request_received speculator.log:score_done worker.log:sequence_done router.log:request_done; do
        grep -qE "/${pair%:*}: .*${pair#*:}" "$work/lines" || fail "no ${pair#*:} of ${pair%:*} ($format): $(cat "$work/lines")"
    done
    grep -q other "$work/lines" && fail "lines of another request"
    grep -q request_received <<<"$(head -n 1 "$work/lines")" || fail "the first line is not the first event"
    grep -oE '[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}' "$work/lines" | sort -c || fail "the lines are not by time"
    number=$(sed -nE 's/.*request_received.*req"?[=:]"?([0-9a-f]{16}).*my .*/\1/p; s/.*"req":"([0-9a-f]{16})".*my .*/\1/p' "$work/router.log" | head -n 1)
    cp "$work/lines" "$work/by_id"
    found "$number" || fail "the number $number was not found"
    cmp "$work/by_id" "$work/lines" || fail "other lines by number than by id"

    # The bundle.
    as boss debug bundle --output "$work/bundle.tar" --log-lines 5 "${logs[@]}" >/dev/null
    mkdir "$work/unpacked"
    tar -C "$work/unpacked" -xf "$work/bundle.tar"
    equal "logs metrics.txt settings.conf slow-requests.json status.json versions.txt" \
        "$(cd "$work/unpacked/forepack-debug" && echo *)" "files of the bundle"
    cd "$work/unpacked/forepack-debug"
    grep -q "^router $("$bin/forepack-router" --version | cut -d' ' -f2)" versions.txt || fail "versions: $(cat versions.txt)"
    grep -qx "api-keys = $work/keys" settings.conf || fail "settings: $(cat settings.conf)"
    jq -e '.ready and (.nodes | length == 2)' status.json >/dev/null || fail "status"
    jq -e 'length == 2 and (map(.client_id) | contains(["other"])) and .[0].total_ms >= .[1].total_ms and .[0].total_ms > 0' \
        slow-requests.json >/dev/null || fail "slow requests: $(cat slow-requests.json)"
    grep -q '^forepack:request_success_total{finished_reason="length",tenant="acme"} ' metrics.txt || fail "metrics"
    equal 5 "$(wc -l <logs/1-router.log)" "lines of a log"
    cmp <(tail -n 5 "$work/worker.log") logs/2-worker.log || fail "the worker's last lines"
    cd - >/dev/null
    for word in "$secret" cluster-secret-7391 "$(cat "$work/boss.key")" "$(cat "$work/acme.key")"; do
        grep -rqF -- "$word" "$work/unpacked" && fail "the bundle has '$word'"
    done
    equal 600 "$(stat -c %a "$work/bundle.tar")" "mode of the bundle"

    # Errors leave no file, and change none.
    expect 2 "^[^ ]*: ?--output .*bundle.tar: File exists|--output .*bundle.tar: File exists" as boss debug bundle --output "$work/bundle.tar"
    expect 1 "operator's API key only" as acme debug bundle --output "$work/no.tar"
    expect 2 "nowhere.log: No such file" as boss debug bundle --output "$work/no.tar" "$work/nowhere.log"
    expect 2 "no line of the 3 logs is about a request nobody" "$bin/forepack" debug request nobody "${logs[@]}"
    expect 2 "give the id of a request and at least one log file" "$bin/forepack" debug request nobody
    kill -TERM "$router" "$worker" "$speculator"
    wait "$router" "$worker" "$speculator" || true
    expect 1 "$server" as boss debug bundle --output "$work/no.tar"
    [ ! -e "$work/no.tar" ] || fail "a failed bundle left a file"
    "$bin/forepack" debug bundle --offline --output "$work/offline.tar" "${logs[@]}" >/dev/null
    equal 4 "$(tar -tf "$work/offline.tar" | wc -l)" "files of a bundle without a router"
    rm -r "$work/unpacked" "$work"/*.tar
done
echo "debug: all passed"
