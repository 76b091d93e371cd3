// SPDX-License-Identifier: Apache-2.0
// Reads the generation fields of any API's JSON body into a GenerateRequest. Each API reads the prompt itself. Defaults
// follow OpenAI's APIs, such as temperature 1, and differ from gRPC's.
//
// The message borrows from the body. Any thread may call.
#pragma once

#include <jansson.h>

#include "lib/text/generation_wire.h"
#include "proto/forepack/v1/inference.pb-c.h"

struct json_generation {
    Forepack__V1__GenerateRequest message; // checked for types; wire_request_read() checks the rest
    bool stream, include_usage, continuous_usage;
    bool return_token_ids;
    bool resumable; // this and the next fields: http_resume.h
    const char *last_event_id;
    const json_t *resume_token_ids;
    int n;                 // choices of each prompt
    bool allows_no_output; // the API allows max_tokens 0; set by the API

    // The objects that `message` points to; owned.
    Forepack__V1__SamplingOptions sampling_options;
    Forepack__V1__PrefillOptions prefill_options;
    struct sampling sampling;
    generation_given sampling_given;
    ProtobufCBinaryData *stop;
    Forepack__V1__SamplingOptions__LogitBiasEntry **logit_bias;
    Forepack__V1__TokenRange *pinned, **pinned_list;
};

enum { JSON_CHOICES_MAX = 128 };

// Call json_generation_fini() whatever the status.
enum status json_generation_read(const json_t *body, struct json_generation *g);
// Asks for the log-probabilities of each token and of the `n` likeliest tokens. `name` is the API's name of the field
// `n`, for the error message.
enum status json_generation_set_logprobs(struct json_generation *g, const char *name, int n);
// Asks for the same log-probabilities of the prompt. Call json_generation_set_logprobs() first, which checks `n`.
void json_generation_set_prompt_logprobs(struct json_generation *g, int n);
// Checks the ranges of the values and completes the message.
enum status json_generation_finish(struct json_generation *g);
void json_generation_fini(struct json_generation *g);

// Returns true if these functions read, refuse or ignore the field on purpose.
bool json_generation_knows(const char *name);
