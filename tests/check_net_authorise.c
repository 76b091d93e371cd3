// SPDX-License-Identifier: Apache-2.0
// net/: a server's `authorise` decides on a call before anything of its message is read.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "tests/suite.h"

#define LARGE_BYTES        ((size_t)64 << 20)
#define REFUSED_CALL_BYTES (LARGE_BYTES / 2) // memory that refusing it may take: a few MiB, more under sanitizers

static struct rpc_server *server;
static struct rpc_channel *channel;
static atomic_int opened, messages, closed, released;

static void count_open(struct rpc_call *call)
{
    atomic_fetch_add(&opened, 1);
}

static void answer_identity(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    atomic_fetch_add(&messages, 1);
    const char *name = rpc_call_identity(call);
    rpc_call_send(call, (const uint8_t *)name, strlen(name));
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void count_close(struct rpc_call *call, bool cancelled)
{
    atomic_fetch_add(&closed, 1);
}

static const struct rpc_method methods[] = {
    {"/test.S/Name", .on_open = count_open, .on_message = answer_identity, .on_close = count_close},
    {0},
};

static void release(void *identity)
{
    free(identity);
    atomic_fetch_add(&released, 1);
}

static enum status authorise(struct rpc_call *call)
{
    ck_assert_ptr_null(rpc_call_peer_name(call)); // there is no TLS
    const char *value = rpc_call_metadata(call, "authorization");
    if (!value) return status_fail(STATUS_UNAUTHENTICATED, "no key: send authorization: Bearer KEY");
    if (strcmp(value, "Bearer alice") != 0) return status_fail(STATUS_DENIED, "the key may not call this method");
    rpc_call_set_identity(call, mem_string("alice"), release);
    return STATUS_OK;
}

static void setup(void)
{
    rpc_init();
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = methods, .authorise = authorise};
    ck_assert_msg(rpc_server_open(&options, &server) == STATUS_OK, "%s", status_message());
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(server));
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
    atomic_store(&opened, 0);
    atomic_store(&messages, 0);
    atomic_store(&closed, 0);
    atomic_store(&released, 0);
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    ck_assert_int_eq(rpc_live_objects(), 0);
    rpc_shutdown();
}

static enum status call(const char *method, struct rpc_bytes *answer_p)
{
    return rpc_unary(channel, method, (const uint8_t *)"x", 1, 20000, answer_p);
}

START_TEST(an_authorised_call_has_its_identity)
{
    ck_assert_int_eq(rpc_channel_set_token(channel, "alice"), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        struct rpc_bytes answer;
        ck_assert_msg(call("/test.S/Name", &answer) == STATUS_OK, "%s", status_message());
        ck_assert_str_eq((const char *)answer.data, "alice");
        rpc_bytes_free(&answer);
    }
    rpc_server_close(server, 0);
    server = NULL;
    ck_assert_int_eq(atomic_load(&released), 2);
}
END_TEST

START_TEST(no_handler_sees_a_refused_call)
{
    struct rpc_bytes none;
    ck_assert_int_eq(call("/test.S/Name", &none), STATUS_UNAUTHENTICATED);
    ck_assert_str_eq(status_message(), "no key: send authorization: Bearer KEY");
    ck_assert_int_eq(rpc_channel_set_token(channel, "mallory"), STATUS_OK);
    ck_assert_int_eq(call("/test.S/Name", &none), STATUS_DENIED);
    ck_assert_str_eq(status_message(), "the key may not call this method");
    rpc_server_close(server, 0);
    server = NULL;
    ck_assert_int_eq(atomic_load(&opened) + atomic_load(&messages) + atomic_load(&closed), 0);
}
END_TEST

START_TEST(health_and_unknown_methods_need_no_authorisation)
{
    struct rpc_bytes answer;
    ck_assert_msg(rpc_unary(channel, "/grpc.health.v1.Health/Check", NULL, 0, 20000, &answer) == STATUS_OK, "%s",
                  status_message());
    rpc_bytes_free(&answer);
    ck_assert_int_eq(call("/test.S/Other", &answer), STATUS_UNSUPPORTED);
}
END_TEST

START_TEST(a_token_that_is_no_header_is_refused)
{
    ck_assert_int_eq(rpc_channel_set_token(channel, "two words"), STATUS_INVALID);
    ck_assert_int_eq(rpc_channel_set_token(channel, "line\n"), STATUS_INVALID);
    ck_assert_int_eq(rpc_channel_set_token(channel, NULL), STATUS_OK);
}
END_TEST

// --- memory; the client is another process, because its memory would count

static size_t peak_bytes(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmHWM: %zu", &kib) == 1) break;
    }
    fclose(file);
    return kib << 10;
}

// The program runs itself with the port. Then it sends a large message without a token and expects to be refused.
static int send_large(const char *port)
{
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%s", port);
    uint8_t *bytes = mem_alloc(LARGE_BYTES);
    struct rpc_bytes none;
    rpc_init();
    enum status status = rpc_channel_open(target, &channel);
    if (status == STATUS_OK) status = rpc_unary(channel, "/test.S/Name", bytes, LARGE_BYTES, 60000, &none);
    rpc_channel_close(channel);
    rpc_shutdown();
    free(bytes);
    return status == STATUS_UNAUTHENTICATED ? 0 : 1;
}

START_TEST(a_large_message_of_a_refused_caller_takes_no_memory)
{
    struct rpc_bytes none; // first a call whose allocations do not count
    ck_assert_int_eq(call("/test.S/Name", &none), STATUS_UNAUTHENTICATED);
    size_t before = peak_bytes();
    char *command = mem_format("/proc/%d/exe %d", (int)getpid(), rpc_server_port(server));
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(system(command), 0);
    free(command);
    ck_assert_uint_lt(peak_bytes() - before, REFUSED_CALL_BYTES);
}
END_TEST

SUITE("net authorise")
{
    if (argc > 1) exit(send_large(argv[1]));
    NO_FORK(); // gRPC's threads do not survive a fork
    FIXTURE(setup, teardown);
    TEST(an_authorised_call_has_its_identity);
    TEST(no_handler_sees_a_refused_call);
    TEST(health_and_unknown_methods_need_no_authorisation);
    TEST(a_token_that_is_no_header_is_refused);
    TEST(a_large_message_of_a_refused_caller_takes_no_memory);
}
