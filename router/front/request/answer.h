// SPDX-License-Identifier: Apache-2.0
// Running requests of a client and the text of their answers, for any protocol. A client is one gRPC call or one HTTP
// exchange. Its protocol embeds `struct client` and sends the results that the functions of client_ops receive.
//
//   message arrives -> identity_admit() -> client_message_begin() -> read and checked -> answers_submit(), or
//                      client_not_submitted(); client_dropped() if the intake pool drops it
//   abort           -> client_abort(): drops the message if it is not read yet, else cancels the running request
//   client is gone  -> client_close(): drops its waiting messages and cancels its running requests
//
// Threads: a message is read on an I/O thread or by the intake pool. From answers_submit() on, the answer and the list
// of the client's answers belong to the core's thread, which also calls every function of client_ops.
#pragma once

#include "lib/text/text_stream.h"
#include "router/front/front.h"
#include "router/front/request/parsed_message.h"

struct answer;
struct client;

// New tokens of an answer with their log-probabilities [n] (NULL: not asked for), and the text that they made final.
// That text may belong to earlier tokens.
struct answer_chunk {
    const char *text; // [text_bytes] whole characters; not NUL-terminated
    size_t text_bytes;
    const int32_t *tokens;
    const struct token_logprob *logprobs;
    const size_t *ends; // [n] end of the text after each token
    int n;
    const struct token_logprob
        *prompt_logprobs; // [n_prompt_logprobs] of the next prompt tokens, from the second one on
    int n_prompt_logprobs;
};

struct client_ops {                           // core's thread
    void (*submitted)(struct client *client); // called before the first of its answers starts; may be NULL
    void (*chunk)(struct answer *a, const struct answer_chunk *chunk);
    // Called last for an answer; answer_rest() has the text that was held back.
    void (*done)(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void (*idle)(struct client *client); // called when no answer runs and no message is read; may be NULL
    void (*release)(struct answer *a);   // frees `data` of an answer that ends; any thread; may be NULL
    void (*free)(struct client *client); // called when the client is closed and idle; nothing refers to it
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
    int index;  // place among the answers of an HTTP exchange
    void *data; // data of the protocol, see client_ops.release; NULL: none
    bool return_kept;
    double reserved; // tokens that are reserved in the limits of the API key
    int min_tokens, n_tokens;
    int stop; // index in the request of the stop string that ended the text; -1: none
    struct answer *prev, *next;
};

// --- the thread that reads a message. identity_admit() comes first: if the limits of the client's key do not allow the
// request, it is refused, and nothing else is called for it.

// DENIED if the key does not allow the tenant or the priority that a message names.
enum status client_check(const struct client *client, const char *tenant, int32_t priority);
// Reserves the requests in the limits of the client's key. It is the last call before their answers_submit(). KEY_LIMIT
// or DENIED if the key may not run so many requests at once, or has too few tokens left for their prompts and
// max_tokens. *retry_us_p is the time after which enough tokens are left; 0: not known.
enum status answers_reserve(struct answer *first, int64_t *retry_us_p);
// Registers a message that has arrived. `id` is the id of its request; empty: it has none, or the id is not known yet.
// No abort finds a message without an id, or with an id that is not UTF-8.
struct parsed_message *client_message_begin(struct client *client, const char *id);
void client_not_submitted(struct parsed_message *parsed); // ends a message that was refused
// Counts and logs a refused message, with the reason in status_message(). The core does so for requests that it
// refuses.
void client_refused(const struct client *client, const char *client_id, enum status status);
// Ends a message that the intake pool dropped: its request was aborted, or its client is gone.
void client_dropped(struct parsed_message *parsed, int64_t arrived_us);
struct answer *answer_create(struct parsed_message *parsed, int64_t arrived_us);
void answers_free(struct answer *first); // frees answers that are not submitted, linked by `next`; NULL is allowed
// Submits the checked requests of one message, linked by `next`, to the core's thread. `method` is for the log. If the
// message was aborted meanwhile, the core's thread ends them without a token.
void answers_submit(struct answer *first, const char *method);

// Closes a client that is gone. It is the last use of `client` by its protocol. Any thread.
void client_close(struct client *client);

// --- core's thread
// Cancels all requests of `owner` with this id, also those whose message is not read yet. owner 0: all owners. False:
// no request has the id.
bool client_abort(const struct front *front, struct core *c, const char *id, uint64_t owner, int64_t now_us);
void client_check_idle(struct client *client); // call it after a change that lets an idle client end
// Counts `more` bytes of a whole answer in addition to its *bytes_p so far. False, with the reason (EXHAUSTED): all
// whole answers together exceed their limit and this one its share, so it must be freed.
bool whole_answer_grow(struct whole_answers *whole, size_t *bytes_p, size_t more);
void whole_answer_free(struct whole_answers *whole,
                       size_t *bytes_p); // uncounts all bytes of the answer; may be called again
// Returns the text that was held back. Call it within client_ops.done, until whose end the text is valid.
struct answer_chunk answer_rest(struct answer *a);
