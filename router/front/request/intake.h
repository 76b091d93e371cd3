// SPDX-License-Identifier: Apache-2.0
// Checks the requests of clients and tokenises their prompts, for any protocol. Any thread; the front is only read. A
// check that fails leaves an error message for the client in status_message().
#pragma once

#include <limits.h>

#include "router/front/front.h"

// Returns EXHAUSTED if too many events wait for the core's thread, because waiting events take memory.
enum status intake_check_backlog(const struct front *front);

// Checks that new prompts are accepted. Returns UNAVAILABLE while the router shuts down, or EXHAUSTED from
// intake_check_backlog().
enum status intake_check_open(const struct front *front);

// Returns `name` if it is a served model name, the first served name if `name` is empty, else NULL.
const char *intake_model_name(const struct front *front, const char *name);
// Returns NOT_FOUND unless `name` is empty or a served model name.
enum status intake_check_model(const struct front *front, const char *name);

// Checks a short string, such as an id. Returns INVALID unless `value` is UTF-8 of at most 256 bytes.
enum status intake_check_name(const char *field, const char *value);

// Converts a count from the wire. Values over INT_MAX become INT_MAX, and the range checks refuse INT_MAX.
static inline int intake_int(uint32_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

// Encodes text with TOKENIZER_ flags. The caller frees *tokens_p. Stops with OUT_OF_RANGE after `max_ids` tokens,
// without encoding the rest.
enum status intake_encode(const struct front *front, const char *text, size_t size_bytes, unsigned flags, int max_ids,
                          int32_t **tokens_p, int *n_tokens_p);

// A prompt of a client: exactly one of text, token ids and chat turns. Borrowed.
struct intake_prompt {
    const char *text;
    size_t text_bytes;
    bool text_given; // the prompt is the text, even if it is empty
    const uint32_t *ids;
    size_t n_ids;
    const char *ids_field;                        // name of the field of `ids`; NULL: token_ids
    enum context_words words;                     // for the refusal of a prompt over the context
    const struct chat_conversation *conversation; // NULL: none
    int max_ids;                                  // limit of tokens, for text and chat turns; 0: the context
};

// Returns INVALID if a conversation has more than INTAKE_MESSAGES_MAX messages.
enum { INTAKE_MESSAGES_MAX = 4096 };
enum status intake_check_messages(size_t n);

// A prompt as tokens. Owned by the caller.
struct intake_tokens {
    int32_t *tokens; // [n_tokens], at least one
    int n_tokens;
    struct token_range *pinned; // [n_pinned] ranges of the chat template that must be kept
    int n_pinned;
    struct prompt_turn *turns; // [n_turns] finished turns of the conversation, if it asks for them
    int n_turns;
};
void intake_tokens_fini(struct intake_tokens *tokens);

// Converts the prompt to token ids, and checks them against the vocabulary and the context.
enum status intake_tokenise(const struct front *front, const struct intake_prompt *prompt,
                            struct intake_tokens *tokens_p);

// Returns the largest possible size in bytes of a message whose prompt has at most `max_ids` tokens, or 0 for no limit.
// Larger messages are refused unread.
size_t intake_message_limit(const struct front *front, int max_ids);
// Returns OUT_OF_RANGE with an error message for a message over this limit.
enum status intake_refuse_size(const struct front *front, size_t message_bytes);
