// SPDX-License-Identifier: Apache-2.0
// router/front: while the core's thread is behind, or clients leave much unread, calls are refused before they add to
// the load.
#include <sched.h>
#include <stdatomic.h>

#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/grpc/wire_response.h"
#include "tests/front_fixture.h"
#include "tests/suite.h"

enum { TIMEOUT_MS = 20000, BACKLOG = 1001, HOG_BYTES = 40 << 20, HOGS_MAX = 16, ALL_UNREAD = 256 << 20 };
enum { BLOCK_BYTES = 1 << 20, SCORE_TOKENS = 8 << 20 }; // an answer of 40 MiB

// Posted when the core's thread is blocked, and when it may continue.
static sem_t entered, gate;
static atomic_int hogs;
static atomic_int exceeded; // calls of hog() that found too much unread; C-core accepts some of it afterwards

static void event_block(struct core *c, void *arg, int64_t now_us)
{
    sem_post(&entered);
    sem_wait(&gate);
}

static void event_nothing(struct core *c, void *arg, int64_t now_us)
{
}

static void event_last(struct core *c, void *arg, int64_t now_us)
{
    sem_post(&entered);
}

// --- methods of the test

static void hog(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    uint8_t *block = mem_alloc(BLOCK_BYTES);
    while (rpc_call_send(call, block, BLOCK_BYTES) < HOG_BYTES) // more than C-core accepts
        continue;
    free(block);
    if (rpc_call_share(call, ALL_UNREAD) != SIZE_MAX) atomic_fetch_add(&exceeded, 1);
    atomic_fetch_add(&hogs, 1);
}

static void score(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct request *r = request_create();
    r->spec.n_tokens = SCORE_TOKENS;
    r->spec.tokens = mem_alloc_array(SCORE_TOKENS, sizeof *r->spec.tokens);
    r->importance = mem_alloc_array(SCORE_TOKENS, sizeof *r->importance);
    wire_score_send(call, r);
    request_free(r);
}

// --- the router

static void setup(void)
{
    static char *names[] = {"demo"};
    static struct rpc_method methods[32];
    int n = 0;
    log_setup("test", LOG_ERROR);
    front = (struct front){.model_names = names, .n_model_names = 1};
    front_start((struct core_options){.max_queue_requests = 1, .max_queue_tokens = 1});
    sem_init(&entered, 0, 0);
    sem_init(&gate, 0, 0);
    atomic_store(&hogs, 0);
    atomic_store(&exceeded, 0);
    methods[n++] = front_abort;
    methods[n++] = front_model_info;
    methods[n++] = front_cluster_info;
    for (const struct rpc_method *m = front_kserve_info; m->path; m++)
        methods[n++] = *m;
    methods[n++] = (struct rpc_method){.path = "/test/Hog", .on_message = hog};
    methods[n++] = (struct rpc_method){.path = "/test/Score", .on_message = score};
    methods[n].path = NULL;
    front_serve_grpc(methods, 0);
}

static void expect(const char *method, const struct rpc_bytes *message, enum status wanted, const char *part)
{
    struct rpc_bytes answer = {0};
    const uint8_t none = 0;
    enum status status =
        rpc_unary(channel, method, message ? message->data : &none, message ? message->size : 0, TIMEOUT_MS, &answer);
    ck_assert_msg(status == wanted, "%s: %s: %s", method, status_name(status), status_message());
    if (part) ck_assert_msg(strstr(status_message(), part) != NULL, "%s: %s", method, status_message());
    rpc_bytes_free(&answer);
}

// --- tests

START_TEST(calls_are_refused_while_the_core_is_behind)
{
    loop_post(front.loop, event_block, NULL);
    sem_wait(&entered);
    for (int i = 0; i < BACKLOG; i++)
        loop_post(front.loop, i < BACKLOG - 1 ? event_nothing : event_last, NULL);
    static const char part[] = "the router is 1001 events behind";
    expect(front_abort.path, NULL, STATUS_EXHAUSTED, part);
    expect(front_model_info.path, NULL, STATUS_EXHAUSTED, part);
    expect(front_cluster_info.path, NULL, STATUS_EXHAUSTED, part);
    for (const struct rpc_method *m = front_kserve_info; m->path; m++)
        expect(m->path, NULL, STATUS_EXHAUSTED, part);
    sem_post(&gate);
    sem_wait(&entered);
    expect(front_cluster_info.path, NULL, STATUS_OK, NULL);
}
END_TEST

// Makes an Abort of n ids.
static struct rpc_bytes abort_make(size_t n)
{
    enum { IDS = 10001 };
    char *ids[IDS], id[] = "x";
    Forepack__V1__AbortRequest m = FOREPACK__V1__ABORT_REQUEST__INIT;
    ck_assert(n <= IDS);
    for (size_t i = 0; i < n; i++)
        ids[i] = id;
    m.request_ids = ids;
    m.n_request_ids = n;
    struct rpc_bytes bytes = {.size = forepack__v1__abort_request__get_packed_size(&m)};
    bytes.data = mem_alloc(bytes.size);
    forepack__v1__abort_request__pack(&m, bytes.data);
    return bytes;
}

START_TEST(an_abort_has_at_most_10000_ids)
{
    struct rpc_bytes most = abort_make(10000), more = abort_make(10001);
    expect(front_abort.path, &most, STATUS_OK, NULL);
    expect(front_abort.path, &more, STATUS_INVALID, "10001 given, at most 10000 are allowed");
    free(most.data);
    free(more.data);
}
END_TEST

START_TEST(aborts_that_wait_are_bounded_by_their_ids)
{
    enum { DEADLINE_MS = 100, MOST = 100 };
    struct rpc_bytes large = abort_make(10000), small = abort_make(1), answer = {0};
    loop_post(front.loop, event_block, NULL);
    sem_wait(&entered);
    int waiting = 0;
    while (rpc_unary(channel, front_abort.path, large.data, large.size, DEADLINE_MS, &answer) != STATUS_EXHAUSTED)
        ck_assert_int_lt(++waiting, MOST);
    ck_assert_msg(strstr(status_message(), "too many requests are being aborted") != NULL, "%s", status_message());
    loop_post(front.loop, event_last, NULL);
    sem_post(&gate);
    sem_wait(&entered);
    expect(front_abort.path, &small, STATUS_OK, NULL);
    loop_post(front.loop, event_last, NULL);
    sem_wait(&entered);
    ck_assert_uint_eq(atomic_load(&front.aborts_waiting), 0);
    free(large.data);
    free(small.data);
}
END_TEST

START_TEST(a_score_keeps_to_what_clients_may_leave_unread)
{
    static struct rpc_stream *streams[HOGS_MAX];
    int n = 0;
    expect("/test/Score", NULL, STATUS_OK, NULL);
    for (; atomic_load(&exceeded) < 3; n++) {
        ck_assert_int_lt(n, HOGS_MAX);
        ck_assert_int_eq(rpc_stream_open(channel, "/test/Hog", 0, true, &streams[n]), STATUS_OK);
        rpc_stream_send(streams[n], (const uint8_t *)"", 0);
        while (atomic_load(&hogs) == n)
            sched_yield();
    }
    expect("/test/Score", NULL, STATUS_EXHAUSTED, "clients have left over 256 MiB of answers unread");
    while (n)
        rpc_stream_close(streams[--n]);
}
END_TEST

SUITE("overload")
{
    TIMEOUT(120);
    FIXTURE(setup, front_stop);
    TEST(calls_are_refused_while_the_core_is_behind);
    TEST(an_abort_has_at_most_10000_ids);
    TEST(aborts_that_wait_are_bounded_by_their_ids);
    TEST(a_score_keeps_to_what_clients_may_leave_unread);
}
