// SPDX-License-Identifier: Apache-2.0
// Running requests of a client and the text of their answers, for any protocol. A client is one gRPC call or one HTTP
// exchange. The code of each protocol embeds `struct client`, and sends the results in the functions of client_ops.
//
//   message arrives -> identity_admit() -> client_message_begin() -> the message is read and checked -> it ends with
//                      answers_submit(), client_not_submitted() if it is refused, or client_dropped() if the intake
//                      pool drops it
//   abort           -> client_abort(): drops the message if it is not read yet, else cancels the running request
//   client is gone  -> client_close(): drops its waiting messages and cancels its running requests
//
// Threads: a message is read on an I/O thread or by the intake pool. From answers_submit() on, the answer and the list
// of the client's answers belong to the core's thread, which also calls the functions of client_ops. Exception: answers
// that are not submitted are freed on the thread that read them, which also calls client_ops.release.
#pragma once

#include "lib/text/text_stream.h"
#include "router/front/front.h"
#include "router/front/request/parsed_message.h"

struct answer;
struct client;

// New tokens of an answer, and the text that became final with them. This text may belong to earlier tokens.
struct answer_chunk {
    const char *text; // [text_bytes] whole characters; not NUL-terminated
    size_t text_bytes;
    const int32_t *tokens;                // [n]
    const struct token_logprob *logprobs; // [n] NULL: they were not asked for
    const size_t *ends;                   // [n] number of bytes of `text` that are final after token i
    int n;
    // [n_prompt_logprobs] log-probabilities of the next prompt tokens. The first chunk begins with the second token.
    const struct token_logprob *prompt_logprobs;
    int n_prompt_logprobs;
};

// The core's thread calls these functions, except `release`.
struct client_ops {
    void (*submitted)(struct client *client); // called for each message, before its requests start; may be NULL
    void (*chunk)(struct answer *a, const struct answer_chunk *chunk);
    // Receives tokens that the client has already; NULL: the protocol need not know them.
    void (*resumed)(struct answer *a, const struct answer_chunk *chunk);
    // The last call for a submitted answer, except `release`. answer_rest() returns the text that was held back.
    void (*done)(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    // Called when no answer runs and no message waits or is being read; may be NULL.
    void (*idle)(struct client *client);
    void (*release)(struct answer *a);   // frees `data` of an answer; any thread; NULL if no answer has data
    void (*free)(struct client *client); // called when the client is closed and idle; no pointer to it is left
};

struct client {
    const struct client_ops *ops;
    const struct front *front;
    bool background;                        // its requests use what other requests leave (struct request_spec)
    struct principal *principal;            // valid until `free` returns; NULL: no API keys are used
    struct trace_context *trace;            // owned; NULL: requests are not traced. Constant once a message is read
    struct parsed_message *parsed_messages; // messages not yet submitted or refused; guarded by front->parsed_messages
    // Core's thread only:
    struct answer *answers; // list of the answers of running requests
    bool closed;            // the client is gone
};

struct answer {
    struct client *client;
    struct parsed_message *parsed; // the answer's message, until the message is submitted
    // owned until it is submitted; then the core owns it, and it is valid until client_ops.done returns
    struct request *request;
    struct trace_record *trace; // owned; NULL: the request is not traced
    struct text_stream *text;   // turns tokens into text; owned; NULL: score-only, or aborted unread
    int index;                  // index of the answer in its HTTP exchange
    void *data;                 // data of the protocol, which client_ops.release frees; NULL: none
    bool return_kept;           // the completion shows the kept tokens; gRPC only
    double reserved;            // output tokens reserved from the limits of the API key
    int min_tokens;             // stop strings end the text only after this many tokens
    int n_tokens;               // tokens of the answer so far
    int n_resumed;              // the client has this many tokens already; they are not sent
    struct bytes resumed_text;  // text of the request's resumed tokens, until the request is submitted
    size_t *resumed_ends;       // [request->resume.n] as answer_chunk.ends; owned; NULL: no tokens are resumed
    int stop;                   // index, in the request, of the stop string that ended the text; -1: none
    struct answer *prev, *next;
};

// --- the thread that reads a message. identity_admit() comes first; HTTP calls it (http_admit()) before the exchange
// has a client. If the limits of the client's key do not allow the request, the thread refuses the request and calls
// only client_refused().

// Returns DENIED if the client's key does not allow the tenant or the priority that a message names.
enum status client_check(const struct client *client, const char *tenant, int32_t priority);
// Reserves the requests of one message, linked by `next`, from the limits of the client's key. Call it last, just
// before answers_submit(). Returns KEY_LIMIT if the key may not start so many requests now, or has too few tokens left
// for prompts and max_tokens. Returns DENIED if the message is larger than a whole limit, so that a retry cannot
// succeed. *retry_us_p is the time until the message fits the limits; 0: not known.
enum status answers_reserve(struct answer *first, int64_t *retry_us_p);
// Registers a message that has arrived. `id` is the request id, or empty if the message has no id or the id is not
// known yet. No abort finds a message whose id is empty or not UTF-8.
struct parsed_message *client_message_begin(struct client *client, const char *id);
void client_not_submitted(struct parsed_message *parsed); // ends a message that was refused
// Counts and logs a message that was refused with the error in status_message(). The core counts and logs the requests
// that it refuses.
void client_refused(const struct client *client, const char *client_id, enum status status);
// Ends a message that the intake pool dropped: its request was aborted, or its client is gone.
void client_dropped(struct parsed_message *parsed, int64_t arrived_us);
// Creates an answer with an empty request, which arrived at `arrived_us`. The caller links the answers of a message.
struct answer *answer_create(struct parsed_message *parsed, int64_t arrived_us);
void answers_free(struct answer *first); // frees answers that are not submitted, linked by `next`; NULL is allowed
// Pushes tokens until a token completes a stop string. Returns true if one did. Fills in `chunk` and `ends` [n].
// *joined_p is the text of the tokens, which the caller frees; NULL if n is 1.
bool answer_push(struct answer *a, const int32_t *tokens, int n, struct answer_chunk *chunk, size_t *ends,
                 char **joined_p);
// Submits the checked requests of one message, linked by `next`, to the core's thread. `method` is for the log. If the
// message was aborted meanwhile, the core's thread ends them without a token.
void answers_submit(struct answer *first, const char *method);

// Closes a client that is gone. The protocol may not use `client` afterwards, except in client_ops. Any thread may
// call.
void client_close(struct client *client);

// --- core's thread
// Cancels each request with this id that belongs to `owner` (0: to any owner), even if its message is not read yet.
// Returns false if no request has the id.
bool client_abort(const struct front *front, struct core *c, const char *id, uint64_t owner, int64_t now_us);
// If the client has no message and no answer left, calls client_ops.idle, and client_ops.free if the client is closed.
void client_check_idle(struct client *client);
// Adds `more` bytes to *bytes_p, the bytes of an answer that is not streamed. Returns false if all such answers
// together exceed their limit and equal_share_allows() refuses this answer. The caller must then free the answer;
// status_message() has the error message (EXHAUSTED).
bool whole_answer_grow(struct whole_answers *whole, size_t *bytes_p, size_t more);
// Subtracts all bytes of the answer from the sum and sets *bytes_p to 0.
void whole_answer_free(struct whole_answers *whole, size_t *bytes_p);
// Returns the text that was held back. Call it within client_ops.done; the text is valid until that function returns.
struct answer_chunk answer_rest(struct answer *a);
