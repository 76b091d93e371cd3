// SPDX-License-Identifier: Apache-2.0
// Running one model in this process, without a cluster: the quickest way to check a checkpoint. The same scheduler,
// sampler and text stream as a worker group of one rank, so the same tokens.
#pragma once

#include "cli/answer.h"
#include "cli/remote.h"
#include "cli/request.h"
#include "model/model.h"

struct local_flags {
    char *model, *backend, *dtype, *kv_dtype, *packed_cache;
    int64_t threads, token_budget;
};
extern struct local_flags local_flags;

// clang-format off
#define LOCAL_OPTION_ROWS                                                                                               \
    {.name = "model", .type = OPTION_STRING, .value = &local_flags.model,                                              \
     .help = "run this model directory in the process itself, without a cluster"},                                     \
    {.name = "backend", .type = OPTION_CHOICE, .value = &local_flags.backend, .default_text = "auto",                   \
     .choices = MODEL_BACKENDS, .help = "with --model: what computes; auto is a GPU where there is one, else the CPU"}, \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &local_flags.dtype, .default_text = "auto",                       \
     .choices = MODEL_DTYPES, .help = "with --model: type that weights are computed in; auto is the checkpoint's"}, \
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &local_flags.kv_dtype, .default_text = "auto",                 \
     .choices = MODEL_KV_DTYPES, .help = "with --model: type of the KV cache; auto is f32 with f32 weights, else bf16"}, \
    {.name = "packed-cache", .type = OPTION_STRING, .value = &local_flags.packed_cache, .default_text = "off",          \
     .help = "with --model: keep packed weights for the next start: a folder, auto (beside the checkpoint) or off"},    \
    {.name = "threads", .type = OPTION_INT, .value = &local_flags.threads, .default_text = "0", .max = 4096,            \
     .help = "with --model: compute threads; 0 is all the process may use"},                                            \
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &local_flags.token_budget, .default_text = "2048", .min = 1,  \
     .max = 1048576, .unit = "tokens", .help = "with --model: rows of one pass"}
// clang-format on

// Prefills everything (there is no speculator here) and generates.
enum status local_generate(const struct request_spec *spec, text_fn on_text, void *user, struct answer *answer);
