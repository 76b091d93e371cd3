// SPDX-License-Identifier: Apache-2.0
// Converts a ModelInferRequest to a GenerateRequest. Parameters come from three places: the request's parameters, the
// JSON of the tensor `sampling_parameters`, and tensors with the name of a parameter. They become one JSON object,
// which is read like a body of the HTTP API (json_generation.h). Inputs and outputs follow Triton's vLLM backend.
// Tensors of one parameter may also have the names of Triton's TensorRT-LLM backend. docs/kserve.md lists them.
//
// Any thread may call. Functions return INVALID, NOT_FOUND or UNSUPPORTED on failure.
#pragma once

#include "proto/inference/kserve.pb-c.h"
#include "router/front/http/json_generation.h"

#define KSERVE_VERSION "1" // version of every model

enum kserve_output {
    KSERVE_TEXT,
    KSERVE_IDS,
    KSERVE_FINISH_REASON,
    KSERVE_INPUT_TOKENS,
    KSERVE_OUTPUT_TOKENS,
    KSERVE_CUMULATIVE_LOGPROB,
    KSERVE_LOGPROBS,
    KSERVE_OUTPUT_COUNT
};

// An input or output in the metadata of a model. `dim` -1: any length.
struct kserve_tensor_info {
    const char *name, *datatype;
    Inference__DataType type;
    int dim;
};
extern const struct kserve_tensor_info kserve_inputs[]; // ends with a `name` of NULL
extern const struct kserve_tensor_info kserve_outputs[KSERVE_OUTPUT_COUNT];

struct kserve_request {
    struct json_generation fields; // `message` is complete, but not checked against the model
    bool stream;
    bool echo;          // the text starts with the prompt
    bool empty_final;   // an empty response follows the last one
    unsigned outputs;   // bit k is set if kserve_output k is wanted
    json_t *parameters; // the JSON object of all parameters; owned
    uint32_t *ids;      // prompt of input_ids; owned; NULL: the prompt is text
};

// Borrows from the message. Call kserve_request_fini() whatever the status.
enum status kserve_request_read(const Inference__ModelInferRequest *m, struct kserve_request *q);
void kserve_request_fini(struct kserve_request *q);

// Returns NOT_FOUND unless `version` is empty or KSERVE_VERSION.
enum status kserve_check_version(const char *model, const char *version);
