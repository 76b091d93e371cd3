// SPDX-License-Identifier: Apache-2.0
// Implements grpc.reflection.v1 and v1alpha, with which tools such as grpcurl list services and messages. The two
// versions differ in their package only, so both use the messages of v1.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/messages/unpack.h"
#include "lib/net/server.h"
#include "lib/net/symbols.h"
#include "proto/grpc_reflection/v1/reflection.pb-c.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest request;
typedef Grpc__Reflection__V1__ServerReflectionResponse response;
typedef Grpc__Reflection__V1__ServiceResponse service;

#define ASKED(name)  GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define ANSWER(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

// Limit of unread bytes of a call: several times the size of all files together.
enum { UNREAD_BYTES = 256 << 10 };

// A response and the messages it points to while it is packed.
struct answer {
    response head;
    Grpc__Reflection__V1__FileDescriptorResponse files;
    ProtobufCBinaryData file;
    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ErrorResponse error;
};

static void answer_error(struct answer *answer, enum status status, const char *message)
{
    grpc__reflection__v1__error_response__init(&answer->error);
    answer->error.error_code = rpc_code(status);
    answer->error.error_message = (char *)message;
    answer->head.message_response_case = ANSWER(ERROR_RESPONSE);
    answer->head.error_response = &answer->error;
}

static void answer_file(struct answer *answer, const struct net_file *file, const char *missing)
{
    if (!file) {
        answer_error(answer, STATUS_NOT_FOUND, missing);
        return;
    }
    answer->file = (ProtobufCBinaryData){.len = file->size, .data = (uint8_t *)file->bytes};
    grpc__reflection__v1__file_descriptor_response__init(&answer->files);
    answer->files.n_file_descriptor_proto = 1;
    answer->files.file_descriptor_proto = &answer->file;
    answer->head.message_response_case = ANSWER(FILE_DESCRIPTOR_RESPONSE);
    answer->head.file_descriptor_response = &answer->files;
}

static void answer_extensions(struct answer *answer, const struct net_symbols *symbols, char *type)
{
    if (!net_symbols_is_message(symbols, type)) {
        answer_error(answer, STATUS_NOT_FOUND, "no such message");
        return;
    }
    grpc__reflection__v1__extension_number_response__init(&answer->extensions); // our messages have no extensions
    answer->extensions.base_type_name = type;
    answer->head.message_response_case = ANSWER(ALL_EXTENSION_NUMBERS_RESPONSE);
    answer->head.all_extension_numbers_response = &answer->extensions;
}

// Adds each service of a table once; the methods of a service are next to each other.
static void list_add(struct answer *answer, size_t *capacity, const struct rpc_method *methods)
{
    size_t last = 0;
    for (const struct rpc_method *method = methods; method && method->path; method++) {
        size_t length = net_path_service(method->path);
        bool again = method > methods && last == length && memcmp(method[-1].path, method->path, length + 1) == 0;
        last = length;
        if (!length || again) continue;
        service *row = mem_alloc(sizeof *row);
        grpc__reflection__v1__service_response__init(row);
        row->name = mem_format("%.*s", (int)length, method->path + 1);
        MEM_GROW(answer->list.service, answer->list.n_service, *capacity);
        answer->list.service[answer->list.n_service++] = row;
    }
}

static void answer_list(struct answer *answer, const struct rpc_server *server)
{
    size_t capacity = 0;
    grpc__reflection__v1__list_service_response__init(&answer->list);
    list_add(answer, &capacity, server->methods);
    list_add(answer, &capacity, net_health_methods);
    list_add(answer, &capacity, net_reflection_methods);
    answer->head.message_response_case = ANSWER(LIST_SERVICES_RESPONSE);
    answer->head.list_services_response = &answer->list;
}

// Removes the call from the list of reflection calls. The caller holds the server's mutex.
static void reflections_remove(struct rpc_server *server, const struct rpc_call *call)
{
    int n = 0;
    for (int i = 0; i < server->n_reflections; i++) {
        if (server->reflections[i] != call) server->reflections[n++] = server->reflections[i];
    }
    server->n_reflections = n;
}

// Adds the call to the list. At the limit it ends the oldest call, so that idle clients do not keep other clients out.
static void reflection_on_open(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    pthread_mutex_lock(&server->mutex);
    if (server->n_reflections == NET_REFLECTIONS_MAX) {
        struct rpc_call *oldest = server->reflections[0];
        rpc_call_abandon(oldest, STATUS_EXHAUSTED, "too many clients use reflection: try again later");
        reflections_remove(server, oldest);
    }
    server->reflections[server->n_reflections++] = call;
    pthread_mutex_unlock(&server->mutex);
}

static void reflection_on_close(struct rpc_call *call, bool cancelled)
{
    pthread_mutex_lock(&call->server->mutex);
    reflections_remove(call->server, call);
    pthread_mutex_unlock(&call->server->mutex);
}

static void reflection_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct net_symbols *symbols = call->server->symbols;
    request *asked = proto_unpack(&grpc__reflection__v1__server_reflection_request__descriptor, bytes, size,
                                  NET_BUILTIN_MEMORY_BYTES, NULL);
    if (!asked) {
        rpc_call_finish(call, STATUS_INVALID, status_message());
        return;
    }
    struct answer answer = {0};
    grpc__reflection__v1__server_reflection_response__init(&answer.head);
    answer.head.valid_host = asked->host;
    answer.head.original_request = asked;
    switch (asked->message_request_case) {
    case ASKED(FILE_BY_FILENAME):
        answer_file(&answer, net_symbols_file(symbols, asked->file_by_filename), "no such file");
        break;
    case ASKED(FILE_CONTAINING_SYMBOL):
        answer_file(&answer, net_symbols_find(symbols, asked->file_containing_symbol), "no such symbol");
        break;
    case ASKED(FILE_CONTAINING_EXTENSION): answer_file(&answer, NULL, "no such extension"); break;
    case ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE):
        answer_extensions(&answer, symbols, asked->all_extension_numbers_of_type);
        break;
    case ASKED(LIST_SERVICES): answer_list(&answer, call->server); break;
    default: answer_error(&answer, STATUS_INVALID, "the request has no message_request"); break;
    }
    size_t packed_size = grpc__reflection__v1__server_reflection_response__get_packed_size(&answer.head);
    uint8_t *packed = mem_alloc(packed_size + 1);
    grpc__reflection__v1__server_reflection_response__pack(&answer.head, packed);
    if (rpc_call_send(call, packed, packed_size) > UNREAD_BYTES)
        rpc_call_abandon(call, STATUS_EXHAUSTED, "too many answers wait to be read");
    free(packed);
    for (size_t i = 0; i < answer.list.n_service; i++) {
        free(answer.list.service[i]->name);
        free(answer.list.service[i]);
    }
    free(answer.list.service);
    grpc__reflection__v1__server_reflection_request__free_unpacked(asked, NULL);
}

static void reflection_on_half_close(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, NULL);
}

const struct rpc_method net_reflection_methods[] = {
    {.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
     .on_open = reflection_on_open,
     .on_message = reflection_on_message,
     .max_message_bytes = NET_BUILTIN_MESSAGE_BYTES,
     .on_half_close = reflection_on_half_close,
     .on_close = reflection_on_close},
    {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
     .on_open = reflection_on_open,
     .on_message = reflection_on_message,
     .max_message_bytes = NET_BUILTIN_MESSAGE_BYTES,
     .on_half_close = reflection_on_half_close,
     .on_close = reflection_on_close},
    {0},
};
