// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/intake.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"

enum { NAME_BYTES_MAX = 256 };

enum status intake_check_open(const struct front *front)
{
    if (atomic_load(&front->draining))
        return status_fail(STATUS_UNAVAILABLE, "the router is shutting down and takes no new requests");
    return intake_check_backlog(front);
}

enum status intake_check_backlog(const struct front *front)
{
    enum { BACKLOG_MIN = 1000 }; // room for the messages of nodes
    int backlog = loop_backlog(front->loop);
    if (backlog <= atomic_load_explicit(&front->max_queue_requests, memory_order_relaxed) + BACKLOG_MIN)
        return STATUS_OK;
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

const char *intake_model_name(const struct front *front, const char *name)
{
    if (!*name) return front->model_names[0];
    for (int i = 0; i < front->n_model_names; i++)
        if (strcmp(name, front->model_names[i]) == 0) return front->model_names[i];
    return NULL;
}

enum status intake_check_model(const struct front *front, const char *name)
{
    TRY(intake_check_name("model", name));
    if (intake_model_name(front, name)) return STATUS_OK;
    return status_fail(STATUS_NOT_FOUND, "model '%s' is not served here: leave it out or ask for '%s'", name,
                       front->model_names[0]);
}

// --- prompts

static enum status prompt_too_long(const struct front *front, enum context_words words, int n_tokens, bool counted)
{
    const struct model_config *c = &front->config;
    return context_refuse(words, n_tokens, counted, c->max_context, model_config_context_note(c));
}

size_t intake_message_limit(const struct front *front, int max_ids)
{
    enum { OTHER_FIELDS_BYTES = 2 << 20, ID_BYTES = 5 };
    size_t longest = tokenizer_longest_piece_bytes(front->tokenizer);
    if (longest > SIZE_MAX / INT_MAX / 2) return 0;
    return (size_t)max_ids * (longest > ID_BYTES ? longest : ID_BYTES) + OTHER_FIELDS_BYTES;
}

enum status intake_refuse_size(const struct front *front, size_t message_bytes)
{
    const struct model_config *c = &front->config;
    return status_fail(
        STATUS_OUT_OF_RANGE,
        "This model's maximum context length is %d tokens%s. However, the message has %zu bytes, more than "
        "any prompt of this length: shorten it",
        c->max_context, model_config_context_note(c), message_bytes);
}

enum status intake_encode(const struct front *front, const char *text, size_t size_bytes, unsigned flags, int max_ids,
                          int32_t **tokens_p, int *n_tokens_p)
{
    return tokenizer_encode_untrusted(front->tokenizer, text, size_bytes, flags, NULL, 0, max_ids, tokens_p, NULL,
                                      n_tokens_p);
}

enum status intake_check_messages(size_t n)
{
    if (n <= INTAKE_MESSAGES_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "messages: %zu given, at most %d are allowed", n, INTAKE_MESSAGES_MAX);
}

static enum status prompt_from_messages(const struct front *front, const struct chat_conversation *conversation,
                                        int max_ids, struct intake_tokens *tokens_p)
{
    if (!front->chat) return status_fail(STATUS_UNSUPPORTED, "messages: %s", front->chat_problem);
    TRY(intake_check_messages(json_array_size(conversation->messages)));
    struct chat_prompt prompt;
    TRY(chat_render(front->chat, front->tokenizer, conversation, max_ids, front->pinned_turn_tokens, &prompt));
    *tokens_p =
        (struct intake_tokens){prompt.ids, prompt.n_ids, prompt.pinned, prompt.n_pinned, prompt.turns, prompt.n_turns};
    free(prompt.text);
    return STATUS_OK;
}

static enum status prompt_from_ids(const struct front *front, const struct intake_prompt *prompt,
                                   struct intake_tokens *tokens_p)
{
    const uint32_t *ids = prompt->ids;
    size_t n = prompt->n_ids;
    if (n > (size_t)front->config.max_context)
        return prompt_too_long(front, prompt->words, n > INT_MAX ? INT_MAX : (int)n, n <= INT_MAX);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)front->config.vocab_size) {
            return status_fail(STATUS_INVALID, "%s: %u at index %zu is outside the vocabulary of %d tokens",
                               prompt->ids_field ? prompt->ids_field : "token_ids", ids[i], i,
                               front->config.vocab_size);
        }
    }
    *tokens_p = (struct intake_tokens){.tokens = mem_copy(ids, n * sizeof *ids), .n_tokens = (int)n};
    return STATUS_OK;
}

static enum status prompt_read(const struct front *front, const struct intake_prompt *prompt,
                               struct intake_tokens *tokens_p)
{
    int max_ids = prompt->max_ids ? prompt->max_ids : front->config.max_context;
    if (prompt->n_ids) return prompt_from_ids(front, prompt, tokens_p);
    if (prompt->conversation) return prompt_from_messages(front, prompt->conversation, max_ids, tokens_p);
    return intake_encode(front, prompt->text, prompt->text_bytes, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                         max_ids, &tokens_p->tokens, &tokens_p->n_tokens);
}

void intake_tokens_fini(struct intake_tokens *tokens)
{
    free(tokens->tokens);
    free(tokens->pinned);
    prompt_turns_free(tokens->turns, tokens->n_turns);
}

// Refuses a prompt over the context. The error message names the number of tokens, which clients use to shorten the
// conversation. Tokens beyond four contexts are not counted, to bound the work.
static enum status refuse_long_prompt(const struct front *front, const struct intake_prompt *prompt)
{
    enum { COUNTED_CONTEXTS = 4 };
    int context = front->config.max_context,
        most = context < INT_MAX / COUNTED_CONTEXTS ? context * COUNTED_CONTEXTS : INT_MAX;
    struct chat_conversation conversation = {0};
    struct intake_prompt counted = *prompt;
    struct intake_tokens tokens = {0};
    counted.max_ids = most;
    if (prompt->conversation) {
        conversation = *prompt->conversation;
        conversation.wants_turns = false;
        counted.conversation = &conversation;
    }
    enum status status = prompt_read(front, &counted, &tokens);
    intake_tokens_fini(&tokens);
    return prompt_too_long(front, prompt->words, status == STATUS_OK ? tokens.n_tokens : most, status == STATUS_OK);
}

enum status intake_tokenise(const struct front *front, const struct intake_prompt *prompt,
                            struct intake_tokens *tokens_p)
{
    int given = (prompt->text_bytes > 0 || prompt->text_given) + (prompt->n_ids > 0) + (prompt->conversation != NULL);
    if (given == 0) return status_fail(STATUS_INVALID, "the prompt is empty: give one of text, token_ids, messages");
    if (given > 1) return status_fail(STATUS_INVALID, "give only one of text, token_ids, messages");
    struct intake_tokens tokens = {0};
    enum status status = prompt_read(front, prompt, &tokens);
    if (status == STATUS_OUT_OF_RANGE && prompt->max_ids)
        return status_fail(STATUS_OUT_OF_RANGE, "the prompt has over %d tokens: no more are counted", prompt->max_ids);
    if (status == STATUS_OUT_OF_RANGE && !prompt->n_ids) return refuse_long_prompt(front, prompt);
    TRY(status);
    if (tokens.n_tokens == 0) {
        intake_tokens_fini(&tokens);
        return status_fail(STATUS_INVALID, "%s: has no tokens: give at least one character",
                           prompt->text_given ? "prompt" : "the prompt");
    }
    *tokens_p = tokens;
    return STATUS_OK;
}
