// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_count.h"

#include <stdlib.h>

#include "router/front/grpc/wire_request.h"
#include "router/front/http/http_service.h"
#include "router/front/http/json_writer.h"

static enum status tokens_count(const struct front *front, const struct http_count_api *api, const json_t *body,
                                struct http_input *in, int *n_p)
{
    Forepack__V1__TokenizeRequest m = FOREPACK__V1__TOKENIZE_REQUEST__INIT;
    int32_t *tokens;
    TRY(api->read(body, in));
    m.model = in->fields.message.model;
    TRY(wire_tokenize(front, &m, in->prompts->conversation, &tokens, n_p));
    free(tokens);
    return STATUS_OK;
}

static void count_send(struct http_exchange *x, const struct http_count_api *api, int n)
{
    struct bytes out = {0};
    JSON_ADD(&out, "{");
    json_add(&out, api->object);
    JSON_ADD(&out, "\"input_tokens\":");
    json_add_integer(&out, n);
    JSON_ADD(&out, "}");
    http_answer(x, &out);
    bytes_free(&out);
}

static void count_message(const struct http_message *message)
{
    if (message->dropped) return;
    const struct http_service *service = http_context(message->x);
    const struct http_count_api *api = message->user;
    struct http_input in = {.system_turns = service->front->system_turns};
    json_t *body = NULL;
    int n;
    enum status status = http_message_parse(message, &body);
    if (status == STATUS_OK) status = tokens_count(service->front, api, body, &in, &n);
    if (status == STATUS_OK) {
        count_send(message->x, api, n);
    } else {
        http_refuse(message->x, status);
    }
    http_input_fini(&in);
    json_decref(body);
}

void http_count_start(struct http_exchange *x, const struct http_count_api *api)
{
    const struct http_service *service = http_context(x);
    if (!http_admit_call(x)) return;
    struct http_call *call = http_user(x);
    enum status status = http_message_read(service->front, x, &call->waiting, count_message, (void *)api);
    if (status != STATUS_OK) http_refuse(x, status);
}
