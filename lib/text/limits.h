// SPDX-License-Identifier: Apache-2.0
// Choices, defaults and upper bounds of the options that describe a model, also for programs that start nodes without
// linking the engine. Constants only.
#pragma once

// Values of --backend, --dtype, --kv-cache-dtype and --allreduce-dtype, as choices of a command line.
#define MODEL_BACKENDS         "auto|cpu|cuda|reference"
#define MODEL_DTYPES           "auto|f32|bf16|bf12|int8|int8-g128|fp8|int4-g128"
#define MODEL_KV_DTYPES        "auto|bf16|int8|fp8"
#define MODEL_ALLREDUCE_DTYPES "auto|f32|bf16"

#define MODEL_GPU_MEMORY_UTILIZATION 0.9 // default fraction of a GPU's memory that a process may use, KV cache included

// Upper bounds of node options.
enum { MODEL_ROWS_MAX = 1000000, MODEL_SEQS_MAX = 10000, MODEL_KV_BLOCKS_MAX = 100000000 };
