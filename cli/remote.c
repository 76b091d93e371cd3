// SPDX-License-Identifier: Apache-2.0
#include "cli/remote.h"

#include <stdlib.h>
#include <string.h>

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

enum status remote_open(const struct remote *remote, struct rpc_channel **channel_p)
{
    const struct rpc_tls tls = {remote->tls_cert, remote->tls_key, remote->tls_ca};
    if (!tls.ca && (tls.cert || tls.key))
        return status_fail(STATUS_INVALID, "--tls-ca: required with --tls-cert and --tls-key");
    TRY(rpc_channel_open_tls(remote->server, tls.ca ? &tls : NULL, channel_p));
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

enum status remote_call(const struct remote *remote, const char *method, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p)
{
    struct rpc_channel *channel;
    TRY(remote_open(remote, &channel));
    enum status status = remote_call_on(channel, remote, method, request, descriptor, answer_p);
    rpc_channel_close(channel);
    return status;
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
        if (id_p && !*id_p) *id_p = mem_string(m->request_id);
        size_t before = answer->text_bytes;
        answer_add_response(answer, m);
        if (on_text && answer->text_bytes > before) on_text(user, answer->text + before, answer->text_bytes - before);
        forepack__v1__generate_response__free_unpacked(m, NULL);
    }
    if (status == STATUS_OK && !answer->completion)
        return status_fail(STATUS_INTERNAL, "%s ended the answer without a completion", remote->server);
    return status;
}

enum status remote_generate(const struct remote *remote, int64_t timeout_ms, const struct request_spec *spec,
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
