// SPDX-License-Identifier: Apache-2.0
// Converts a client's message to a request of the core, and refuses invalid messages. The core decides only whether the
// request can be served. I/O threads and threads of the intake pool.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/text/text_stream.h"
#include "router/front/request/answer.h"
#include "router/front/request/compression.h"
#include "router/front/request/intake.h"

struct Forepack__V1__CompressRequest;
struct Forepack__V1__DetokenizeRequest;
struct Forepack__V1__GenerateRequest;
struct Forepack__V1__Message;
struct Forepack__V1__ScoreRequest;
struct Forepack__V1__TokenizeRequest;

// Options of a request that are not in its message.
struct wire_options {
    int default_tokens;                           // max_tokens if the message has none
    const struct chat_conversation *conversation; // the prompt; NULL: the message has the prompt
    bool text_given;                              // as in struct intake_prompt
    const char *ids_field;                        // as in struct intake_prompt
    const char *max_tokens_name;                  // name in the client's API; NULL: max_tokens
    struct context_policy context;                // what happens if the context cannot hold the request
    // names the request when its client sends it again; NULL: its request id does
    const char *retry_id;
    // the grammar is known to be valid: it was compiled lately, or for another prompt of the message
    bool grammar_valid;
    // stream of another prompt of the message, to share its stop strings; NULL: none
    const struct text_stream *text_of_other;
};

// Returns true if reading the message compiles no grammar: the message has none, or its grammar was compiled lately.
// Compiling takes up to 100 ms, so messages with another grammar are read on the intake pool.
bool wire_grammar_known(const struct front *front, const struct Forepack__V1__GenerateRequest *m);

// Fills in `r`, a new request of the client whose arrival time is set. Applies the rules for the client's prefill
// options, and returns DENIED for a request that cannot follow them. *text_p is a new stream that converts the tokens
// of the answer to text and finds stop strings. The caller frees the stream. On failure, some fields of `r` may be set.
enum status wire_request_read(const struct client *client, const struct Forepack__V1__GenerateRequest *m,
                              const struct wire_options *options, struct request *r, struct text_stream **text_p);

// Fills in `r` as another choice for the prompt of `first`. The seed is the seed of `first` plus `index`, which is at
// least 1. Returns a stream with the stop strings of `text_of_first`. The caller frees the stream.
struct text_stream *wire_request_copy_choice(const struct request *first, const struct text_stream *text_of_first,
                                             int index, struct request *r);

// Fills in `r` as wire_request_read() does, for a request that ends once a speculator has scored it. No rule applies: a
// score prunes nothing.
enum status wire_score_request_read(const struct front *front, const struct Forepack__V1__ScoreRequest *m,
                                    const struct wire_options *options, struct request *r);

// Fills in `r` as wire_score_request_read() does, for a request whose score decides what is dropped of its texts. The
// rules for the client's prefill options apply: if they keep everything, the request needs no speculator. `input` is
// the prompt or the messages, of which the function takes a reference; NULL: the message has them. The caller frees
// *c_p.
enum status wire_compress_request_read(const struct client *client, const struct Forepack__V1__CompressRequest *m,
                                       json_t *input, struct request *r, struct compression **c_p);

// Encode or decode for Tokenize and Detokenize. The caller frees *tokens_p and *text_p. The model's context does not
// limit their lengths.
enum status wire_tokenize(const struct front *front, const struct Forepack__V1__TokenizeRequest *m,
                          const struct chat_conversation *conversation, int32_t **tokens_p, int *n_p);
enum status wire_detokenize(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, char **text_p,
                            size_t *text_bytes_p);
// Sets `ends` [m->n_token_ids], DetokenizeResponse.ends, for the text of wire_detokenize().
void wire_token_ends(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, const char *text,
                     size_t text_bytes, uint32_t *ends);
