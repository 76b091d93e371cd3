// SPDX-License-Identifier: Apache-2.0
// Running requests of a client and the text of their answers, whatever protocol the client speaks. A client is one gRPC
// call or one HTTP exchange; its protocol embeds `struct client` and sends what the functions of client_ops receive.
//
//   message arrives -> identity_admit() -> client_message_begin() -> read and checked -> answers_submit(), or
//                      client_not_submitted(); if the intake pool drops it client_dropped()
//   abort           -> client_abort(): drops the message if it is still being read, else cancels the running request
//   client is gone  -> client_close(): its waiting messages are dropped, its running requests cancelled
//
// Threads: a message is read on an I/O thread or by the intake pool. From answers_submit() on an answer, and the list
// of a client's answers, belong to the core's thread, which also calls every function of client_ops.
#pragma once

#include "lib/text/text_stream.h"
#include "router/front/front.h"
#include "router/front/request/parsed_message.h"

struct answer;
struct client;

// New tokens of an answer with their log-probabilities [n] (NULL: not asked for), and the text that they made final,
// which may be that of earlier tokens.
struct answer_chunk {
    const char *text; // [text_bytes] whole characters; not NUL-terminated
    size_t text_bytes;
    const int32_t *tokens;
    const struct token_logprob *logprobs;
    const size_t *ends; // [n] of the text after each token
    int n;
    const struct token_logprob
        *prompt_logprobs; // [n_prompt_logprobs] of the next prompt tokens, from the second one on
    int n_prompt_logprobs;
};

struct client_ops {                           // core's thread
    void (*submitted)(struct client *client); // before the first of its answers starts; may be NULL
    void (*chunk)(struct answer *a, const struct answer_chunk *chunk);
    // The last call for an answer; answer_rest() has the text that was held back.
    void (*done)(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void (*idle)(struct client *client); // no answer runs, and no message is being read; may be NULL
    void (*release)(struct answer *a);   // frees `data` of an answer that ends; any thread; may be NULL
    void (*free)(struct client *client); // closed and idle; nothing refers to it
};

struct client {
    const struct client_ops *ops;
    const struct front *front;
    struct principal *principal;            // valid until `free` returns; NULL: no API keys are used
    struct trace_context *trace;            // owned; NULL: requests are not traced. Constant once a message is read
    struct parsed_message *parsed_messages; // messages not yet submitted or refused; guarded by front->parsed_messages
    // Core's thread only:
    struct answer *answers; // running requests
    bool closed;
};

struct answer {
    struct client *client;
    struct parsed_message *parsed; // its message, until it is submitted
    struct request *request;       // owned until it is submitted, then the core's and valid until done
    struct trace_record *trace;    // owned; NULL: it is not traced
    struct text_stream *text;
    int index;  // among the answers of an HTTP exchange
    void *data; // of the protocol, see client_ops.release; NULL: none
    bool return_kept;
    double reserved; // tokens, in the limits of the API key
    int min_tokens, n_tokens;
    int stop; // the stop string that ended the text, by its place in the request; -1: none
    struct answer *prev, *next;
};

// --- where a message is read. First of all the limits of the client's key (identity_admit()): if they do not allow the
// request, it is refused, and nothing else is called for it.
// DENIED if the key does not allow the tenant or the priority that a message names.
enum status client_check(const struct client *client, const char *tenant, int32_t priority);
// The last call before answers_submit() of the same requests: KEY_LIMIT or DENIED if the key may not run so many
// requests at once, or has too few tokens left for their prompts and max_tokens. *retry_us_p is the time after which
// enough tokens are left, 0: not known.
enum status answers_reserve(struct answer *first, int64_t *retry_us_p);
// A message has arrived. `id` is the id of its request; empty: there is none, or it is not known yet. No abort finds a
// message without an id, or with one that is not UTF-8.
struct parsed_message *client_message_begin(struct client *client, const char *id);
void client_not_submitted(struct parsed_message *parsed); // it was refused
// Counts and logs a refused message, with the reason in status_message(). The core does so for what it refuses itself.
void client_refused(const struct client *client, const char *client_id, enum status status);
// The intake pool dropped the message: its request was aborted, or its client is gone.
void client_dropped(struct parsed_message *parsed, int64_t arrived_us);
struct answer *answer_create(struct parsed_message *parsed, int64_t arrived_us);
void answers_free(struct answer *first); // of answers that are not submitted, linked by `next`; NULL is allowed
// Hands the checked requests of one message, linked by `next`, to the core's thread. `method` is for the log. If the
// message was aborted meanwhile, the core's thread ends them without a token.
void answers_submit(struct answer *first, const char *method);

// The client is gone: the last use of `client` by its protocol. Any thread.
void client_close(struct client *client);

// --- core's thread
// Cancels all requests of `owner` with this id; owner 0: of all owners. Includes requests whose message is still being
// read. False: there are none.
bool client_abort(const struct front *front, struct core *c, const char *id, uint64_t owner, int64_t now_us);
void client_check_idle(struct client *client); // after a change that lets an idle client end
// Counts memory of a whole answer in addition to its *bytes_p so far. False, with the reason (EXHAUSTED): it is too
// large while all together are over their limit, and must be freed.
bool whole_answer_grow(struct whole_answers *whole, size_t *bytes_p, size_t more);
void whole_answer_free(struct whole_answers *whole,
                       size_t *bytes_p); // counts nothing more of it; it may be called again
// Within client_ops.done: the text that was held back, valid until it returns.
struct answer_chunk answer_rest(struct answer *a);
