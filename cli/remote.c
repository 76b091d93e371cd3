// SPDX-License-Identifier: Apache-2.0
#include "cli/remote.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/resume.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/messages/unpack.h"

// Reads the key from the file, without surrounding white space. The caller frees *key_p. Error messages never contain
// the key.
static enum status api_key_read(const char *path, char **key_p)
{
    char *text;
    size_t size;
    enum status status = read_whole_file(path, &text, &size);
    if (status != STATUS_OK) return status_context(status, "--api-key-file");
    size_t start = strspn(text, " \t\r\n"), length = strcspn(text + start, " \t\r\n");
    if (!length || text[start + length + strspn(text + start + length, " \t\r\n")])
        status = status_fail(STATUS_INVALID, "--api-key-file %s: must contain one API key and nothing else", path);
    else
        *key_p = mem_format("%.*s", (int)length, text + start);
    free(text);
    return status;
}

static enum status send_key(struct rpc_channel *channel, const char *path)
{
    char *key = NULL;
    TRY(api_key_read(path, &key));
    enum status status = rpc_channel_set_token(channel, key);
    free(key);
    return status == STATUS_OK ? status : status_context(status, "--api-key-file %s", path);
}

int remote_servers(const struct remote *remote)
{
    int n = 1;
    for (const char *at = remote->server; (at = strchr(at, ',')); at++)
        n++;
    return n;
}

// Returns the address in use. The caller frees it.
static char *remote_address(const struct remote *remote)
{
    const char *at = remote->server;
    for (int i = remote->turn % remote_servers(remote); i > 0; i--)
        at = strchr(at, ',') + 1;
    return mem_format("%.*s", (int)strcspn(at, ","), at);
}

bool remote_is_lost(enum status status)
{
    return status == STATUS_UNAVAILABLE || status == STATUS_CANCELLED;
}

// Each server of the list is tried once without a pause. The pauses then double.
void remote_pause(const struct remote *remote, int losses)
{
    enum { FIRST_MS = 250, MAX_MS = 4000 };
    int round = losses / remote_servers(remote), ms = FIRST_MS;
    if (losses % remote_servers(remote) != 0) return;
    while (--round > 0 && ms < MAX_MS)
        ms *= 2;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static enum status channel_open(const struct remote *remote, const struct rpc_tls *tls, struct rpc_channel **channel_p)
{
    const char *list = remote->server;
    if (*list == ',' || strstr(list, ",,") || (*list && list[strlen(list) - 1] == ','))
        return status_fail(STATUS_INVALID, "--server %s: an address is missing before or after a comma", list);
    char *address = remote_address(remote);
    enum status status = rpc_channel_open_tls(address, tls, channel_p);
    free(address);
    return status;
}

enum status remote_open(const struct remote *remote, struct rpc_channel **channel_p)
{
    const struct rpc_tls tls = {remote->tls_cert, remote->tls_key, remote->tls_ca};
    if (!tls.ca && (tls.cert || tls.key))
        return status_fail(STATUS_INVALID, "--tls-ca: required with --tls-cert and --tls-key");
    TRY(channel_open(remote, tls.ca ? &tls : NULL, channel_p));
    enum status status = remote->api_key_file ? send_key(*channel_p, remote->api_key_file) : STATUS_OK;
    if (status != STATUS_OK) rpc_channel_close(*channel_p);
    return status;
}

enum status remote_call_on(struct rpc_channel *channel, const struct remote *remote, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *descriptor,
                           ProtobufCMessage **answer_p)
{
    size_t size = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = mem_alloc(size);
    protobuf_c_message_pack(request, bytes);
    struct rpc_bytes answer;
    int64_t timeout_ms = remote->call_timeout_ms ? remote->call_timeout_ms : REMOTE_CALL_TIMEOUT_MS;
    enum status status = rpc_unary(channel, method, bytes, size, timeout_ms, &answer);
    free(bytes);
    if (status == STATUS_OK) {
        *answer_p = proto_unpack(descriptor, answer.data, answer.size, PROTO_ANSWER_MEMORY_MAX, NULL);
        rpc_bytes_free(&answer);
        if (!*answer_p)
            status = status_fail(STATUS_INTERNAL, "%s sent a message that cannot be unpacked", remote->server);
    }
    return status;
}

static enum status call_once(const struct remote *remote, const char *method, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p)
{
    struct rpc_channel *channel;
    TRY(remote_open(remote, &channel));
    enum status status = remote_call_on(channel, remote, method, request, descriptor, answer_p);
    rpc_channel_close(channel);
    return status;
}

enum status remote_call(const struct remote *remote, const char *method, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p)
{
    struct remote at = *remote;
    int left = remote_servers(remote);
    for (;; at.turn++) {
        enum status status = call_once(&at, method, request, descriptor, answer_p);
        if (status != STATUS_UNAVAILABLE || --left <= 0) return status;
    }
}

// Adds the messages of the stream to `answer` until the stream ends.
static enum status remote_read_answer(const struct remote *remote, struct rpc_stream *stream, text_fn on_text,
                                      void *user, struct answer *answer, char **id_p)
{
    struct rpc_bytes bytes;
    enum status status;
    while ((status = rpc_stream_read(stream, &bytes)) == STATUS_OK && bytes.data) {
        Forepack__V1__GenerateResponse *m = proto_unpack(&forepack__v1__generate_response__descriptor, bytes.data,
                                                         bytes.size, PROTO_ANSWER_MEMORY_MAX, NULL);
        rpc_bytes_free(&bytes);
        if (!m) return status_fail(STATUS_INTERNAL, "%s sent a message that cannot be unpacked", remote->server);
        if (!*id_p) *id_p = mem_string(m->request_id);
        size_t before = answer->text_bytes;
        answer_add_response(answer, m);
        if (on_text && answer->text_bytes > before) on_text(user, answer->text + before, answer->text_bytes - before);
        forepack__v1__generate_response__free_unpacked(m, NULL);
    }
    if (status == STATUS_OK && !answer->completion)
        return status_fail(STATUS_UNAVAILABLE, "%s ended the answer without a completion", remote->server);
    return status;
}

static enum status generate_once(const struct remote *remote, int64_t timeout_ms, const struct request_spec *spec,
                                 text_fn on_text, void *user, struct answer *answer, char **id_p)
{
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    TRY(remote_open(remote, &channel));
    enum status status = rpc_stream_open(channel, "/forepack.v1.Inference/Generate", timeout_ms, false, &stream);
    if (status == STATUS_OK) {
        struct rpc_bytes bytes = request_spec_pack(spec);
        rpc_stream_give(stream, &bytes);
        rpc_stream_half_close(stream);
        status = remote_read_answer(remote, stream, on_text, user, answer, id_p);
        rpc_stream_close(stream);
    }
    rpc_channel_close(channel);
    return status;
}

// Returns the time left until the deadline, at least 1 ms; 0: no deadline.
static int64_t left_ms(int64_t timeout_ms, int64_t started_us)
{
    int64_t left = timeout_ms - (clock_now_us() - started_us) / 1000;
    return !timeout_ms ? 0 : left > 1 ? left : 1;
}

// Losses in a row, since the last token.
struct losses {
    int n;
    int64_t since_us;
};

// Returns true if the request may be sent again: it only generates text, and its lost call ends at the router.
// An answer that has begun (`id` is known) is continued for REMOTE_RESUME_S without a token. A request without any
// answer is tried once at each server, because the addresses may be wrong.
static bool may_try_again(const struct remote *remote, const struct losses *losses, const char *id)
{
    if (!id) return losses->n < remote_servers(remote);
    return clock_now_us() - losses->since_us < (int64_t)REMOTE_RESUME_S * 1000000;
}

enum status remote_generate(struct remote *remote, int64_t timeout_ms, struct request_spec *spec, text_fn on_text,
                            void *user, struct answer *answer, char **id_p)
{
    int64_t started_us = clock_now_us();
    char *id = NULL, *given = spec->id;
    for (struct losses losses = {0};;) {
        size_t before = json_array_size(answer->token_ids);
        enum status status = generate_once(remote, left_ms(timeout_ms, started_us), spec, on_text, user, answer, &id);
        if (!losses.n || json_array_size(answer->token_ids) > before) losses = (struct losses){0, clock_now_us()};
        losses.n++;
        if (!remote_is_lost(status) || !may_try_again(remote, &losses, id)) {
            spec->id = given;
            resume_clear(spec);
            if (id_p)
                *id_p = id;
            else
                free(id);
            return status;
        }
        remote->turn++;
        if (id) remote_pause(remote, losses.n);
        if (id && !given) spec->id = id; // the seed of the answer belongs to its id
        resume_prepare(spec, answer);
    }
}
