#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints and tokenizers are computed as Hugging Face transformers computes them, or refused with the name of the
# unsupported key: a fixed set, and sets drawn from seeds.
# By hand:  FOREPACK_BIN=build/release/bin FOREPACK_SOURCE=. tests/integration/transformers.sh --seeds 500 --first 1000
. "$(dirname "$0")/lib.sh"
packages=$source_dir/tests/integration/transformers.txt
pip_options=(--no-deps --no-compile)
. "$source_dir/tests/integration/venv.sh"

bash "$source_dir/tests/transformers/stubs.sh" "$venv"
data=()
[ ! -d "${FOREPACK_DATA:-}/tokenizers" ] || data=(--data "$FOREPACK_DATA")
[ $# -gt 0 ] || set -- --seeds 20
unset PYTHONDONTWRITEBYTECODE # training.sh uses the bytecode, too
LD_LIBRARY_PATH=$venv/stubs:$venv/stubs/real HF_HUB_OFFLINE=1 PYTHONPYCACHEPREFIX=$venv/bytecode \
    "$python" "$source_dir/tests/transformers/generate.py" "$work/peer" "${data[@]}" "$@"
"$bin/against_transformers" "$work/peer"
