// SPDX-License-Identifier: Apache-2.0
// The command `generate`: one request, sent to a cluster (--server) or run on a model in this process (--model DIR).
// Two programs have this command: forepack sends requests, and forepack-bench contains the engine that runs a model.
#pragma once

#include "cli/answer.h"
#include "cli/remote.h"
#include "cli/request.h"

// The flags that require --model.
struct generate_model_flags {
    char *model, *backend, *dtype, *kv_dtype, *packed_cache;
    int64_t threads, token_budget;
};

// Runs one request on the model and fills `answer`. `on_text` may be NULL.
typedef enum status (*generate_model_fn)(const struct generate_model_flags *flags, const struct request_spec *spec,
                                         text_fn on_text, void *user, struct answer *answer);

// Runs the whole command and returns the exit code. If `run_model` is NULL, --model replaces this process with
// forepack-bench and the same arguments.
int generate_main(int argc, char **argv, generate_model_fn run_model);
