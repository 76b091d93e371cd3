// SPDX-License-Identifier: Apache-2.0
// A generation over HTTP: one exchange, its prompts and choices, answered whole or as server-sent events. What depends
// on the API (fields of the body, shape of the answer) is in the functions of struct http_api.
//
// A stream begins with its first token, so that a request that is refused or fails before that has the status of its
// error; at the latest it begins when nothing was sent for a while (http_streams_ping).
#pragma once

#include "router/front/http/http_call.h"
#include "router/front/http/http_intake.h"
#include "router/front/http/json_generation.h"

struct http_generation;
struct http_streams;

struct http_prompt { // exactly one of text, ids and conversation
    const char *text;
    size_t text_bytes;
    uint32_t *ids;
    size_t n_ids;
    struct chat_conversation *conversation;
};

// Data of an API, kept from its reader to the end of the generation.
struct http_data {
    void *value;
    void (*free)(void *value); // NULL: no data
};

// What a body asks for. Borrows from the body.
struct http_input {
    struct json_generation fields;
    struct http_prompt *prompts; // [n_prompts]
    int n_prompts;
    int default_tokens;          // max_tokens if the body has none
    const char *max_tokens_name; // in the body; NULL: max_tokens
    bool echo;                   // the answer starts with the prompt
    bool echo_logprobs;          // and its log-probabilities with those of the prompt
    bool sections;               // the answer is split by the syntax of the model's chats
    const json_t *tools;         // that the model may call; NULL: none
    bool single_call;            // at most one
    bool required_call;          // at least one: of `required_tool`, or of any if that is NULL
    const char *required_tool;
    bool grammar_known; // wire_grammar_known()
    json_t *translated; // a body of /v1/chat/completions that an API made of its own and reads; owned
    struct http_data data;
    struct http_memory *memory;
    int64_t retry_us; // of a refusal; 0: not known
};
// Memory that lives as long as the input; zeroed.
void *http_input_alloc(struct http_input *in, size_t count, size_t size_bytes);
void http_input_fini(struct http_input *in);

enum { HTTP_LOGPROB_LISTS = 4 };

struct http_choice {
    int index;
    bool echoed;              // the text has begun, with the echo if there is one
    struct chat_answer *chat; // NULL: the text is not split
    // Of a whole answer:
    struct bytes text;                         // the content, if the text is split
    struct bytes logprobs[HTTP_LOGPROB_LISTS]; // JSON lists without brackets, of which the API knows the meaning; of a
                                               // stream: what is not sent yet
    struct bytes prompt_logprobs;              // likewise
    struct bytes token_ids;                    // likewise
    struct bytes kept;                         // likewise; "" unless asked for
    enum finish_reason reason;
    int stop;                     // as in struct answer
    struct request_usage counted; // in the usage of the generation
    int64_t n_characters;         // of the text of its tokens, with log-probabilities
};

struct http_api {
    const char *method;       // for the log
    const char *id_prefix;    // of the answer's id
    const char *object;       // "chat.completion"
    const char *chunk_object; // of an event; NULL: as `object`
    enum status (*read)(const json_t *body, struct http_input *in);
    // Appends to the choice's lists [chunk->n] log-probabilities, after those of the prompt if the prompt is echoed
    // with them. NULL: the API has none.
    void (*add_logprobs)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes lists[HTTP_LOGPROB_LISTS]);
    bool content_logprobs; // of an answer that is split: those of its content alone
    // The echo of a prompt begins with this token, which has no log-probability. NULL: the API has no echo.
    void (*echo_begin)(struct http_generation *g, struct http_choice *choice, int32_t token);
    // Appends to choice->prompt_logprobs, for the field "prompt_logprobs". NULL: the API does not have it.
    void (*add_prompt_logprobs)(struct http_generation *g, struct http_choice *choice,
                                const struct answer_chunk *chunk);
    // Streams: appends events to `out`. `begin` may be NULL.
    void (*begin)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*chunk)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                  struct bytes *out);
    // A part of an answer that is split. `call` is set for OUTPUT_CALL and OUTPUT_ARGUMENTS. NULL: answers of this API
    // are never split.
    void (*part)(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                 const struct chat_call *call, const char *text, size_t n, struct bytes *out);
    void (*finish)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*end)(struct http_generation *g, struct bytes *out); // after the last choice; may be NULL
    void (*fail)(struct http_generation *g, enum status status, const char *message, struct bytes *out);
    // The whole answer.
    void (*whole)(struct http_generation *g, struct bytes *out);
};

struct http_generation {
    struct client client;    // first: the client's pointer is ours
    struct http_exchange *x; // our reference
    const struct http_api *api;
    struct http_streams *streams;
    struct http_data data;

    // Constant once the body is read.
    char id[HTTP_ID_ROOM];
    int64_t created_s; // Unix time
    bool stream, include_usage, continuous_usage, return_token_ids, return_kept;
    bool echo_logprobs;          // as in the input
    bool prompt_logprobs;        // the field "prompt_logprobs" was given
    bool no_tokens;              // the answer is the echo of the prompt alone
    int n;                       // choices of each prompt
    struct http_choice *choices; // [n_choices] all choices of the first prompt, then of the next
    int n_choices;
    struct bytes *echoes; // [n_choices / n] the prompts, with which the texts of their choices start; NULL: they do not

    // Core's thread only.
    int n_left;                 // choices that have not ended
    bool begun;                 // the stream
    bool ended;                 // nothing more is sent, and the choices are freed
    int64_t sent_us;            // when something was sent last
    struct request_usage usage; // prompts once, outputs of all choices
    char prefill[64];           // of the first choice, like the next two
    double keep_rate;
    const char *prefill_reason;              // a constant
    size_t collected_bytes;                  // of a whole answer so far
    struct http_generation *previous, *next; // in the list of streams
};

// What all generations share. Core's thread only.
struct http_streams {
    struct http_generation *first; // the streams, which may need a ping
    int64_t ping_after_us;         // constant
    struct bytes scratch;          // the events of one call
    struct whole_answers *whole;   // of the front
};
void http_streams_ping(struct http_streams *streams, int64_t now_us);

// on_request of a route.
void http_generation_start(struct http_exchange *x, const struct front *front, struct http_streams *streams,
                           const struct http_api *api);

// For the APIs.
void http_usage_add(const struct http_generation *g,
                    struct bytes *out); // OpenAI's object with ours, see docs/http-api.md
// Items of a list, without its brackets.
void http_token_ids_add(struct bytes *list, const struct answer_chunk *chunk);
void http_ranges_add(struct bytes *list, const struct token_range *ranges, int n);
