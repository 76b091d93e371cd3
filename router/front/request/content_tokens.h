// SPDX-License-Identifier: Apache-2.0
// The tokens of an answer that is split (chat_answer.h), until it is known which of them are content: their
// log-probabilities are wanted only then. A token is content if a byte of its text is. Text has positions: bytes of the
// answer that were pushed to its parser before it.
//
// Belongs to the core's thread, as the answer does.
#pragma once

#include "router/core/request.h"

struct content_token {
    struct token_logprob logprob;
    size_t begin, end; // of its text
};

// Starts as zeros.
struct content_tokens {
    struct content_token *waiting; // [n] not decided yet; owned
    int n, capacity;
    struct token_logprob *taken; // [taken_capacity] by the last content_tokens_take(); owned
    int taken_capacity;
    size_t text_bytes; // of the answer so far
};
void content_tokens_fini(struct content_tokens *tokens);

// The next token, and the bytes of text that it made final, before they are pushed to the parser. Without such text it
// shares that of the next token that has some: it may be part of a character.
void content_tokens_add(struct content_tokens *tokens, const struct token_logprob *logprob, size_t text_bytes);
// Text that was held back at the end of the answer.
void content_tokens_add_text(struct content_tokens *tokens, size_t text_bytes);
// The text from `begin` to `end` is content: the number of its tokens, which are then in `taken`, and decided like all
// before them.
int content_tokens_take(struct content_tokens *tokens, size_t begin, size_t end);
// All text before `to` is decided.
void content_tokens_decide(struct content_tokens *tokens, size_t to);
