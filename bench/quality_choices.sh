#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Right answers and TTFT of speculative prefill beside other ways to choose tokens (baselines), and of the choices of the paper
# one at a time (ablations), with the demo pair. Writes JSON files, tables as Markdown and a picture as SVG.
#
# Usage: bench/quality_choices.sh [baselines|ablations|all] [--out DIR] [--bin DIR] [--main DIR] [--spec DIR] [--early N]
#                                 [--task NAME] [--prompt-tokens N] [--documents N] [--seed N]
#   --out DIR          folder for the results (default bench-out/choices)
#   --early N          layers of the main model that score in place of the speculator (default 2)
#   --task NAME        class of documents, all (default) or ruler
#   --prompt-tokens N  length of the prompts (default 1000)
#   --documents N      documents of each class (default 100)
# Takes about 90 minutes on two cores with 100 documents of each class; nothing else should run. A measurement whose file exists
# is skipped: delete the file to measure again.
set -euo pipefail
cd "$(dirname "$0")/.."

what=all out=bench-out/choices bin=build/release/bin main=deploy/demo-model/main spec=deploy/demo-model/speculator
early=2 task=all prompt_tokens=1000 documents=100 seed=19
case ${1:-} in baselines | ablations | all) what=$1 && shift ;; esac
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --main | --spec | --early | --task | --prompt-tokens | --documents | --seed)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    --help) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"

# The first layers of the main model as a model of their own: its attention chooses the tokens (GemFilter, arXiv 2409.17422, and
# FastKV, arXiv 2502.01068, use an early layer in this way), and no second model is needed.
python3 bench/first_layers.py "$main" "$early" "$out/early"

measure() { # NAME OPTION...: one measurement, as NAME.json
    [ ! -s "$out/$1.json" ] || return 0
    echo "measuring $1" >&2
    "$bin/forepack" bench prefill-quality --main "$main" --spec "$spec" --task "$task" --prompt-tokens "$prompt_tokens" \
        --documents "$documents" --seed "$seed" --chunk-tokens auto --json "${@:2}" >"$out/$1.part"
    mv "$out/$1.part" "$out/$1.json"
}

if [ "$what" != ablations ]; then
    measure baselines --time --keep-rates 0.7,0.5,0.3,0.2,0.1,0.05 \
        --policies importance,oracle,bm25,perplexity,random,positional,first,last
    measure baselines-tokens --time --keep-rates 0.7,0.5,0.3,0.2,0.1,0.05 --policies perplexity --chunk-tokens 0
    measure baselines-early --time --keep-rates 0.7,0.5,0.3,0.2,0.1,0.05 --policies importance --spec "$out/early" --look-aheads 1
fi
if [ "$what" != baselines ]; then
    once=(--policies importance --keep-rates 0.3,0.1)
    # The last prompt token counts as a look-ahead token: 1, 2, 5, 9 and 17 are the paper's 0, 1, 4, 8 and 16.
    measure look-ahead "${once[@]}" --look-aheads 1,2,5,8,9,17
    measure chunk "${once[@]}" --chunk-tokens 0,16,32,64
    for window in 1 5 25; do measure "pool-$window" "${once[@]}" --pool-window "$window"; done
    measure contiguous "${once[@]}" --positions contiguous
    measure early "${once[@]}" --spec "$out/early"
    measure paper "${once[@]}" --paper-exact --chunk-tokens 32
fi
python3 bench/quality_choices.py "$out" "$early"
