// SPDX-License-Identifier: Apache-2.0
// A generation over HTTP: the prompts and choices of one HTTP request, and their answer: one JSON body, or a stream of
// server-sent events. struct http_api has the functions that depend on the API: they read the fields of the request and
// format the answer.
//
//   http_generation.c            starts and ends a generation, receives tokens from the core
//   http_generation_reader.c     converts the body to requests
//   http_generation_collector.c  collects and sends a whole answer
//   http_generation_streamer.c   sends server-sent events
//   http_resume.c                ids of events, by which a client resumes a stream
//   http_sections.c              splits answers into reasoning, content and tool calls
//   http_usage.c                 writes usage and headers of an answer
//   http_explain.c               writes what each stage decided
#pragma once

#include "router/front/http/http_call.h"
#include "router/front/http/http_input.h"
#include "router/front/http/http_intake.h"
#include "router/front/http/json_body.h"

struct http_generation;
struct http_streams;

enum { HTTP_LOGPROB_LISTS = 4 }; // largest number of lists of log-probabilities per choice in any API

struct http_choice {
    int index;                // index in http_generation.choices
    bool echoed;              // the text has begun: it contains the echo of the prompt, if an echo was asked for
    struct chat_answer *chat; // state that splits the text into sections; NULL: the text is not split
    struct bytes text;        // whole answers only: the text so far; if the text is split, only its content

    // The next four fields are JSON lists without brackets. http_api.add_logprobs fills `logprobs`; in a stream, they
    // have only the entries that are not sent yet.
    struct bytes logprobs[HTTP_LOGPROB_LISTS];
    struct bytes prompt_logprobs; // whole answers only; empty except in the first choice of a prompt
    struct bytes token_ids;       // whole answers only: token ids of the answer, if asked for
    struct bytes kept;            // kept ranges of the prompt, if asked for; set at the end

    enum finish_reason reason;    // set at the end
    int stop;                     // as in struct answer; set at the end
    struct request_usage counted; // part of the generation's usage that this choice has added so far
    int64_t n_characters;         // number of characters of the tokens whose log-probabilities were added
};

struct http_api {
    const char *method;       // name of the API in the log
    const char *id_prefix;    // beginning of the answer's id
    const char *object;       // member "object" of a whole answer
    const char *chunk_object; // member "object" of an event; NULL: events have none
    enum context_words context_words;
    enum status (*read)(const json_t *body, struct http_input *in);
    json_knows_fn *knows; // returns true for the fields that `read` reads, refuses or ignores on purpose
    // Appends the chunk's log-probabilities to `lists`; with echo_logprobs, first the prompt's log-probabilities.
    // NULL: the API has no log-probabilities.
    void (*add_logprobs)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes lists[HTTP_LOGPROB_LISTS]);
    bool resumes;          // streams may be resumed (http_resume.h)
    bool content_logprobs; // a split answer has log-probabilities only for the tokens of its content
    void (*headers)(struct http_generation *g); // adds headers to the answer; NULL: none
    // With echo_logprobs: appends the prompt's first token to choice->logprobs, with null as its log-probability. NULL:
    // the API has no echo.
    void (*echo_begin)(struct http_generation *g, struct http_choice *choice, int32_t token);
    // Appends the chunk's prompt log-probabilities to choice->prompt_logprobs, for the field "prompt_logprobs". NULL:
    // the API does not have this field.
    void (*add_prompt_logprobs)(struct http_generation *g, struct http_choice *choice,
                                const struct answer_chunk *chunk);
    // Streams only: the functions from here to `fail` append events to `out`. `begin` is called once for each choice;
    // NULL: the API has no event for the start of a choice.
    void (*begin)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*chunk)(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                  struct bytes *out);
    // Appends a part of a split answer. `call` is set for OUTPUT_CALL and OUTPUT_ARGUMENTS. `part` is NULL if the API
    // never splits its answers.
    void (*part)(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                 const struct chat_call *call, const char *text, size_t n, struct bytes *out);
    void (*finish)(struct http_generation *g, struct http_choice *choice, struct bytes *out);
    void (*end)(struct http_generation *g, struct bytes *out); // after the last choice; may be NULL
    void (*fail)(struct http_generation *g, enum status status, const char *message, struct bytes *out);
    // Whole answers only: appends the body.
    void (*whole)(struct http_generation *g, struct bytes *out);
};

struct http_generation {
    struct client client;    // first member: a pointer to the client is cast to the generation
    struct http_exchange *x; // holds a reference
    const struct http_api *api;
    struct http_streams *streams;
    struct http_data data;

    // Constant once the body is read.
    char id[HTTP_ID_ROOM];
    int64_t created_s; // Unix time
    bool stream, include_usage, continuous_usage, return_token_ids, return_kept;
    bool resumable;       // events have ids (http_resume.h)
    bool echo_logprobs;   // as in struct http_input
    bool prompt_logprobs; // the field "prompt_logprobs" was given
    int asked_tokens;     // max_tokens of the body; 0: not given
    int n;                // choices of each prompt
    // [n_choices] the choices of the first prompt, then the choices of the next prompt, and so on
    struct http_choice *choices;
    int n_choices;
    struct bytes *echoes; // [n_choices / n] texts of the prompts, which the choices repeat; NULL: no echo

    // Core's thread only.
    int n_left;                 // choices that have not ended
    bool begun;                 // the stream has begun
    bool choices_begun;         // http_api.begin was called for the choices
    bool ended;                 // the end was sent and the choices are freed; later output of the core is ignored
    int64_t sent_us;            // time of the last event or ping, or of the submission
    struct request_usage usage; // counts each prompt once, and the outputs of all choices
    int reduced_tokens;         // smallest reduced max_tokens of the choices; 0: none was reduced
    // The next six fields belong to the first choice:
    char prefill[64];                       // see wire_prefill_format()
    char prefill_limit[REQUEST_LIMIT_ROOM]; // see request_limit_format()
    double keep_rate;                       // as in struct request
    struct prefill_prediction predicted;    // as in struct request
    const char *prefill_reason;             // see request_rate_reason(); static

    struct bytes explanation; // see http_explain_add(); empty: not asked for, or the choice has not ended

    size_t collected_bytes;                  // part of streams->whole that belongs to this generation
    struct http_generation *previous, *next; // in the list of streams
};

// The state that all generations share. Core's thread only.
struct http_streams {
    struct http_generation *first; // list of the running streams, which may need a ping
    int64_t ping_after_us;         // a stream is pinged after this time without an event; constant
    struct bytes scratch;          // buffer of the events or the answer being sent
    struct whole_answers *whole;   // borrowed from the front
};

// Starts the generation of an exchange: a route's on_request calls it.
void http_generation_start(struct http_exchange *x, const struct front *front, struct http_streams *streams,
                           const struct http_api *api);

// Returns the echo if the choice's text has not begun yet, else empty bytes. Borrowed.
static inline struct bytes http_echo_left(const struct http_generation *g, const struct http_choice *choice)
{
    return g->echoes && !choice->echoed ? g->echoes[choice->index / g->n] : (struct bytes){0};
}
