// SPDX-License-Identifier: Apache-2.0
// The token usage of a batch: sums over the answers of its output file. Not thread-safe.
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct batch_usage {
    int64_t input, cached, output, reasoning; // tokens; cached ones are also in `input`, reasoning ones in `output`
    char *model;                              // model of the first answer; owned; NULL: there is no answer
};
void batch_usage_fini(struct batch_usage *usage);

// Adds the usage of a line of the output file. A line without a usage adds nothing.
void batch_usage_add(struct batch_usage *usage, const char *line, size_t size);

// Sets the members "usage" and "model" of a batch, in the form of OpenAI's API. There is no "model" without an answer.
void batch_usage_to_json(const struct batch_usage *usage, json_t *batch);
// Reads what batch_usage_to_json() has set. Missing members are 0.
void batch_usage_from_json(const json_t *batch, struct batch_usage *usage);
