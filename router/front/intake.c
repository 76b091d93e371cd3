// SPDX-License-Identifier: Apache-2.0
// Checks and conversions that several handlers need. Runs on I/O threads; tokenising happens here, so that the core's
// thread never sees text.
#include "router/front/intake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "proto/fields.h"
#include "proto/forepack/v1/inference.pb-c.h"

enum { NAME_BYTES_MAX = 256, MESSAGES_MAX = 4096, FIELDS_MAX = 1 << 17 };

#define RETRY_AFTER_MS "1000"

// What may wait for clients that read slower than their answers come: for one of them, and for all together before
// those who let more than a small part wait are ended too.
enum { UNREAD_MAX_MB = 16, ALL_UNREAD_MAX_MB = 256, SMALL_UNREAD_MB = 1 };

void *front_unpack(const ProtobufCMessageDescriptor *kind, const uint8_t *bytes, size_t size)
{
    if (!proto_fields_at_most(kind, bytes, size, FIELDS_MAX)) {
        status_fail(STATUS_INVALID, "the message has over %d fields: send less at once", FIELDS_MAX);
        return NULL;
    }
    void *message = protobuf_c_message_unpack(kind, NULL, size, bytes);
    if (!message) status_fail(STATUS_INVALID, "the message is no %s", kind->short_name);
    return message;
}

size_t front_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    uint8_t small[4096];
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = size <= sizeof small ? small : mem_alloc(size);
    protobuf_c_message_pack(message, bytes);
    size_t queued = rpc_call_send(call, bytes, size);
    if (bytes != small) free(bytes);
    return queued;
}

static bool too_much_unread(struct rpc_call *call)
{
    return rpc_call_server_queued(call) > (size_t)ALL_UNREAD_MAX_MB << 20;
}

void front_stream(struct rpc_call *call, const ProtobufCMessage *message)
{
    size_t queued = front_send(call, message);
    if (queued > (size_t)UNREAD_MAX_MB << 20) {
        status_fail(STATUS_EXHAUSTED, "the client reads too slowly: over %d MiB are unread", UNREAD_MAX_MB);
    } else if (queued > (size_t)SMALL_UNREAD_MB << 20 && too_much_unread(call)) {
        status_fail(STATUS_EXHAUSTED,
                    "the client reads too slowly: over %d MiB are unread, and over %d MiB of all clients together",
                    SMALL_UNREAD_MB, ALL_UNREAD_MAX_MB);
    } else {
        return;
    }
    rpc_call_abandon(call, STATUS_EXHAUSTED, status_message());
}

void front_answer(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (too_much_unread(call)) {
        status_fail(STATUS_EXHAUSTED, "clients have left over %d MiB of answers unread: try again later",
                    ALL_UNREAD_MAX_MB);
        front_refuse(call, STATUS_EXHAUSTED);
        return;
    }
    front_send(call, message);
    rpc_call_finish(call, STATUS_OK, "");
}

void front_finish(struct rpc_call *call, enum status status, const char *message)
{
    if (status == STATUS_EXHAUSTED) rpc_call_add_trailer(call, "retry-after-ms", RETRY_AFTER_MS);
    rpc_call_finish(call, status, message);
}

void front_refuse(struct rpc_call *call, enum status status)
{
    front_finish(call, status, status_message());
}

enum status front_check_backlog(const struct front *front)
{
    enum { BACKLOG_MIN = 1000 }; // nodes post too
    int backlog = loop_backlog(front->loop);
    if (backlog <= front->max_queue_requests + BACKLOG_MIN) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "the router is %d events behind: try again later", backlog);
}

enum status front_check_name(const char *field, const char *value)
{
    size_t length = strlen(value);
    if (length > NAME_BYTES_MAX) {
        return status_fail(STATUS_INVALID, "%s: %zu bytes long, at most %d are allowed", field, length, NAME_BYTES_MAX);
    }
    if (!utf8_valid(value, length, NULL)) return status_fail(STATUS_INVALID, "%s: must be UTF-8", field);
    return STATUS_OK;
}

enum status front_check_model(const struct front *front, const char *name)
{
    enum status status = front_check_name("model", name);
    if (status != STATUS_OK) return status;
    if (!*name || strcmp(name, front->model_name) == 0) return STATUS_OK;
    return status_fail(STATUS_NOT_FOUND, "model '%s' is not served here: leave it out or ask for '%s'", name,
                       front->model_name);
}

static enum status too_long(const struct front *front, const char *amount)
{
    return status_fail(STATUS_OUT_OF_RANGE, "the prompt has %s, the context holds %d tokens: shorten it", amount,
                       front->config.max_context);
}

enum status front_encode(const struct front *front, const ProtobufCBinaryData *text, unsigned flags, int32_t **tokens_p,
                         int *n_tokens_p)
{
    size_t longest = tokenizer_longest_piece_bytes(front->tokenizer);
    if (text->len / longest > (size_t)front->config.max_context) {
        char amount[64];
        snprintf(amount, sizeof amount, "%zu bytes, over %zu tokens", text->len, text->len / longest);
        return too_long(front, amount);
    }
    size_t bad;
    if (!utf8_valid((const char *)text->data, text->len, &bad)) {
        return status_fail(STATUS_INVALID, "text: not UTF-8 at byte %zu", bad);
    }
    return tokenizer_encode(front->tokenizer, (const char *)text->data, text->len, flags, tokens_p, n_tokens_p);
}

static enum status tokenise_messages(const struct front *front, Forepack__V1__Message *const *messages, size_t n,
                                     int32_t **tokens_p, int *n_tokens_p, struct token_range **pinned_p,
                                     int *n_pinned_p)
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
    enum status status = chat_render(front->chat, front->tokenizer, turns, (int)n, &prompt);
    free(turns);
    if (status != STATUS_OK) return status;
    *tokens_p = mem_copy(prompt.ids, (size_t)prompt.n_ids * sizeof *prompt.ids);
    *n_tokens_p = prompt.n_ids;
    if (pinned_p) {
        *pinned_p = mem_copy(prompt.pinned, (size_t)prompt.n_pinned * sizeof *prompt.pinned);
        *n_pinned_p = prompt.n_pinned;
    }
    chat_prompt_fini(&prompt);
    return STATUS_OK;
}

static enum status check_ids(const struct front *front, const uint32_t *ids, size_t n)
{
    if (n > (size_t)front->config.max_context) {
        char amount[32];
        snprintf(amount, sizeof amount, "%zu tokens", n);
        return too_long(front, amount);
    }
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)front->config.vocab_size) {
            return status_fail(STATUS_INVALID, "token_ids: %u at index %zu is outside the vocabulary of %d tokens",
                               ids[i], i, front->config.vocab_size);
        }
    }
    return STATUS_OK;
}

enum status front_tokenise(const struct front *front, const ProtobufCBinaryData *text, const uint32_t *ids,
                           size_t n_ids, Forepack__V1__Message *const *messages, size_t n_messages, int32_t **tokens_p,
                           int *n_tokens_p, struct token_range **pinned_p, int *n_pinned_p)
{
    int given = (text->len > 0) + (n_ids > 0) + (n_messages > 0);
    if (given == 0) return status_fail(STATUS_INVALID, "the prompt is empty: give one of text, token_ids, messages");
    if (given > 1) return status_fail(STATUS_INVALID, "give only one of text, token_ids, messages");
    enum status status;
    if (text->len) {
        status = front_encode(front, text, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, tokens_p, n_tokens_p);
    } else if (n_messages) {
        status = tokenise_messages(front, messages, n_messages, tokens_p, n_tokens_p, pinned_p, n_pinned_p);
    } else {
        status = check_ids(front, ids, n_ids);
        if (status != STATUS_OK) return status;
        *tokens_p = mem_copy(ids, n_ids * sizeof *ids);
        *n_tokens_p = (int)n_ids;
    }
    if (status != STATUS_OK) return status;
    if (*n_tokens_p > front->config.max_context) {
        char amount[32];
        snprintf(amount, sizeof amount, "%d tokens", *n_tokens_p);
        status = too_long(front, amount);
    } else if (*n_tokens_p == 0) {
        status = status_fail(STATUS_INVALID, "the prompt has no tokens: give at least one character");
    }
    if (status != STATUS_OK) {
        free(*tokens_p);
        *tokens_p = NULL;
    }
    return status;
}
