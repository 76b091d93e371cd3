#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The choice of the backend. `auto` uses a GPU if the CUDA backend was built and a GPU exists; otherwise it serves on the
# CPU and logs the reason, and `--backend cuda` is refused with the same reason.
. "$(dirname "$0")/lib.sh"

module=$bin/libforepack_cuda.so
if [ ! -e "$module" ]; then
    reason="the CUDA backend is not installed: .*libforepack_cuda.so does not exist"
elif [[ $(ldd "$module") == *"not found"* ]]; then
    reason="the CUDA backend cannot be loaded: .*: cannot open shared object file"
else
    reason="no CUDA device"
fi
alone() { "$bin/forepack" generate --model "$main_model" --dtype bf16 --prompt "Hello" --max-tokens 8 --json "$@"; }
tokens() { jq -c .token_ids "$work/$1.json"; }

alone --backend cpu >"$work/cpu.json"
alone --backend auto >"$work/auto.json"
if alone --backend cuda >"$work/cuda.json" 2>"$work/cuda.log"; then
    says="backend_chosen backend=cuda"
    equal "$(tokens cuda)" "$(tokens auto)" "tokens of auto on this GPU"
else
    says="backend_chosen backend=cpu reason=.*$reason"
    grep -qE "$reason" "$work/cuda.log" || fail "--backend cuda does not say '$reason'"
    equal 1 "$(wc -l <"$work/cuda.log")" "lines of the refusal"
    equal "$(tokens cpu)" "$(tokens auto)" "tokens of auto"
fi

start_up --workers 1 --tp 1 --speculators 1 --backend auto
grep -qE "$says" "$work/up.log" || fail "the nodes do not say '$says'"
generate --prompt "Hello" --max-tokens 3 --ignore-eos >"$work/answer.json"
equal 3 "$(jq '.token_ids | length' "$work/answer.json")" "tokens of a cluster"
stop_up
echo "backend: all passed"
