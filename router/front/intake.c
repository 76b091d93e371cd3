// SPDX-License-Identifier: Apache-2.0
#include "router/front/intake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "proto/fields.h"
#include "proto/forepack/v1/inference.pb-c.h"

enum { NAME_BYTES_MAX = 256, MESSAGES_MAX = 4096, FIELDS_MAX = 1 << 17 };

void *intake_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    if (!proto_fields_at_most(type, bytes, size, FIELDS_MAX)) {
        status_fail(STATUS_INVALID, "the message has more than %d fields: send fewer per message", FIELDS_MAX);
        return NULL;
    }
    void *message = protobuf_c_message_unpack(type, NULL, size, bytes);
    if (!message) status_fail(STATUS_INVALID, "the message is not a valid %s", type->short_name);
    return message;
}

enum status intake_check_backlog(const struct front *front)
{
    enum { BACKLOG_MIN = 1000 }; // room for the messages of nodes
    int backlog = loop_backlog(front->loop);
    if (backlog <= front->max_queue_requests + BACKLOG_MIN) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "the router is %d events behind: try again later", backlog);
}

enum status intake_check_name(const char *field, const char *value)
{
    size_t length = strlen(value);
    if (length > NAME_BYTES_MAX) {
        return status_fail(STATUS_INVALID, "%s: %zu bytes long, at most %d are allowed", field, length, NAME_BYTES_MAX);
    }
    if (!utf8_valid(value, length, NULL)) return status_fail(STATUS_INVALID, "%s: must be UTF-8", field);
    return STATUS_OK;
}

enum status intake_check_model(const struct front *front, const char *name)
{
    TRY(intake_check_name("model", name));
    if (!*name || strcmp(name, front->model_name) == 0) return STATUS_OK;
    return status_fail(STATUS_NOT_FOUND, "model '%s' is not served here: leave it out or ask for '%s'", name,
                       front->model_name);
}

// --- prompts

static enum status prompt_too_long(const struct front *front, const char *amount)
{
    return status_fail(STATUS_OUT_OF_RANGE, "the prompt has %s, the context holds %d tokens: shorten it", amount,
                       front->config.max_context);
}

static enum status prompt_check_length(const struct front *front, size_t n_tokens)
{
    char amount[32];
    if (n_tokens <= (size_t)front->config.max_context) return STATUS_OK;
    snprintf(amount, sizeof amount, "%zu tokens", n_tokens);
    return prompt_too_long(front, amount);
}

enum status intake_encode(const struct front *front, const ProtobufCBinaryData *text, unsigned flags,
                          int32_t **tokens_p, int *n_tokens_p)
{
    size_t longest = tokenizer_longest_piece_bytes(front->tokenizer);
    if (text->len / longest > (size_t)front->config.max_context) {
        char amount[64];
        snprintf(amount, sizeof amount, "%zu bytes, over %zu tokens", text->len, text->len / longest);
        return prompt_too_long(front, amount);
    }
    size_t bad;
    if (!utf8_valid((const char *)text->data, text->len, &bad)) {
        return status_fail(STATUS_INVALID, "text: not UTF-8 at byte %zu", bad);
    }
    return tokenizer_encode(front->tokenizer, (const char *)text->data, text->len, flags, tokens_p, n_tokens_p);
}

static enum status prompt_from_messages(const struct front *front, Forepack__V1__Message *const *messages, size_t n,
                                        struct intake_tokens *tokens_p)
{
    if (!front->chat) return status_fail(STATUS_UNSUPPORTED, "messages: %s", front->chat_problem);
    if (n > MESSAGES_MAX)
        return status_fail(STATUS_INVALID, "messages: %zu given, at most %d are allowed", n, MESSAGES_MAX);
    struct chat_message *turns = mem_alloc_array(n, sizeof *turns);
    for (size_t i = 0; i < n; i++) {
        turns[i] =
            (struct chat_message){messages[i]->role, (const char *)messages[i]->content.data, messages[i]->content.len};
    }
    struct chat_prompt prompt;
    enum status status = chat_render(front->chat, front->tokenizer, turns, (int)n, front->config.max_context,
                                     front->pinned_turn_tokens, &prompt);
    free(turns);
    if (status != STATUS_OK) return status;
    *tokens_p = (struct intake_tokens){
        .tokens = mem_copy(prompt.ids, (size_t)prompt.n_ids * sizeof *prompt.ids),
        .n_tokens = prompt.n_ids,
        .pinned = mem_copy(prompt.pinned, (size_t)prompt.n_pinned * sizeof *prompt.pinned),
        .n_pinned = prompt.n_pinned,
    };
    chat_prompt_fini(&prompt);
    return STATUS_OK;
}

static enum status prompt_from_ids(const struct front *front, const uint32_t *ids, size_t n,
                                   struct intake_tokens *tokens_p)
{
    TRY(prompt_check_length(front, n));
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)front->config.vocab_size) {
            return status_fail(STATUS_INVALID, "token_ids: %u at index %zu is outside the vocabulary of %d tokens",
                               ids[i], i, front->config.vocab_size);
        }
    }
    *tokens_p = (struct intake_tokens){.tokens = mem_copy(ids, n * sizeof *ids), .n_tokens = (int)n};
    return STATUS_OK;
}

static enum status prompt_from_text(const struct front *front, const ProtobufCBinaryData *text,
                                    struct intake_tokens *tokens_p)
{
    *tokens_p = (struct intake_tokens){0};
    return intake_encode(front, text, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &tokens_p->tokens,
                         &tokens_p->n_tokens);
}

enum status intake_tokenise(const struct front *front, const struct intake_prompt *prompt,
                            struct intake_tokens *tokens_p)
{
    int given = (prompt->text->len > 0) + (prompt->n_ids > 0) + (prompt->n_messages > 0);
    if (given == 0) return status_fail(STATUS_INVALID, "the prompt is empty: give one of text, token_ids, messages");
    if (given > 1) return status_fail(STATUS_INVALID, "give only one of text, token_ids, messages");
    struct intake_tokens tokens;
    if (prompt->text->len) {
        TRY(prompt_from_text(front, prompt->text, &tokens));
    } else if (prompt->n_messages) {
        TRY(prompt_from_messages(front, prompt->messages, prompt->n_messages, &tokens));
    } else {
        TRY(prompt_from_ids(front, prompt->ids, prompt->n_ids, &tokens));
    }
    enum status status = prompt_check_length(front, (size_t)tokens.n_tokens);
    if (tokens.n_tokens == 0) {
        status = status_fail(STATUS_INVALID, "the prompt has no tokens: give at least one character");
    }
    if (status == STATUS_OK) {
        *tokens_p = tokens;
    } else {
        free(tokens.tokens);
        free(tokens.pinned);
    }
    return status;
}
