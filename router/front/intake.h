// SPDX-License-Identifier: Apache-2.0
// Checks and conversions of message fields that several services need. Any thread; the front is read only. Every check
// records the sentence for the client in status_message().
#pragma once

#include <limits.h>
#include <protobuf-c/protobuf-c.h>

#include "router/front/front.h"

struct Forepack__V1__Message;

// A client's message; NULL and the reason (INVALID) when it is malformed or has more fields than any honest message.
// Free it with the free_unpacked function of its type.
void *intake_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);

// EXHAUSTED when the core's thread is far behind: events that wait for it take memory too.
enum status intake_check_backlog(const struct front *front);

// NOT_FOUND unless `name` is empty or the served model's.
enum status intake_check_model(const struct front *front, const char *name);

// INVALID unless `value`, a short string such as an id, is UTF-8 of at most 256 bytes.
enum status intake_check_name(const char *field, const char *value);

// A count from the wire. Values over INT_MAX become INT_MAX, which the range checks refuse.
static inline int intake_int(uint32_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

// Encodes text with TOKENIZER_ flags; the caller frees the ids. OUT_OF_RANGE before encoding when the text is too long
// for the context whatever its tokens are: encoding it would delay the heartbeats that the I/O thread reads.
enum status intake_encode(const struct front *front, const ProtobufCBinaryData *text, unsigned flags,
                          int32_t **tokens_p, int *n_tokens_p);

// A prompt as it stands in a message: exactly one of text, token ids and chat turns. Borrowed.
struct intake_prompt {
    const ProtobufCBinaryData *text;
    const uint32_t *ids;
    size_t n_ids;
    struct Forepack__V1__Message *const *messages;
    size_t n_messages;
};

// Owned by the caller.
struct intake_tokens {
    int32_t *tokens; // [n_tokens] at least one
    int n_tokens;
    struct token_range *pinned; // [n_pinned] ranges of the chat template that must be kept
    int n_pinned;
};

// The prompt as token ids, checked against vocabulary and context.
enum status intake_tokenise(const struct front *front, const struct intake_prompt *prompt,
                            struct intake_tokens *tokens_p);
