// SPDX-License-Identifier: Apache-2.0
// net/: the services that every server has, health and reflection.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "lib/net/symbols.h"
#include "proto/grpc_health/v1/health.pb-c.h"
#include "proto/grpc_reflection/v1/reflection.pb-c.h"
#include "tests/rpc_client.h"
#include "tests/suite.h"

static struct rpc_server *server;

static void finish(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, NULL);
}

static const struct rpc_method methods[] = {
    {.path = "/test.A/Nothing", .on_half_close = finish}, {.path = "/test.B/Nothing", .on_half_close = finish}, {0}};

static void setup(void)
{
    rpc_init();
    ck_assert_msg(rpc_server_open(&(struct rpc_server_options){.address = "127.0.0.1:0", .methods = methods},
                                  &server) == STATUS_OK,
                  "%s", status_message());
    open_channel(rpc_server_port(server));
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    ck_assert_int_eq(rpc_live_objects(), 0);
    rpc_shutdown();
}

// --- health

static enum status check_health(const char *service, int *state_p)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    uint8_t bytes[256];
    size_t size = grpc__health__v1__health_check_request__pack(&request, bytes);
    struct rpc_bytes answer;
    enum status status = rpc_unary(channel, "/grpc.health.v1.Health/Check", bytes, size, 0, &answer);
    if (status) return status;
    Grpc__Health__V1__HealthCheckResponse *response =
        grpc__health__v1__health_check_response__unpack(NULL, answer.size, answer.data);
    *state_p = (int)response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    rpc_bytes_free(&answer);
    return STATUS_OK;
}

START_TEST(health_is_per_service)
{
    int state;
    ck_assert_int_eq(check_health("", &state), STATUS_OK);
    ck_assert_int_eq(state, 2); // NOT_SERVING until set
    ck_assert_int_eq(check_health("test.A", &state), STATUS_OK);
    ck_assert_int_eq(state, 2);
    rpc_server_set_serving(server, "test.A", true);
    ck_assert_int_eq(check_health("test.A", &state), STATUS_OK);
    ck_assert_int_eq(state, 1);
    ck_assert_int_eq(check_health("test.B", &state), STATUS_OK);
    ck_assert_int_eq(state, 2);
    ck_assert_int_eq(check_health("test.X", &state), STATUS_NOT_FOUND);
    struct rpc_bytes answer;
    ck_assert_int_eq(unary("/grpc.health.v1.Health/Check", "\xFF\xFF", &answer), STATUS_INVALID);
    struct rpc_stream *stream = open_stream("/grpc.health.v1.Health/Watch", 0);
    rpc_stream_half_close(stream);
    expect_end(stream, STATUS_INVALID, "without a HealthCheckRequest");
    rpc_stream_close(stream);
}
END_TEST

START_TEST(watchers_get_each_change)
{
    struct rpc_stream *known = open_stream("/grpc.health.v1.Health/Watch", 0);
    rpc_stream_send(known, (const uint8_t *)"\x0A\x06test.A", 8);
    rpc_stream_half_close(known);
    expect_bytes(known, "\x08\x02", 2);
    struct rpc_stream *unknown = open_stream("/grpc.health.v1.Health/Watch", 0);
    rpc_stream_send(unknown, (const uint8_t *)"\x0A\x05later", 7);
    expect_bytes(unknown, "\x08\x03", 2); // SERVICE_UNKNOWN, and the call stays open
    rpc_server_set_serving(server, "test.A", true);
    expect_bytes(known, "\x08\x01", 2);
    rpc_server_set_serving(server, "test.A", true); // no change, no message
    rpc_server_set_serving(server, "later", true);
    expect_bytes(unknown, "\x08\x01", 2);
    rpc_server_set_serving(server, "test.A", false);
    expect_bytes(known, "\x08\x02", 2);
    rpc_stream_close(known);
    rpc_stream_close(unknown);
}
END_TEST

enum { WATCHES_MAX = 4096 }; // as in lib/net/health.c

START_TEST(a_watch_beyond_the_bound_ends_the_oldest)
{
    struct rpc_stream **streams = mem_alloc_array(WATCHES_MAX, sizeof *streams), *another;
    int objects = rpc_live_objects();
    for (int i = 0; i < WATCHES_MAX; i++) {
        streams[i] = open_stream("/grpc.health.v1.Health/Watch", 0);
        rpc_stream_send(streams[i], (const uint8_t *)"\x0A\x06test.A", 8);
        expect_bytes(streams[i], "\x08\x02", 2);
    }
    another = open_stream("/grpc.health.v1.Health/Watch", 0);
    rpc_stream_send(another, (const uint8_t *)"\x0A\x06test.A", 8);
    expect_bytes(another, "\x08\x02", 2);
    expect_end(streams[0], STATUS_EXHAUSTED, "too many clients watch the health");
    rpc_server_set_serving(server, "test.A", true);
    expect_bytes(another, "\x08\x01", 2);
    for (int i = 1; i < WATCHES_MAX; i++)
        expect_bytes(streams[i], "\x08\x01", 2);
    for (int i = 0; i < WATCHES_MAX; i++)
        rpc_stream_close(streams[i]);
    rpc_stream_close(another);
    free(streams);
    wait_for_objects(objects);
}
END_TEST

// --- reflection

typedef Grpc__Reflection__V1__ServerReflectionRequest reflect_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflect_response;

static void reflect_ask(struct rpc_stream *stream, int which, const char *text)
{
    reflect_request request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    request.message_request_case = which;
    request.list_services = (char *)text; // a member of a union: sets any text
    uint8_t bytes[256];
    rpc_stream_send(stream, bytes, grpc__reflection__v1__server_reflection_request__pack(&request, bytes));
}

static reflect_response *reflect(struct rpc_stream *stream, int which, const char *text)
{
    reflect_ask(stream, which, text);
    struct rpc_bytes answer;
    ck_assert_int_eq(rpc_stream_read(stream, &answer), STATUS_OK);
    reflect_response *response =
        grpc__reflection__v1__server_reflection_response__unpack(NULL, answer.size, answer.data);
    ck_assert_ptr_nonnull(response);
    ck_assert_int_eq((int)response->original_request->message_request_case, which);
    ck_assert_str_eq(response->original_request->list_services, text);
    rpc_bytes_free(&answer);
    return response;
}

static void reflect_free(reflect_response *response)
{
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
}

START_TEST(reflection_answers_both_versions)
{
    static const char *const paths[] = {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
    static const char *const services[] = {"test.A", "test.B", "grpc.health.v1.Health",
                                           "grpc.reflection.v1.ServerReflection",
                                           "grpc.reflection.v1alpha.ServerReflection"};
    for (int i = 0; i < 2; i++) {
        struct rpc_stream *stream = open_stream(paths[i], 0);
        reflect_response *response = reflect(stream, 7, "*");
        ck_assert_int_eq(response->message_response_case, 6);
        ck_assert_uint_eq(response->list_services_response->n_service, 5);
        for (int j = 0; j < 5; j++)
            ck_assert_str_eq(response->list_services_response->service[j]->name, services[j]);
        reflect_free(response);

        response = reflect(stream, 4, "forepack.v1.Inference.Generate");
        ck_assert_int_eq(response->message_response_case, 4);
        ck_assert_uint_eq(response->file_descriptor_response->n_file_descriptor_proto, 1);
        ProtobufCBinaryData file = response->file_descriptor_response->file_descriptor_proto[0];
        ck_assert_uint_gt(file.len, 27);
        ck_assert_int_eq(memcmp(file.data + 2, "forepack/v1/inference.proto", 27), 0);
        reflect_free(response);

        response = reflect(stream, 3, "forepack/cluster/v1/cluster.proto");
        ck_assert_int_eq(response->message_response_case, 4);
        reflect_free(response);
        response = reflect(stream, 4, "forepack.v1.Nothing");
        ck_assert_int_eq(response->message_response_case, 7);
        ck_assert_int_eq(response->error_response->error_code, 5);
        reflect_free(response);
        rpc_stream_half_close(stream);
        expect_end(stream, STATUS_OK, NULL);
        rpc_stream_close(stream);
    }
    struct rpc_stream *stream = open_stream(paths[0], 0);
    rpc_stream_send(stream, (const uint8_t *)"\xFF", 1);
    expect_end(stream, STATUS_INVALID, "not a valid ServerReflectionRequest");
    rpc_stream_close(stream);
}
END_TEST

enum { REFLECTIONS_MAX = 64 }; // as NET_REFLECTIONS_MAX
static const char reflection[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

START_TEST(reflection_serves_a_bounded_number_of_calls)
{
    struct rpc_stream *streams[REFLECTIONS_MAX];
    int objects = rpc_live_objects();
    for (int i = 0; i < REFLECTIONS_MAX; i++) {
        streams[i] = open_stream(reflection, 0);
        reflect_free(reflect(streams[i], 7, "*"));
    }
    struct rpc_stream *another = open_stream(reflection, 0);
    reflect_free(reflect(another, 7, "*"));
    expect_end(streams[0], STATUS_EXHAUSTED, "too many clients use reflection");
    for (int i = 1; i < REFLECTIONS_MAX; i++)
        reflect_free(reflect(streams[i], 7, "*"));
    for (int i = 0; i < REFLECTIONS_MAX; i++)
        rpc_stream_close(streams[i]);
    rpc_stream_close(another);
    wait_for_objects(objects);
}
END_TEST

START_TEST(reflection_ends_for_a_client_that_does_not_read)
{
    struct rpc_stream *stream = open_stream(reflection, 0);
    reflect_free(reflect(stream, 7, "*"));
    int objects = rpc_live_objects();
    for (int i = 0; i < 2000; i++)
        reflect_ask(stream, 3, "forepack/v1/inference.proto");
    wait_for_objects(objects - 1); // the server's call
    rpc_stream_close(stream);
}
END_TEST

START_TEST(symbols_of_every_kind_are_found)
{
    static const char *const names[] = {
        "forepack.v1.Inference",
        "forepack.v1.Inference.Generate",
        "forepack.v1.GenerateRequest",
        "forepack.v1.PrefillMode",
        "forepack.v1.PREFILL_MODE_ON",
        "forepack.v1.GenerateRequest.text",
        "forepack.v1.GenerateResponse.kind",
    };
    struct net_symbols *symbols = net_symbols_create();
    const struct net_file *file = net_symbols_file(symbols, "forepack/v1/inference.proto");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_msg(net_symbols_find(symbols, names[i]) == file, "%s", names[i]);
    ck_assert_ptr_nonnull(net_symbols_find(symbols, "grpc.health.v1.HealthCheckResponse.ServingStatus")); // nested
    ck_assert_ptr_nonnull(net_symbols_find(symbols, "grpc.health.v1.HealthCheckResponse.NOT_SERVING"));
    ck_assert_ptr_null(net_symbols_find(symbols, "forepack.v1"));
    ck_assert_ptr_null(net_symbols_find(symbols, ""));
    ck_assert_ptr_null(net_symbols_file(symbols, "inference.proto"));
    ck_assert(net_symbols_is_message(symbols, "forepack.v1.Chunk"));
    ck_assert(!net_symbols_is_message(symbols, "forepack.v1.Inference"));
    net_symbols_free(symbols);
}
END_TEST

SUITE("net builtin")
{
    TCASE("calls");
    TIMEOUT(30);
    FIXTURE(setup, teardown);
    TEST(health_is_per_service);
    TEST(watchers_get_each_change);
    TEST(a_watch_beyond_the_bound_ends_the_oldest);
    TEST(reflection_answers_both_versions);
    TEST(reflection_serves_a_bounded_number_of_calls);
    TEST(reflection_ends_for_a_client_that_does_not_read);

    TCASE("pure");
    TEST(symbols_of_every_kind_are_found);
}
