// SPDX-License-Identifier: Apache-2.0
// Finds the tokens of a split answer (chat_answer.h) that are content, for APIs that report only the log-probabilities
// of the content. Tokens wait here until it is known whether they are content. A token is content if at least one byte
// of its text is content. A position is a number of bytes from the start of the answer's text.
//
// Belongs to the core's thread, as the answer does.
#pragma once

#include "router/core/request.h"

struct content_token {
    struct token_logprob logprob;
    size_t begin, end; // positions of the token's text; `end` is exclusive
};

// Starts as zeros.
struct content_tokens {
    struct content_token *waiting; // [n] tokens that may or may not be content; owned
    int n, capacity;
    struct token_logprob *released; // [released_capacity] result of the last content_tokens_release(); owned
    int released_capacity;
    size_t text_bytes; // bytes of the answer's text so far
};
void content_tokens_fini(struct content_tokens *tokens);

// Adds the next token, which made `text_bytes` bytes of text final. Call it before this text is pushed to the parser. A
// token with 0 bytes may be part of a character: it shares the text of the next token that has text.
void content_tokens_add(struct content_tokens *tokens, const struct token_logprob *logprob, size_t text_bytes);
// Adds text that comes without a new token: text that was held back until the end of the answer.
void content_tokens_add_text(struct content_tokens *tokens, size_t text_bytes);
// Tells that the text from `begin` to `end` is content. Moves its tokens to `released` and returns their number.
// Earlier waiting tokens are not content and are dropped.
int content_tokens_release(struct content_tokens *tokens, size_t begin, size_t end);
// Tells that the text before `to` has no further content. Drops the waiting tokens that end at `to` or earlier.
void content_tokens_decide(struct content_tokens *tokens, size_t to);
