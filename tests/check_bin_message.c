// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner: a bin fits the largest message that a node accepts and the memory in which the node unpacks
// it, also when a prefix cache holds most of its rows.
#include <stdlib.h>
#include <string.h>

#include "engine/node.h"
#include "lib/base/mem.h"
#include "lib/messages/unpack.h"
#include "router/core/core_state.h"
#include "router/front/nodes/node_link.h"
#include "router/sched/bin_planner.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { PROMPT = 1 << 19, N = 40, MESSAGE_BYTES = 64 << 20, TOKEN_BYTES = 5 };

static void start(void)
{
    fixture_init(&f);
    f.options.max_queue_tokens = INT64_C(1) << 40;
    fixture_start(&f);
}

static struct client *put(int n_tokens, enum prefill_mode mode)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    for (int i = 0; i < n_tokens; i++)
        client->r->spec.tokens[i] = i % VOCAB;
    client->r->spec.prefill.mode = mode;
    client->r->spec.sampling.repetition_penalty = 2; // the penalty counts pruned tokens, so they are sent too
    fixture_submit(&f, client);
    return client;
}

START_TEST(a_bin_of_shared_prompts_fits_a_message)
{
    enum node_role role = _i ? NODE_WORKER : NODE_SPECULATOR;
    struct node_hello hello = fixture_hello(role, "node"), worker = fixture_hello(NODE_WORKER, "worker");
    hello.context_tokens = worker.context_tokens = 2 * PROMPT;
    hello.token_budget = 2 * PROMPT;
    hello.kv_blocks = N * (PROMPT / 16 + 64);
    hello.prefix_cache = true;
    struct fake_node *node = fixture_attach(&f, &hello);
    if (role == NODE_SPECULATOR) fixture_attach(&f, &worker);
    for (int i = 0; i < N; i++)
        put(PROMPT, _i ? PREFILL_OFF : PREFILL_ON);
    fixture_advance(&f, 0);
    ck_assert_int_ge(node->bins, 1);
    ck_assert_int_ge(node->last_bin_items, 2);
    int64_t numbers = (int64_t)node->last_bin_rows * (_i ? 2 : 1);
    ck_assert_int_le(TOKEN_BYTES * numbers, MESSAGE_BYTES);
}
END_TEST

// --- the memory of a node

// Packs and unpacks a message as a node does when it arrives.
static void pack_and_unpack(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *m)
{
    size_t size = forepack__cluster__v1__router_message__get_packed_size(m);
    ck_assert_uint_le(size, MESSAGE_BYTES);
    uint8_t *bytes = mem_alloc(size);
    forepack__cluster__v1__router_message__pack(m, bytes);
    Forepack__Cluster__V1__RouterMessage *unpacked =
        proto_unpack(&forepack__cluster__v1__router_message__descriptor, bytes, size, NODE_MESSAGE_MEMORY_MAX, NULL);
    free(bytes);
    ck_assert_msg(unpacked != NULL, "%s", status_message());
    forepack__cluster__v1__router_message__free_unpacked(unpacked, NULL);
}

// Makes a request with n ranges of one token: kept ranges for a worker group, pinned ranges for a speculator. A prompt
// may have more pinned ranges than tokens.
static struct request *make_request(enum node_role role, int n)
{
    struct request *r = request_create();
    struct token_range *ranges = mem_alloc_array((size_t)n, sizeof *ranges);
    bool scores = role == NODE_SPECULATOR;
    r->spec.n_tokens = scores ? 1 : 2 * n;
    r->spec.tokens = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *r->spec.tokens);
    for (int i = 0; i < n; i++)
        ranges[i].first = ranges[i].last = scores ? 0 : 2 * i;
    *(scores ? &r->spec.pinned : &r->kept) = ranges;
    *(scores ? &r->spec.n_pinned : &r->n_kept_ranges) = n;
    r->usage.kept_tokens = scores ? 0 : n;
    return r;
}

static int64_t counted_bytes(enum node_role role, int n)
{
    struct request *r = make_request(role, n);
    int64_t bytes = sched_request_message_bytes(&r->sched);
    request_free(r);
    return bytes;
}

// Ranges of each request, or 0: one request fills the bin. protobuf-c uses the most memory per field just above 16 *
// (2^k - 1) fields.
static const int range_counts[] = {1, 9, 1009, 65521, 0};
enum { RANGE_COUNTS = sizeof range_counts / sizeof *range_counts };

START_TEST(a_node_can_unpack_a_bin_of_single_tokens)
{
    enum node_role role = _i / RANGE_COUNTS ? NODE_WORKER : NODE_SPECULATOR;
    int64_t base = counted_bytes(role, 1), each = counted_bytes(role, 2) - base;
    int n = range_counts[_i % RANGE_COUNTS];
    if (!n) n = 1 + (int)((BIN_BYTES_MAX - base) / each);
    struct request *r = make_request(role, n);
    int n_requests = (int)(BIN_BYTES_MAX / sched_request_message_bytes(&r->sched));
    ck_assert_int_ge(n_requests, 1);
    struct request **requests = mem_alloc_array((size_t)n_requests, sizeof *requests);
    for (int i = 0; i < n_requests; i++)
        requests[i] = r;
    struct core_ops ops = {0};
    node_link_core_ops(&ops);
    const struct node_link_ops link_ops = {.send = pack_and_unpack};
    struct node_link link = {.ops = &link_ops};
    (role == NODE_WORKER ? ops.send_prefill_bin : ops.send_score_bin)(&link, 1, requests, n_requests);
    free(requests);
    request_free(r);
}
END_TEST

SUITE("bin_message")
{
    TCASE("all");
    TIMEOUT(60);
    FIXTURE(start, teardown);
    LOOP(a_bin_of_shared_prompts_fits_a_message, 0, 2);

    TCASE("memory");
    TIMEOUT(60);
    LOOP(a_node_can_unpack_a_bin_of_single_tokens, 0, 2 * RANGE_COUNTS);
}
