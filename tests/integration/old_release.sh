#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What earlier releases wrote, and their clients send, is still read (tests/data/release-*): configurations, options, key
# files, HTTP requests and gRPC messages.
. "$(dirname "$0")/lib.sh"

for release in "$source_dir"/tests/data/release-*; do
    name=${release##*/}

    # ---- options and configurations ----

    for program in router worker speculator; do
        help=$("$bin/forepack-$program" --help | grep -oE '^  --[a-z0-9-]+' | tr -d ' ' | sort)
        gone=$(comm -23 "$release/options-$program.txt" - <<<"$help" | paste -sd' ')
        [ -z "$gone" ] || fail "$name: forepack-$program lacks options: $gone"
        model=$main_model
        [ $program != speculator ] || model=$spec_model
        "$bin/forepack-$program" --model "$model" --config "$release/conf/$program.conf" --check-config >"$work/check.log" 2>&1 ||
            fail "$name: $program.conf: $(tail -n 1 "$work/check.log")"
    done

    # ---- keys ----

    cp "$release/keys" "$work/keys"
    chmod 600 "$work/keys"
    "$bin/forepack" keys list --file "$work/keys" --json >"$work/keys.json" || fail "$name: keys"
    # Later releases may add members.
    jq -e --slurpfile old "$release/keys.json" 'contains($old[0])' "$work/keys.json" >/dev/null ||
        fail "$name: keys are read as $(cat "$work/keys.json")"

    # ---- a cluster with these files ----

    choose_ports
    start router "$bin/forepack-router" --model "$main_model" --config "$release/conf/router.conf" --api-keys "$work/keys" "${listen[@]}"
    router=$last_pid
    start worker "$bin/forepack-worker" --model "$main_model" --config "$release/conf/worker.conf" --router "$node_server"
    worker=$last_pid
    start speculator "$bin/forepack-speculator" --model "$spec_model" --config "$release/conf/speculator.conf" --router "$node_server"
    key=fpk_$(printf 'a%.0s' $(seq 43))
    serves() { curl -fsS "http://127.0.0.1:$http_port/ready"; }
    wait_until 60 "the cluster of $name is ready" serves
    scores() { [ "$(ask /v1/score "$(jq .body "$release/http/score.json")" | jq '.kept | type')" = '"array"' ]; }
    ask() { curl -sS "http://127.0.0.1:$http_port$1" -H "authorization: Bearer $key" -H 'content-type: application/json' -d "$2"; }
    wait_until 60 "the speculator of $name scores" scores
    for request in "$release"/http/*.json; do
        ask "$(jq -r .path "$request")" "$(jq .body "$request")" >"$work/answer.json"
        jq -e "$(jq -r .expect "$request")" "$work/answer.json" >/dev/null || fail "$name: ${request##*/}: $(cat "$work/answer.json")"
    done

    # ---- recorded messages over gRPC: a frame has a zero, the size in four bytes, and the message ----

    for message in "$release"/messages/forepack.v1.GenerateRequest-*.pb; do
        { printf '\0'; printf '%b' "$(printf '%08x' "$(stat -c %s "$message")" | sed 's,..,\\x&,g')"; cat "$message"; } >"$work/frame"
        curl -sS --http2-prior-knowledge -D "$work/headers" -o "$work/frames" -H 'content-type: application/grpc' -H 'te: trailers' \
            -H "authorization: Bearer $key" --data-binary "@$work/frame" "http://$server/forepack.v1.Inference/Generate"
        grep -qi '^grpc-status: 0' "$work/headers" || fail "$name: ${message##*/}: $(grep -i ^grpc "$work/headers" | paste -sd' ')"
        [ "$(stat -c %s "$work/frames")" -gt 20 ] || fail "$name: ${message##*/}: no answer"
    done
    for pid in "$worker" "$router"; do kill -TERM "$pid" && wait "$pid" || fail "$name: a program ended with $?"; done
    echo "$name: configurations, keys, $(ls "$release"/http | wc -l) HTTP requests and $(ls "$release"/messages/*GenerateRequest*.pb | wc -l) gRPC messages are read"
done
