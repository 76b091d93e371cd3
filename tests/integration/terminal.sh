#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user sees in a terminal: forepack up shows a few lines and keeps its log in a file, and the command that it
# suggests works; forepack chat greets, and its commands are not sent to the model.
. "$(dirname "$0")/lib.sh"
export XDG_STATE_HOME=$work/state

# Replaces the shell, so that the end of a background job closes the terminal. A background job ignores SIGINT.
in_terminal() {
    exec python3 -c 'import os, pty, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@"
}
shown() { tr -d '\r' <"$work/$1.log"; }

# ---- forepack up ----

choose_ports
log=$XDG_STATE_HOME/forepack/up-$port.log
mkdir -p "${log%/*}"
(umask 077 && echo "of an earlier start" >"$log")
mkfifo "$work/keys"
exec 6<>"$work/keys"
up_in_terminal() { in_terminal "$bin/forepack" up --port "$port" --http-port "$http_port" --node-port "$node_port" "$@" <"$work/keys"; }
: >"$work/up.log"
up_in_terminal >"$work/up.log" 2>&1 &
up_pid=$!
started+=("$up_pid")
wait_until 120 "the cluster is ready" up_spoke
wait_until 10 "the block is whole" grep -q ^stop: "$work/up.log"
[ "$(shown up | wc -l)" -le 8 ] || fail "forepack up shows more than a few lines: $(shown up)"
for text in "log: $log" "127.0.0.1:$port" "http://127.0.0.1:$http_port/v1" "http://127.0.0.1:$http_port/" "stop: Ctrl-C"; do
    grep -qF "$text" <<<"$(shown up)" || fail "'$text' is not shown: $(shown up)"
done
grep -q " router settings " "$log" || fail "the log has no settings"
! grep -q "of an earlier start" "$log" || fail "the log was not emptied"
equal 600 "$(stat -c %a "$log")" "the mode of the log file"

command=$(shown up | sed -n 's/^try:  *//p')
eval "${command%%#*} --max-tokens 16 --json" >"$work/tried"
equal "$(head -n 1 "$prompts" | jq .answer)" "$(jq .text "$work/tried")" "the answer to the command that forepack up suggests"
equal true "$(jq '.usage.kept_tokens < .usage.prompt_tokens / 2' "$work/tried")" "the command shows the gain"
equal "$(head -n 1 "$prompts" | jq -r .prompt)" "$(cat "$source_dir/deploy/demo-model/report.txt")" "report.txt and the first prompt"

# A start at the same port does not empty the log of the running cluster.
! (in_terminal "$bin/forepack" up --port "$port" --http-port "$http_port" --node-port "$node_port") >/dev/null </dev/null || fail "two clusters at one port"
grep -q " router settings " "$log" || fail "the log of a running cluster was emptied"

# ---- forepack chat, on the same cluster ----

chat_in_terminal() { printf '%s\n' "$@" /quit | in_terminal "$bin/forepack" chat --server "$server" --max-tokens 16 >"$work/chat.log" 2>&1; }
demo_text=$source_dir/deploy/demo-model/report.txt
before=$(status_json | jq .totals.requests)
chat_in_terminal /help /nonsense "/keep 2" /reset "/system Be brief." || fail "forepack chat ended with $?"
equal "$before" "$(status_json | jq .totals.requests)" "requests after commands of a chat"
for text in "chat with the model main on $server" "/file $demo_text" "/keep " "/nonsense is no command" "/keep 2: must be"; do
    grep -qF "$text" <<<"$(shown chat)" || fail "'$text' is not shown: $(shown chat)"
done
NO_COLOR='' chat_in_terminal "/keep 0.3" "/file $demo_text"
answer=$(head -n 1 "$prompts" | jq -r '.answer | ltrimstr(" ")')
grep -q " $answer\$" <<<"$(shown chat)" || fail "the demo's question is not answered: $(shown chat)"
grep -q $'^\e\[2m\[.* kept [0-9]* of [0-9]* prompt tokens; first token after' <<<"$(shown chat)" || fail "no dim line: $(shown chat)"
NO_COLOR=1 chat_in_terminal "/keep all" "/file $demo_text"
grep -q '^\[.* first token after' <<<"$(shown chat)" || fail "no line without colour: $(shown chat)"
! grep -q $'\e\[2m' <<<"$(shown chat)" || fail "NO_COLOR is not respected"

# Piped: no greeting, an unknown command ends the chat, and // sends a line with one slash.
before=$(status_json | jq .totals.requests)
code=0
echo /etc/passwd | "$bin/forepack" chat --server "$server" >"$work/out" 2>"$work/error" || code=$?
equal "2 0 $before" "$code $(wc -c <"$work/out") $(status_json | jq .totals.requests)" "an unknown command from a pipe"
echo //etc/passwd | "$bin/forepack" chat --server "$server" --max-tokens 2 >"$work/out" 2>&1
equal $((before + 1)) "$(status_json | jq .totals.requests)" "requests after an escaped slash"

# ---- a node that dies, and the end ----

worker=$(pgrep -f "forepack-worker .*--router $node_server")
kill -KILL "$worker"
wait_until 10 "the terminal says that the worker failed" grep -q "node_failed node=worker-0 signal=9" "$work/up.log"
grep -q "node_failed node=worker-0 signal=9" "$log" || fail "the log does not have what the terminal has"
wait_until 60 "the worker is back" nodes worker 1
printf '\003' >&6
code=0
wait "$up_pid" || code=$?
equal 0 "$code" "exit code of forepack up after Ctrl-C"
grep -q "stopping when" <<<"$(shown up)" || fail "forepack up does not say that it stops: $(shown up)"
! grep -q " info " <<<"$(shown up)" || fail "the terminal shows the log: $(shown up)"

: >"$work/up.log"
up_in_terminal --verbose --speculators 0 >"$work/up.log" 2>&1 &
up_pid=$!
started+=("$up_pid")
wait_until 120 "the cluster is ready" up_spoke
grep -q " router settings " "$work/up.log" || fail "--verbose does not show the log"
printf '\003' >&6
wait "$up_pid" || fail "forepack up --verbose ended with $?"

# ---- completion ----

words() { # words LINE: what bash completes at the end of the line
    bash -c 'eval "$("$1/forepack" completion bash)"; read -ra COMP_WORDS <<<"$2"; [[ $2 != *" " ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _forepack; echo "${COMPREPLY[*]}"' - "$bin" "$1"
}
equal "chat compress completion" "$(words "forepack c" | sed 's/ calibrate//')" "commands that start with c"
equal "--verbose --version" "$(cd "$bin" && words "./forepack up --ver")" "options of up"
equal "auto off" "$(words "forepack up --drafts ")" "values of --drafts"
equal "engine" "$(words "forepack bench eng")" "measurements"
equal "--node-listen" "$(words "forepack-router --node-li")" "options of the router"
equal "" "$(words "forepack up --main ")" "a folder is left to bash"
for shell in zsh fish; do
    "$bin/forepack" completion $shell >"$work/script"
    if command -v $shell >/dev/null; then $shell -n "$work/script" || fail "the completion of $shell"; fi
done
code=0
"$bin/forepack" completion tcsh 2>"$work/error" || code=$?
equal "2 shell 'tcsh': must be bash, zsh or fish" "$code $(cat "$work/error")" "another shell"
echo "terminal: all passed"
