#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients that are not part of this project, unmodified, against a real cluster: the official Python packages of OpenAI
# and Anthropic, a gRPC client that uses server reflection, and curl.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

tests=$source_dir/tests/integration
start_up --prefill off --router-option "batch-dir=$work/batches" # which tokens are kept must not depend on the load
http=http://127.0.0.1:$http_port

"$python" "$tests/reflection_client.py" "$server"
"$python" "$tests/openai_client.py" "$http" "$server" "$prompts" "$bin/forepack"
"$python" "$tests/prompt_logprobs.py" "$http" "$server" "$bin/forepack" "$main_model"
"$python" "$tests/anthropic_client.py" "$http" "$server" "$prompts"

# curl, as in the documentation of both APIs.
ask() { curl -sS --fail-with-body -H 'content-type: application/json' "$@"; }
model=$(ask "$http/v1/models" | jq -r '.data[0].id')
body=$(jq -n --arg model "$model" '{model: $model, max_tokens: 3, temperature: 0, messages: [{role: "user", content: "Hi"}]}')
text=$(ask "$http/v1/chat/completions" -d "$body" | jq -r '.choices[0].message.content')
equal "$text" "$(ask "$http/v1/messages" -H 'x-api-key: none' -H 'anthropic-version: 2023-06-01' -d "$body" |
    jq -r '.content[0].text')" "the text of a message"
equal "$text" "$(ask -N "$http/v1/chat/completions" -d "$(jq '.stream = true' <<<"$body")" | sed -n 's/^data: {/{/p' |
    jq -rj '.choices[0].delta.content // ""')" "the text of a stream"
code=$(curl -sS -o "$work/error.json" -w '%{http_code}' "$http/v1/messages" -d '{"max_tokens": 5}')
equal "400 error invalid_request_error" "$code $(jq -r '.type + " " + .error.type' "$work/error.json")" "an error"

# The batch of docs/http-api.md.
sed -n '/^import json, time/,/^print(client.files/p' "$source_dir/docs/http-api.md" | sed "s,http://127.0.0.1:8000,$http," \
    >"$work/batch.py"
"$python" "$work/batch.py" >"$work/batch.jsonl"
equal "99" "$(jq -r 'select(.response.status_code == 200) | .custom_id' "$work/batch.jsonl" | sort -u | wc -l)" "answers of a batch"

wait_until 20 "every KV block is free" all_returned
stop_up

# Callers by their API keys: a router alone tells them apart.
key() { (umask 077 && "$bin/forepack" keys add --file "$work/keys" --id "$1" --tenant acme "${@:2}" 2>/dev/null); }
key_of_many=$(key many) key_of_few=$(key few --requests-per-minute 1)
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$work/keys"
answers() { curl -sS "http://127.0.0.1:$http_port/health"; }
wait_until 20 "the router answers" answers
"$python" "$tests/keys_client.py" "http://127.0.0.1:$http_port" "$key_of_many" "$key_of_few"
