// SPDX-License-Identifier: Apache-2.0
// Finds the tokens of a split answer (chat_answer.h) that are content: only their log-probabilities are wanted. Tokens
// wait here until it is known whether they are content. A token is content if a byte of its text is. The position of a
// text is the number of bytes of the answer that were pushed to its parser before it.
//
// Belongs to the core's thread, as the answer does.
#pragma once

#include "router/core/request.h"

struct content_token {
    struct token_logprob logprob;
    size_t begin, end; // positions of its text
};

// Starts as zeros.
struct content_tokens {
    struct content_token *waiting; // [n] tokens that are not decided yet; owned
    int n, capacity;
    struct token_logprob *released; // [released_capacity] result of the last content_tokens_release(); owned
    int released_capacity;
    size_t text_bytes; // text of the answer so far
};
void content_tokens_fini(struct content_tokens *tokens);

// Adds the next token and the number of bytes of text that it made final, before that text is pushed to the parser. A
// token without such text may be part of a character, and shares the text of the next token that has some.
void content_tokens_add(struct content_tokens *tokens, const struct token_logprob *logprob, size_t text_bytes);
// Adds text that was held back at the end of the answer.
void content_tokens_add_text(struct content_tokens *tokens, size_t text_bytes);
// Decides that the text from `begin` to `end` is content. Moves its tokens to `released` and returns their number. This
// also decides all earlier tokens.
int content_tokens_release(struct content_tokens *tokens, size_t begin, size_t end);
// Decides all text before `to`: tokens that are not released yet are no content.
void content_tokens_decide(struct content_tokens *tokens, size_t to);
