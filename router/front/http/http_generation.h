// SPDX-License-Identifier: Apache-2.0
// A generation over HTTP: one exchange, its prompts and choices, answered whole or as server-sent events. The functions
// of struct http_api do what depends on the API: fields of the body, shape of the answer.
//
//   http_generation.c            start and end, and the tokens that the core sends
//   http_generation_reader.c     the body to requests
//   http_generation_collector.c  a whole answer
//   http_generation_streamer.c   server-sent events
//   http_sections.c              answers split into reasoning, content and tool calls
//   http_usage.c                 usage and headers of an answer
#pragma once

#include "router/front/http/http_call.h"
#include "router/front/http/http_input.h"
#include "router/front/http/http_intake.h"

struct http_generation;
struct http_streams;

enum { HTTP_LOGPROB_LISTS = 4 };

struct http_choice {
    int index;
    bool echoed;              // the text has begun, with the echo if there is one
    struct chat_answer *chat; // NULL: the text is not split
    // Whole answers:
    struct bytes text; // the content, if the text is split
    // JSON lists without brackets. The API knows the meaning of `logprobs`; in a stream it holds what is not sent yet.
    struct bytes logprobs[HTTP_LOGPROB_LISTS], prompt_logprobs, token_ids;
    struct bytes kept; // "" unless asked for
    enum finish_reason reason;
    int stop;                     // as in struct answer
    struct request_usage counted; // part of the generation's usage that comes from this choice
    int64_t n_characters;         // characters of its tokens' text so far; counted for log-probabilities
};

struct http_api {
    const char *method;       // its name in the log
    const char *id_prefix;    // beginning of the answer's id
    const char *object;       // member "object" of a whole answer
    const char *chunk_object; // member "object" of an event; NULL: events have none
    enum status (*read)(const json_t *body, struct http_input *in);
    // Appends [chunk->n] log-probabilities to the choice's lists. Prompt log-probabilities come first if the prompt is
    // echoed with them. NULL: the API has none.
    void (*add_logprobs)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes lists[HTTP_LOGPROB_LISTS]);
    bool content_logprobs; // an answer that is split has log-probabilities of its content alone
    // Begins the echo of a prompt with its first token, which has no log-probability. NULL: the API has no echo.
    void (*echo_begin)(struct http_generation *g, struct http_choice *choice, int32_t token);
    // Appends to choice->prompt_logprobs, for the field "prompt_logprobs". NULL: the API does not have it.
    void (*add_prompt_logprobs)(struct http_generation *g, struct http_choice *choice,
                                const struct answer_chunk *chunk);
    // Streams: these functions append events to `out`. `begin` may be NULL.
    void (*begin)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*chunk)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                  struct bytes *out);
    // Appends a part of an answer that is split. `call` is set for OUTPUT_CALL and OUTPUT_ARGUMENTS. NULL: answers of
    // this API are never split.
    void (*part)(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                 const struct chat_call *call, const char *text, size_t n, struct bytes *out);
    void (*finish)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*end)(struct http_generation *g, struct bytes *out); // after the last choice; may be NULL
    void (*fail)(struct http_generation *g, enum status status, const char *message, struct bytes *out);
    // Appends the whole answer.
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
    bool echo_logprobs;          // as in struct http_input
    bool prompt_logprobs;        // the field "prompt_logprobs" was given
    bool no_tokens;              // the answer is the echo of the prompt alone
    int n;                       // choices of each prompt
    struct http_choice *choices; // [n_choices] all choices of the first prompt, then of the next
    int n_choices;
    struct bytes *echoes; // [n_choices / n] texts of the prompts, with which their choices start; NULL: no echo

    // Core's thread only.
    int n_left;                 // choices that have not ended
    bool begun;                 // the stream has begun
    bool ended;                 // nothing more is sent, and the choices are freed
    int64_t sent_us;            // when something was sent last
    struct request_usage usage; // counts prompts once, and outputs of all choices
    char prefill[64];           // this and the next three fields are of the first choice
    double keep_rate;
    struct prefill_prediction predicted;
    const char *prefill_reason;              // a constant
    size_t collected_bytes;                  // of a whole answer so far
    struct http_generation *previous, *next; // in the list of streams
};

// The state that all generations share. Core's thread only.
struct http_streams {
    struct http_generation *first; // the streams that run, which may need a ping
    int64_t ping_after_us;         // constant
    struct bytes scratch;          // the events of one call
    struct whole_answers *whole;   // the front's
};

// on_request of a route.
void http_generation_start(struct http_exchange *x, const struct front *front, struct http_streams *streams,
                           const struct http_api *api);

// Returns the text that the choice's text still has to start with. Borrowed.
static inline struct bytes http_echo_left(const struct http_generation *g, const struct http_choice *choice)
{
    return g->echoes && !choice->echoed ? g->echoes[choice->index / g->n] : (struct bytes){0};
}
