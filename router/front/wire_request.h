// SPDX-License-Identifier: Apache-2.0
// From a client's message to a request of the core. Everything that can be wrong with a request is found here; the core
// decides only whether it can be served. I/O threads.
#pragma once

#include "model/text_stream.h"
#include "router/front/intake.h"

struct Forepack__V1__GenerateRequest;
struct Forepack__V1__ScoreRequest;

// Fills in `r`, which was just created and whose arrival time is set. `text_p` receives the stream that turns its
// tokens into text and finds its stop strings; the caller frees it. On failure `r` may be half filled.
enum status wire_request_read(const struct front *front, const struct Forepack__V1__GenerateRequest *m,
                              struct request *r, struct text_stream **text_p);

// The same for a request that ends once a speculator has scored it.
enum status wire_score_request_read(const struct front *front, const struct Forepack__V1__ScoreRequest *m,
                                    struct request *r);
