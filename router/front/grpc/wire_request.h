// SPDX-License-Identifier: Apache-2.0
// Turns a client's message into a request of the core, and finds everything that can be wrong with it. The core decides
// only whether the request can be served. I/O threads and the intake pool's.
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
    bool grammar_valid;                           // known, or compiled for another prompt of the message
    const struct text_stream *text_of_other;      // stream of another prompt, to share its stop strings; NULL: none
};

// Returns true if reading the message compiles no grammar: it has none, or one that was compiled lately. Compiling
// takes up to 100 ms, so a message with another grammar is read on the intake pool.
bool wire_grammar_known(const struct front *front, const struct Forepack__V1__GenerateRequest *m);

// Fills in `r`, which was just created and whose arrival time is set. `text_p` receives the stream that turns its
// tokens into text and finds its stop strings; the caller frees it. On failure `r` may be half filled.
enum status wire_request_read(const struct front *front, const struct Forepack__V1__GenerateRequest *m,
                              const struct wire_options *options, struct request *r, struct text_stream **text_p);

// Fills in `r` as another choice, number `index` from 1, for the prompt of `first`: its seed is larger by `index`. The
// stream, which the caller frees, shares the stop strings of `text_of_first`.
struct text_stream *wire_request_copy_choice(const struct request *first, const struct text_stream *text_of_first,
                                             int index, struct request *r);

// Fills in `r` as wire_request_read() does, for a request that ends once a speculator has scored it.
enum status wire_score_request_read(const struct front *front, const struct Forepack__V1__ScoreRequest *m,
                                    const struct wire_options *options, struct request *r);

// Create the answers of Tokenize and Detokenize, which the caller frees. The context does not bound them.
enum status wire_tokenize(const struct front *front, const struct Forepack__V1__TokenizeRequest *m,
                          const struct chat_conversation *conversation, int32_t **tokens_p, int *n_p);
enum status wire_detokenize(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, char **text_p,
                            size_t *text_bytes_p);
// Sets DetokenizeResponse.ends [m->n_token_ids] for that text.
void wire_token_ends(const struct front *front, const struct Forepack__V1__DetokenizeRequest *m, const char *text,
                     size_t text_bytes, uint32_t *ends);
