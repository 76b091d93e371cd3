// SPDX-License-Identifier: Apache-2.0
// The input of a generation, read from a body: the fields that all APIs share, and the prompts. Any thread may call.
#pragma once

#include "lib/text/chat.h"
#include "router/front/http/json_generation.h"

// A prompt: exactly one of text, ids and conversation.
struct http_prompt {
    const char *text;
    size_t text_bytes;
    uint32_t *ids;
    size_t n_ids;
    struct chat_conversation *conversation;
};

// Data that an API creates in http_api.read and keeps until the end of the generation.
struct http_data {
    void *value;
    void (*free)(void *value); // NULL: no data
};

// The fields of a body. Pointers borrow from the body.
struct http_input {
    struct json_generation fields;
    struct http_prompt *prompts; // [n_prompts]
    int n_prompts;
    int default_tokens;          // max_tokens if the body has none
    const char *max_tokens_name; // name of the field max_tokens in the body; NULL: max_tokens
    bool echo;                   // the answer starts with the prompt
    bool echo_logprobs;          // the lists of log-probabilities begin with the tokens of the prompt
    bool sections;               // the answer is split into reasoning, content and tool calls (chat_answer.h)
    const json_t *tools;         // tools that the model may call; NULL: none
    bool single_call;            // the answer has at most one call
    bool required_call;          // the answer has at least one call
    const char *required_tool;   // with required_call: name of the tool that must be called; NULL: any tool
    bool formatted;              // the grammar comes from response_format, which applies to text and not to calls
    bool system_turns;           // as in struct front; set before the body is read
    bool grammar_known;          // reading the requests compiles no grammar (wire_grammar_known())
    json_t *translated;          // a body of /v1/chat/completions that an API made from its own body; owned
    json_t *allowed_tools;       // the list `tools` if tool_choice allows only some of them; owned
    json_t *variables;           // variables of the chat template; NULL: none; owned
    Forepack__V1__Resume resume; // http_resume.h
    struct http_data data;
    struct http_memory *memory; // list of the blocks of http_input_alloc(); owned
    int64_t retry_us;           // after a refusal: time after which a retry may succeed; 0: not known
};

// Returns zeroed memory that lives as long as the input.
void *http_input_alloc(struct http_input *in, size_t count, size_t size_bytes);
void http_input_fini(struct http_input *in);
