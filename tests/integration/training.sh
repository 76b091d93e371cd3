#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/demo-model/train.py: a step of each stage gives weights that the program loads, and the losses say that the models
# of the folder are trained.
. "$(dirname "$0")/lib.sh"
packages=$source_dir/tests/integration/transformers.txt
pip_options=(--no-deps --no-compile)
. "$source_dir/tests/integration/venv.sh"

bash "$source_dir/tests/transformers/stubs.sh" "$venv"
export LD_LIBRARY_PATH=$venv/stubs:$venv/stubs/real PYTHONPATH=$source_dir/deploy/demo-model PYTHONPYCACHEPREFIX=$venv/bytecode
unset PYTHONDONTWRITEBYTECODE # compiling torch takes ten seconds each time

for model in main speculator; do
    cp -r "$source_dir/deploy/demo-model/$model" "$work/$model"
    "$python" -W ignore "$source_dir/deploy/demo-model/train.py" $model --forepack "$bin/forepack" --steps 1 \
        --output "$work/$model/model.safetensors" >"$work/$model.log" 2>&1 || fail "training $model"
    ! cmp -s "$source_dir/deploy/demo-model/$model/model.safetensors" "$work/$model/model.safetensors" ||
        fail "$model: the weights are as before"
    "$bin/forepack" generate --model "$work/$model" --prompt "The gate code" --max-tokens 3 --ignore-eos --json |
        jq -e '.token_ids | length == 3' >/dev/null || fail "generate with the trained $model"
done

"$python" -W ignore "$source_dir/tests/integration/training_losses.py" "$bin/forepack"
