// SPDX-License-Identifier: Apache-2.0
// Turns a client's message into a request of the core, and refuses a message with an error. The core decides only
// whether the request can be served. I/O threads and threads of the intake pool.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/text/text_stream.h"
#include "router/front/request/intake.h"

struct Forepack__V1__DetokenizeRequest;
struct Forepack__V1__GenerateRequest;
struct Forepack__V1__Message;
struct Forepack__V1__ScoreRequest;
struct Forepack__V1__TokenizeRequest;

// Options of a request that are not in its message.
struct wire_options {
    int default_tokens;                           // max_tokens if the message has none
    const struct chat_conversation *conversation; // the prompt; NULL: the message has the prompt
    const char *ids_field;                        // as in struct intake_prompt
    const char *max_tokens_name;                  // name in the client's API; NULL: max_tokens
    bool grammar_valid;                      // the grammar was compiled lately, or for another prompt of the message
    const struct text_stream *text_of_other; // stream of another prompt, whose stop strings are shared; NULL: none
};

// Returns true if reading the message compiles no grammar: the message has none, or its grammar was compiled lately.
// Compiling takes up to 100 ms, so other messages are read on the intake pool.
bool wire_grammar_known(const struct front *front, const struct Forepack__V1__GenerateRequest *m);

// Fills in `r`, a new request whose arrival time is set. *text_p becomes the stream that turns the tokens of the answer
// into text and finds stop strings; the caller frees it. On failure `r` may be half filled.
enum status wire_request_read(const struct front *front, const struct Forepack__V1__GenerateRequest *m,
                              const struct wire_options *options, struct request *r, struct text_stream **text_p);

// Fills in `r` as a further choice for the prompt of `first`. `index`, from 1, is added to the seed of `first`. Returns
// a stream with the stop strings of `text_of_first`; the caller frees it.
struct text_stream *wire_request_copy_choice(const struct request *first, const struct text_stream *text_of_first,
                                             int index, struct request *r);

// Fills in `r` as wire_request_read() does, for a request that ends once a speculator has scored it.
enum status wire_score_request_read(const struct front *front, const struct Forepack__V1__ScoreRequest *m,
                                    const struct wire_options *options, struct request *r);

// Encode or decode for Tokenize and Detokenize. The caller frees *tokens_p and *text_p. Neither is limited by the
// model's context.
enum status wire_tokenize(const struct front *front, const struct Forepack__V1__TokenizeRequest *m,
                          const struct chat_conversation *conversation, int32_t **tokens_p, int *n_p);
enum status wire_detokenize(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, char **text_p,
                            size_t *text_bytes_p);
// Sets `ends` [m->n_token_ids], DetokenizeResponse.ends, for the text of wire_detokenize().
void wire_token_ends(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, const char *text,
                     size_t text_bytes, uint32_t *ends);
