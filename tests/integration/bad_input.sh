#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Wrong input of a user: each command prints one sentence that names the error and ends with the right exit code, and
# other requests are not affected.
. "$(dirname "$0")/lib.sh"

# expect CODE PATTERN COMMAND...
expect() {
    local want=$1 pattern=$2 code=0
    shift 2
    "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ $code = "$want" ] || fail "$*: exit code $code, expected $want: $(head -c 400 "$work/err")"
    grep -qiE -- "$pattern" "$work/err" || fail "$*: '$(head -c 400 "$work/err")' does not match '$pattern'"
    [ "$(wc -l <"$work/err")" -le 1 ] || fail "$*: more than one line: $(head -c 800 "$work/err")"
}
forepack=$bin/forepack

# Environment variables of services. The value of an unknown variable may be a secret.
for program in router worker speculator; do
    expect 2 "environment variable FOREPACK_OPT_API_KEY: this program has no such option" \
        env FOREPACK_OPT_API_KEY=fpk_secret "$bin/forepack-$program" --model "$work/nowhere"
    grep -q fpk_secret "$work/err" && fail "forepack-$program printed the value of an unknown variable"
    expect 2 "variable FOREPACK_OPT_LOG_LEVEL: --log-level 'x': must be one of" \
        env FOREPACK_OPT_LOG_LEVEL=x "$bin/forepack-$program" --model "$work/nowhere"
done

# Flags and files.
expect 2 "unknown command 'fly'" "$forepack" fly
expect 2 "unknown flag --bogus" "$forepack" generate --bogus
expect 2 "exactly one of" "$forepack" generate
expect 2 "empty" "$forepack" generate --prompt ""
expect 2 "no such file" "$forepack" generate --prompt-file "$work/nowhere"
expect 2 "temperature '-1': must be a number from 0 to 100" "$forepack" generate --prompt x --temperature -1
expect 2 "keep_rate 0" "$forepack" generate --prompt x --keep-rate 0
expect 2 "keep-rate '1.5'" "$forepack" generate --prompt x --keep-rate 1.5
echo '[{"role": "user", "content": "x"}]' >"$work/messages.json"
echo "{{ raise_exception('no such role') }}" >"$work/raises.jinja"
printf 'a\n{%% if %%}' >"$work/broken.jinja"
expect 2 "model or --template" "$forepack" render --messages "$work/messages.json"
expect 2 "messages: required" "$forepack" render --template "$work/raises.jinja"
expect 2 "no such file" "$forepack" render --template "$work/nowhere" --messages "$work/messages.json"
expect 2 "now 'noon'" "$forepack" render --template "$work/raises.jinja" --messages "$work/messages.json" --now noon
expect 1 "line 1: no such role" "$forepack" render --template "$work/raises.jinja" --messages "$work/messages.json"
expect 1 "broken.jinja: .*line 2: " "$forepack" render --template "$work/broken.jinja" --messages "$work/messages.json"
expect 2 "whole number" "$forepack" generate --prompt x --top-k many
expect 2 "pool_window 4" "$forepack" generate --prompt x --pool-window 4
expect 2 "look-ahead '0'.*from 1 to 64" "$forepack" generate --prompt x --look-ahead 0
expect 1 "127.0.0.1:1\b" "$forepack" generate --server 127.0.0.1:1 --prompt x
expect 2 "no such file|not found|cannot" "$forepack" generate --model "$work/nowhere" --prompt x
expect 2 "model.*required" "$bin/forepack-router"
expect 2 "required" "$bin/forepack-worker" --router 127.0.0.1:1
expect 2 "must be.*from 0 to 65535" "$bin/forepack-router" --model "$main_model" --port 70000
expect 2 "must be.*from 0 to 49" "$bin/forepack-router" --model "$main_model" --queue-reserve 50
# Limits of node options are checked before a node is started.
expect 2 "max-num-seqs.*from 1 to 10000\b" "$forepack" up --max-num-seqs 10001
expect 2 "kv-blocks .*must be a whole number from 0 to 100000000\b" "$forepack" up --kv-blocks 100000001

expect 2 "is a directory" "$forepack" generate --prompt x --config "$work"

# A command whose output cannot be written fails.
into() { "$forepack" tokenize --model "$main_model" x >"$1"; }
expect 1 "no space left" into /dev/full
closed() { "$forepack" tokenize --model "$main_model" x >&-; }
expect 1 "bad file descriptor" closed

# A command ends quietly if its standard output has no reader, and continues if its standard error has none.
open_unread_pipe
code=0
"$forepack" tokenize --model "$main_model" x >&8 2>"$work/err" || code=$?
equal 141 "$code" "exit code without a reader of standard output" # by SIGPIPE, like other programs
equal "" "$(cat "$work/err")" "standard error without a reader of standard output"
code=0
"$forepack" generate --bogus 2>&8 || code=$?
equal 2 "$code" "exit code without a reader of standard error"

# Broken checkpoints, run by forepack-bench.
broken() { rm -rf "$work/broken"; cp -r "$main_model" "$work/broken"; }
run_broken() { expect "$1" "$2" "$forepack" generate --model "$work/broken" --prompt x --max-tokens 1; }
broken; truncate -s -100 "$work/broken/model.safetensors"; run_broken 2 "model.safetensors"
broken; truncate -s 4 "$work/broken/model.safetensors"; run_broken 2 "model.safetensors"
broken; printf '\377\377\377\377\377\377\377\177' | dd of="$work/broken/model.safetensors" conv=notrunc status=none; run_broken 2 "model.safetensors"
broken; rm "$work/broken/model.safetensors"; run_broken 2 "safetensors"
broken; jq '.hidden_size *= 2' "$main_model/config.json" >"$work/broken/config.json"; run_broken 2 "expected|shape"
broken; jq '.num_hidden_layers += 1' "$main_model/config.json" >"$work/broken/config.json"; run_broken 2 "layers"
broken; echo '{' >"$work/broken/config.json"; run_broken 2 "config.json"
expect 2 "config.json" "$bin/forepack-worker" --model "$work/broken" --router 127.0.0.1:1 --log-level error
expect 2 "config.json" "$bin/forepack-router" --model "$work/broken" --log-level error
broken; echo '{"model": 3}' >"$work/broken/tokenizer.json"; run_broken 2 "tokenizer.json"
broken; head -c 1000 "$main_model/tokenizer.json" >"$work/broken/tokenizer.json"; run_broken 2 "tokenizer.json"

# Against a cluster.
start_up --workers 1 --speculators 1
remote() { expect "$1" "$2" "$forepack" generate --server "$server" "${@:3}"; }
vocab=$(jq .vocab_size "$main_model/config.json")
context=$(jq .max_position_embeddings "$main_model/config.json")
remote 2 "model 'gpt-9'.*served" --prompt x --served-model-name gpt-9
remote 1 "context" --prompt x --max-tokens 1000000
printf '\377\376abc' >"$work/latin"
remote 2 "utf-8" --prompt-file "$work/latin"
head -c 10000000 /dev/zero | tr '\0' 'x' >"$work/long"
remote 1 "maximum context length is $context tokens. However" --prompt-file "$work/long"
row() { jq -cn "$1" >"$work/in.jsonl"; rm -f "$work/res.jsonl"; code=0; "$forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/res.jsonl" 2>"$work/err" || code=$?; }
row '{id: "a", token_ids: [1, '"$vocab"']}'
equal 1 "$code" "exit code of a batch with a bad row"
grep -q "token_ids: $vocab" "$work/res.jsonl" || fail "the bad token id is not named: $(cat "$work/res.jsonl")"
row '({id: "bad", token_ids: [1, '"$vocab"']}, {id: "good", prompt: "Hello", max_tokens: 3, ignore_eos: true})'
equal 3 "$(jq 'select(.id == "good") | .token_ids | length' "$work/res.jsonl")" "the good row beside a bad one"
row '{id: "a", prompt: "x", temperature: -1}'
equal 2 "$code" "exit code of a batch whose row is wrong"
row '{id: "a", prompt: "x", ttft_deadline_ms: 99999999999}'
equal 2 "$code" "exit code of a batch whose row's deadline is out of range"

# A batch never changes a file that is not its output, and reports when its answers cannot be written.
jq -cn 'range(40) | {id: "\(.)", prompt: "Hello", max_tokens: 16, ignore_eos: true}' >"$work/in.jsonl"
batch() { "$forepack" batch --server "$server" --input "$work/in.jsonl" --output "$1" 2>"$work/batch-err" || { code=$?; tail -n 1 "$work/batch-err" >&2; return $code; }; }
cp "$work/in.jsonl" "$work/saved.jsonl"
expect 2 "is the input file" batch "$work/in.jsonl"
cmp -s "$work/in.jsonl" "$work/saved.jsonl" || fail "the input of the batch was changed"
printf 'my\nnotes\n' >"$work/notes"
expect 2 "notes:1: not an answer" batch "$work/notes"
equal $'my\nnotes' "$(cat "$work/notes")" "the file after a batch that refused it"
for note in 'my note' '42' '{"id":"a","prompt":"x"}'; do
    printf '%s' "$note" >"$work/note"
    expect 2 "note:1: not an answer" batch "$work/note"
    equal "$note" "$(cat "$work/note")" "a line without an end after a batch that refused it"
done
cp "$work/in.jsonl" "$work/other.jsonl.part"
other() { "$forepack" batch --server "$server" --input "$work/other.jsonl.part" --output "$work/other.jsonl"; }
expect 2 "other.jsonl.part, which batch replaces, is the input file" other
cmp -s "$work/in.jsonl" "$work/other.jsonl.part" || fail "the batch removed its input"
[ ! -e "$work/other.jsonl" ] || fail "a batch that is refused creates its output"
ln -s target.jsonl "$work/link.jsonl"
expect 2 "link.jsonl: is a symbolic link: name the file that it points to" batch "$work/link.jsonl" # to no file
: >"$work/target.jsonl"
expect 2 "link.jsonl: is a symbolic link: name the file that it points to" batch "$work/link.jsonl"
[ -L "$work/link.jsonl" ] || fail "the batch replaced a link by a file"
expect 2 "is a directory" batch "$work"
expect 1 "no space left" batch /dev/full
mkfifo "$work/pipe"
cat "$work/pipe" >"$work/piped.jsonl" &
batch "$work/pipe"
wait $!
[ -p "$work/pipe" ] || fail "the batch replaced a pipe by a file"
equal 40 "$(wc -l <"$work/piped.jsonl")" "rows through a pipe"

code=0
"$forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/quiet.jsonl" 2>&8 || code=$?
equal "0 40" "$code $(wc -l <"$work/quiet.jsonl")" "exit code and rows of a batch without a reader of standard error"
exec 8>&-

# Two batches at the same time may use the same ids.
start twin "$forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/twin.jsonl"
batch "$work/mine.jsonl" || fail "a batch failed during a batch with the same ids: $(cat "$work/batch-err")"
wait "$last_pid" || fail "the other batch failed"

printf 'not json\n' >"$work/in.jsonl"
expect 2 "in.jsonl:1: not JSON" "$forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/res2.jsonl"

# A second router on the same port: another start may find the port free.
expect 1 "port $port|$port.*in use" "$bin/forepack-router" --model "$main_model" --port "$port" --http-port -1 \
    --node-listen 127.0.0.1:0 --log-level error

before=$(status_json | jq .totals.replays)
expect 1 "port $port.*in use" "$forepack" up --port "$port" --http-port -1 --main "$main_model" --speculators 0
status_is ".totals.replays == $before and (.nodes | length) == 2" || fail "a second cluster on the port disturbed the first"

wait_until 20 "every KV block is free" all_returned
generate --prompt "still here?" --max-tokens 2 --ignore-eos >/dev/null
stop_up

# With --log-format json every line of a router is an object, whatever its values contain.
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --log-format json --served-model-name $'a "b" \e[31m'
wait_until 20 "the router listens" grep -q router_listening "$work/router.log"
timeout 60 "$forepack" generate --server "$server" --prompt x >/dev/null 2>&1 || true
kill -TERM "$last_pid"
wait "$last_pid" || fail "the router did not end well"
equal '"settings","router_listening","request_received","router_stopped"' "$(jq -c .event "$work/router.log" |
    grep -E 'settings|router_(listening|stopped)|request_received' | paste -sd,)" "events in JSON"
equal '"a \"b\" \u001b[31m"' "$(jq -c 'select(.event == "router_listening") | .model' "$work/router.log")" "a quoted value"
echo "bad input: all passed"
