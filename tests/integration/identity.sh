#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# API keys: callers that have no valid one are refused, keys are added, revoked and expire while the router runs, limits and
# tenants hold, tenants share neither prefix caches nor request ids, and no key reaches a log.
. "$(dirname "$0")/lib.sh"

keys=$work/keys
# key NAME FLAGS...: adds a key, whose secret is then in the file NAME.key.
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
! key spaced --tenant 'Acme Corp' || fail "a tenant with a blank"
[ ! -e "$keys" ] || fail "a key that was refused leaves a file"
key acme --tenant acme
key globex --tenant globex
key boss --tenant ops --operator --priority 5
key old --tenant acme --expires 2020-01-01
key few --tenant acme --requests-per-minute 2
key small --tenant acme --tokens-per-day 10
key single --tenant single --concurrency 1
key late --tenant late
key budget --tenant budget --tokens-per-day 1000
equal 600 "$(stat -c %a "$keys")" "mode of the key file"

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 --api-keys "$keys" --log-level debug
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --log-level debug
worker=$last_pid

# as KEY COMMAND FLAGS...: a command of forepack with this key; its error goes to the file `error`.
as() { "$bin/forepack" "$2" --server "$server" --api-key-file "$work/$1.key" "${@:3}" 2>"$work/error"; }
ask() { as "$1" generate --prompt "${*:2}" --max-tokens 2 --ignore-eos --json; }
# refused WORDS COMMAND...: the command must fail with a sentence that has these words.
refused() {
    local words=$1
    shift
    if "$@" >/dev/null; then fail "was not refused: $*"; fi
    grep -q -- "$words" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$words'"
}
field() { jq -r "$1"; }
is_ready() { as acme status --json | jq -e .ready; }
wait_until 60 "the cluster is ready" is_ready

# --- callers
anonymous() { "$bin/forepack" generate --server "$server" --prompt Hi 2>"$work/error"; }
refused "an API key is required" anonymous
echo fpk_0000000000000000000000000000000000000000000 >"$work/wrong.key"
echo "two words" >"$work/bad.key"
refused "the API key is unknown" ask wrong Hi
refused "must contain one API key" ask bad Hi
refused "the API key old expired at 2020-01-01T00:00:00Z" ask old Hi
refused "is required" "$bin/forepack" status --server "$server" 2>"$work/error"
ask acme Hi >/dev/null

# Tenants and priorities.
as acme generate --prompt Hi --max-tokens 1 --tenant acme >/dev/null
refused "is of tenant acme" as acme generate --prompt Hi --tenant globex
refused "may have at most 0" as acme generate --prompt Hi --priority 1
as boss generate --prompt Hi --max-tokens 1 --priority 5 >/dev/null

# The cluster tells everything to an operator only.
equal '["draining","limited","ready","version"]' "$(as acme status --json | jq -c 'keys')" "what a tenant sees"
equal 1 "$(as boss status --json | jq '.nodes | length')" "nodes that an operator sees"
explain() { as "$1" explain --prompt Hi --max-tokens 1 --json | jq -c '[.stages.limited, (.stages.prefill | type), .timing.ttft_ms > 0]'; }
equal '[true,"null",true]' "$(explain acme)" "a request that a tenant has explained"
equal '[false,"object",true]' "$(explain boss)" "a request that an operator has explained"
over_http() {
    curl -s -H @<(printf 'x-api-key: '; cat "$work/$1.key") "http://127.0.0.1:$http_port/v1/completions" \
        -d '{"prompt": "Hi", "max_tokens": 1, "explain": true}' |
        jq -c '.explain | [.stages.limited, (.stages.prefill | type), .timing.ttft_ms > 0]'
}
equal '[true,"null",true]' "$(over_http acme)" "a request that a tenant has explained over HTTP"
equal '[false,"object",true]' "$(over_http boss)" "a request that an operator has explained over HTTP"

# Limits.
ask few Hi >/dev/null
ask few Hi >/dev/null
refused "this API key has 2 requests per minute, which are used up: try again in" ask few Hi
echo '{"prompt": "Hi"}' >"$work/row.jsonl"
start batch "$bin/forepack" batch --server "$server" --api-key-file "$work/few.key" --input "$work/row.jsonl" --output "$work/answers.jsonl"
wait_until 20 "a batch says why it waits" grep -q "which are used up: try again in .* s: trying again" "$work/batch.log"
kill -TERM "$last_pid"
ask small one two three four five six seven eight nine ten eleven twelve >/dev/null
refused "10 tokens per day, which are used up" ask small Hi

# A prompt that a tenant has sent is in the cache only for that tenant.
prompt=$(seq 1 60 | tr '\n' ' ')
equal 0 "$(ask acme "$prompt" | field .usage.cached_tokens)" "tokens reused by a new prompt"
[ "$(ask acme "$prompt" | field .usage.cached_tokens)" -gt 0 ] || fail "a tenant does not reuse its own prompt"
equal 0 "$(ask globex "$prompt" | field .usage.cached_tokens)" "tokens reused by another tenant"

# The same over HTTP. http KEY HEADER PATH [BODY]: the status, and the code and param of an error.
http() {
    /usr/bin/python3 - "$http_port" "$work/$1.key" "${@:2}" <<'PY'
import http.client, json, sys
port, key, header, path, *body = sys.argv[1:]
key = open(key).read().strip()
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request("POST" if body else "GET", path, body[0] if body else None,
                   {header: "Bearer " + key if header == "authorization" else key} if header else {})
answer = connection.getresponse()
content = answer.read()
text = json.loads(content) if answer.getheader("content-type").startswith("application/json") else {}
if answer.status == 200:
    print(200, text.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens"))
else:
    assert key not in str(text)
    assert answer.status != 401 or answer.getheader("WWW-Authenticate") == "Bearer"
    assert answer.status != 429 or int(answer.getheader("retry-after-ms")) > 1000
    print(answer.status, text["error"]["code"], text["error"]["param"])
PY
}
body() { jq -nc --arg prompt "$1" '{prompt: $prompt, max_tokens: 2}'; }
equal "200 None" "$(http acme "" /health)" "health without a key"
equal "401 invalid_api_key None" "$(http acme "" /v1/models)" "models without a key"
equal "401 invalid_api_key None" "$(http wrong x-api-key /v1/completions "$(body Hi)")" "a completion with a wrong key"
equal "200 None" "$(http acme x-api-key /v1/models)" "models with Anthropic's header"
equal 200 "$(curl -s -o "$work/models" -w '%{http_code}' -u proxy:secret -H @<(printf 'x-api-key: '; cat "$work/acme.key") \
    "http://127.0.0.1:$http_port/v1/models")" "models with Anthropic's header and the authorization of a proxy"
equal "200 0" "$(http late authorization /v1/completions "$(body "$prompt")")" "a completion, nothing reused of another tenant"
equal "200 160" "$(http globex authorization /v1/completions "$(body "$prompt")")" "a completion that reuses the tenant's prompt over gRPC"
equal "403 permission_denied tenant" "$(http acme authorization /v1/completions '{"prompt": "Hi", "tenant": "globex"}')" "another tenant"
equal "403 permission_denied priority" "$(http acme authorization /v1/chat/completions '{"messages": [{"role": "user", "content": "Hi"}], "priority": 3}')" "a high priority"
equal "403 permission_denied None" "$(http acme authorization /metrics)" "metrics for a tenant"
equal "200 None" "$(http boss authorization /metrics)" "metrics for an operator"
equal "403 permission_denied n" "$(http single authorization /v1/completions '{"prompt": "Hi", "n": 2}')" "more choices than requests at once"
equal "429 rate_limit_exceeded None" "$(http few authorization /v1/completions "$(body Hi)")" "over the limit"
refusals() { curl -s -H @<(printf 'x-api-key: '; cat "$work/boss.key") "http://127.0.0.1:$http_port/metrics" |
    sed -n "s/^forepack:requests_refused_total{reason=\"$1\"} //p"; }
[ "$(refusals key_limit)" -ge 1 ] || fail "no refusal by the limit of a key is counted"
equal 0 "$(refusals exhausted)" "refusals for lack of capacity"
equal "403 permission_denied n" "$(http budget authorization /v1/completions '{"prompt": "Hi", "n": 8, "max_tokens": 200}')" "more tokens than the limit"
equal "200 0" "$(http budget authorization /v1/completions '{"prompt": "Hi", "n": 8, "max_tokens": 2}')" "fewer tokens than the limit"
equal "429 rate_limit_exceeded None" "$(http few authorization /tokenize '{"prompt": "Hi"}')" "tokenising over the limit"

# Requests that wait: a tenant aborts only its own, and it may use ids of other tenants.
# call KEY generate|abort ID: the number of aborted requests, or how the request ended.
call() {
    /usr/bin/python3 - "$server" "$work/$1.key" "$2" "$3" <<'PY'
import sys, grpc
server, key, method, name = sys.argv[1], open(sys.argv[2]).read().strip(), sys.argv[3], sys.argv[4].encode()
channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
options = dict(metadata=[("authorization", "Bearer " + key)], wait_for_ready=True)
message = b"\x0a" + bytes([len(name)]) + name  # request_id, or the first of request_ids
if method == "abort":
    answer = channel.unary_unary("/forepack.v1.Inference/Abort")(message, **options)
    print(answer[1] if answer else 0)
else:  # text Hello, sampling {max_tokens 2, ignore_eos}
    message += b"\x1a\x05Hello\x32\x04\x08\x02\x68\x01"
    try:
        last = list(channel.unary_stream("/forepack.v1.Inference/Generate")(message, **options))[-1]
        print("cancelled" if b"cancelled" in last else "done")
    except grpc.RpcError as error:
        print(error.code().name, error.details())
PY
}
held() { [ "$(as boss status --json | jq '.queue.waiting + .queue.running')" = "$1" ]; }
kill -STOP "$worker"
waiting=()
for name in acme globex single; do
    start "$name-call" call "$name" generate mine
    waiting+=("$last_pid")
    wait_until 20 "a request of $name waits" held ${#waiting[@]}
done
refused "this API key runs 1 requests, which is its limit" ask single Hi
equal 'ALREADY_EXISTS request_id "mine" is running already: choose another one' "$(call acme generate mine)" "an id twice"
equal 0 "$(call acme abort other)" "requests aborted by an unknown id"
equal 1 "$(call globex abort mine)" "requests aborted by their tenant"
wait "${waiting[1]}"
equal cancelled "$(cat "$work/globex-call.log")" "end of the aborted request"
held 2 || fail "a request of another tenant was aborted"

# Keys change while the router runs, and requests of revoked keys end normally.
is_refused() { ! as "$1" status; }
"$bin/forepack" keys revoke --file "$keys" acme 2>/dev/null
wait_until 20 "the key is refused" is_refused acme
refused "the API key acme was revoked" ask acme Hi
key new --tenant acme
kill -CONT "$worker"
wait "${waiting[@]}"
equal "done done" "$(cat "$work/acme-call.log") $(cat "$work/single-call.log")" "end of requests, one of them of the revoked key"
is_taken() { ask new Hi; }
wait_until 20 "the new key is taken" is_taken
echo "broken" >>"$keys"
unusable() { ask late Hi && grep -q api_keys_unusable "$work/router.log"; }
wait_until 20 "the router reports the broken file" unusable
ask late Hi >/dev/null

# No secret in a log or on a command line.
for file in "$work"/*.key; do
    secret=$(cat "$file")
    if [ "${secret#fpk_}" = "$secret" ]; then continue; fi
    if grep -qF "$secret" "$work"/*.log "$work/error" "$keys"; then fail "${file##*/} is in a log"; fi
    if grep -qF "$secret" /proc/[0-9]*/cmdline 2>/dev/null; then fail "${file##*/} is on a command line"; fi
done
hash=$(sed -n 's/.*sha256:\([0-9a-f]*\).*/\1/p' "$keys" | sed -n 1p)
if grep -qF "$hash" "$work"/*.log; then fail "a hash is in a log"; fi
if "$bin/forepack" keys list --file "$keys" 2>/dev/null; then fail "a broken file is listed"; fi
sed -i '$d' "$keys"
"$bin/forepack" keys list --file "$keys" --json >"$work/list"
equal '["acme","revoked"]' "$(jq -c '.[0] | [.id, .state]' "$work/list")" "the first key"
if grep -qF "$hash" "$work/list"; then fail "keys list shows a hash"; fi
echo "identity: all passed"
