// SPDX-License-Identifier: Apache-2.0
// Reads the message of a generation: parses its body, tokenises its prompts, and submits or refuses its requests. Any
// thread.
#pragma once

#include "router/front/http/http_generation.h"

// Reads the message of a generation. It is an http_read_fn, and its `user` is the struct parsed_message.
void http_generation_read(const struct http_message *message);

// Refuses the message with the error message of status_message(). `first` is the first answer that was created for the
// message, or NULL; all its answers are freed. `retry_us` is the time after which a retry may succeed; 0: not known.
void http_generation_refuse(struct parsed_message *parsed, struct answer *first, enum status status, int64_t retry_us,
                            int64_t arrived_us);
