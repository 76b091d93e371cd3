// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_sections.h"

// Calls s->logprobs with the log-probabilities of the content that s->part has just received.
static void content_logprobs_add(const struct http_sections *s, size_t text_bytes)
{
    struct chat_answer *chat = s->choice->chat;
    size_t begin = output_parser_used(chat->parser);
    int n = content_tokens_release(&chat->tokens, begin, begin + text_bytes);
    const struct answer_chunk tokens = {.logprobs = chat->tokens.released, .n = n};
    if (n) s->logprobs(s, &tokens);
}

static void part_add(void *user, enum output_kind kind, const char *text, size_t n)
{
    const struct http_sections *s = user;
    struct chat_call *call = kind == OUTPUT_CALL        ? chat_answer_add_call(s->choice->chat)
                             : kind == OUTPUT_ARGUMENTS ? chat_answer_last_call(s->choice->chat)
                                                        : NULL;
    if (!call && (kind == OUTPUT_CALL || kind == OUTPUT_ARGUMENTS)) return;
    s->part(s, kind, call, text, n);
    if (kind == OUTPUT_CONTENT) content_logprobs_add(s, n);
}

bool http_sections_split_logprobs(const struct http_generation *g, const struct answer_chunk *chunk)
{
    return chunk->logprobs && g->api->content_logprobs;
}

// If only the content has log-probabilities, pushes the text token by token, to find out which tokens are content.
void http_sections_push(const struct http_sections *s, const struct answer_chunk *chunk)
{
    struct chat_answer *chat = s->choice->chat;
    size_t begin = 0;
    for (int i = 0; i < chunk->n && http_sections_split_logprobs(s->g, chunk); i++) {
        size_t size = chunk->ends[i] - begin;
        content_tokens_add(&chat->tokens, &chunk->logprobs[i], size);
        output_parser_push(chat->parser, chunk->text + begin, size, part_add, (void *)s);
        content_tokens_decide(&chat->tokens, output_parser_used(chat->parser));
        begin = chunk->ends[i];
    }
    content_tokens_add_text(&chat->tokens, chunk->text_bytes - begin);
    output_parser_push(chat->parser, chunk->text + begin, chunk->text_bytes - begin, part_add, (void *)s);
}

void http_sections_finish(const struct http_sections *s)
{
    bool cut = s->choice->reason == FINISH_REASON_LENGTH || s->choice->stop >= 0;
    output_parser_finish(s->choice->chat->parser, cut, part_add, (void *)s);
}
