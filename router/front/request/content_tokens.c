// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/content_tokens.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

#define NO_TEXT_YET SIZE_MAX // value of `end` until the token has text

void content_tokens_fini(struct content_tokens *tokens)
{
    free(tokens->waiting);
    free(tokens->released);
}

static void drop_first(struct content_tokens *tokens, int n)
{
    tokens->n -= n;
    if (n) memmove(tokens->waiting, tokens->waiting + n, (size_t)tokens->n * sizeof *tokens->waiting);
}

void content_tokens_add_text(struct content_tokens *tokens, size_t text_bytes)
{
    tokens->text_bytes += text_bytes;
    if (!text_bytes) return;
    for (int i = tokens->n; i-- > 0 && tokens->waiting[i].end == NO_TEXT_YET;)
        tokens->waiting[i].end = tokens->text_bytes;
}

void content_tokens_add(struct content_tokens *tokens, const struct token_logprob *logprob, size_t text_bytes)
{
    MEM_GROW(tokens->waiting, tokens->n, tokens->capacity);
    tokens->waiting[tokens->n++] = (struct content_token){*logprob, tokens->text_bytes, NO_TEXT_YET};
    content_tokens_add_text(tokens, text_bytes);
}

int content_tokens_release(struct content_tokens *tokens, size_t begin, size_t end)
{
    int n = 0, used = 0;
    for (; used < tokens->n && tokens->waiting[used].begin < end; used++) {
        const struct content_token *token = &tokens->waiting[used];
        if (token->end == NO_TEXT_YET) break;
        if (token->end <= begin) continue;
        MEM_GROW(tokens->released, n, tokens->released_capacity);
        tokens->released[n++] = token->logprob;
    }
    drop_first(tokens, used);
    return n;
}

void content_tokens_decide(struct content_tokens *tokens, size_t to)
{
    int n = 0;
    while (n < tokens->n && tokens->waiting[n].end <= to)
        n++;
    drop_first(tokens, n);
}
