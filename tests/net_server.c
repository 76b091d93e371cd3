// SPDX-License-Identifier: Apache-2.0
// A small server for check_net_python.py. Prints "port N", then reads commands from stdin. "serving SERVICE" and
// "stopped SERVICE" set the health of a service. "call HOST:PORT" calls Tokenize of another server and prints its
// status, the size of the answer and the message. The end of input closes the server.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "proto/forepack/v1/inference.pb-c.h"

// Answers with the bytes of the text as token ids, so that the client can compare them.
static void tokenize(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    Forepack__V1__TokenizeRequest *request = forepack__v1__tokenize_request__unpack(NULL, size, bytes);
    if (!request) {
        rpc_call_finish(call, STATUS_INVALID, "the message is not a valid TokenizeRequest");
        return;
    }
    Forepack__V1__TokenizeResponse response = FOREPACK__V1__TOKENIZE_RESPONSE__INIT;
    response.n_token_ids = request->text.len;
    response.token_ids = mem_alloc_array(request->text.len + 1, sizeof *response.token_ids);
    for (size_t i = 0; i < request->text.len; i++)
        response.token_ids[i] = request->text.data[i];
    size_t packed_size = forepack__v1__tokenize_response__get_packed_size(&response);
    uint8_t *packed = mem_alloc(packed_size + 1);
    forepack__v1__tokenize_response__pack(&response, packed);
    rpc_call_send(call, packed, packed_size);
    rpc_call_finish(call, STATUS_OK, NULL);
    free(packed);
    free(response.token_ids);
    forepack__v1__tokenize_request__free_unpacked(request, NULL);
}

// Opens GenerateMany. It echoes messages to clients with the right token and refuses other clients with a trailer.
static void generate_open(struct rpc_call *call)
{
    const char *token = rpc_call_metadata(call, "authorization");
    if (token && strcmp(token, "Bearer secret") == 0) return;
    rpc_call_add_trailer(call, "retry-after-ms", "250");
    rpc_call_finish(call, STATUS_UNAUTHENTICATED, "caf\xC3\xA9: 100% token");
}

static void generate_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, bytes, size);
}

static void generate_end(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, NULL);
}

static const struct rpc_method methods[] = {
    {.path = "/forepack.v1.Inference/Tokenize", .on_message = tokenize},
    {.path = "/forepack.v1.Inference/GenerateMany",
     .on_open = generate_open,
     .on_message = generate_message,
     .on_half_close = generate_end},
    {.path = "/forepack.v1.Inference/Detokenize"}, // never answers
    {0},
};

static void call_tokenize(const char *target)
{
    struct rpc_channel *channel;
    struct rpc_bytes answer = {0};
    enum status status = rpc_channel_open(target, &channel);
    if (status == STATUS_OK) {
        status = rpc_unary(channel, "/forepack.v1.Inference/Tokenize", NULL, 0, 600000, &answer);
        rpc_channel_close(channel);
    }
    printf("%s %zu %s\n", status_name(status), answer.size, status ? status_message() : "");
    fflush(stdout);
    rpc_bytes_free(&answer);
}

int main(void)
{
    rpc_init();
    struct rpc_server *server;
    if (rpc_server_open(&(struct rpc_server_options){.address = "127.0.0.1:0", .methods = methods}, &server)) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    printf("port %d\n", rpc_server_port(server));
    fflush(stdout);
    char line[256], service[200], target[200];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "serving %199s", service) == 1) rpc_server_set_serving(server, service, true);
        if (sscanf(line, "stopped %199s", service) == 1) rpc_server_set_serving(server, service, false);
        if (sscanf(line, "call %199s", target) == 1) call_tokenize(target);
    }
    rpc_server_close(server, 10000);
    rpc_shutdown();
    return rpc_live_objects() == 0 ? 0 : 3;
}
