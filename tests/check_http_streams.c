// SPDX-License-Identifier: Apache-2.0
// Streams of the HTTP API through a router in the test's process: HTTP over sockets, the core on its thread, and a node
// whose passes the test controls. Idle streams are pinged. Clients that do not read or go away are disconnected, and
// their requests are cancelled at the node before it computes another pass for them. Metrics of many nodes stay within
// the bound of unread answers.
#include "lib/base/equal_share.h"
#include "router/core/core_state.h"
#include "tests/front_fixture.h"
#include "tests/http_client.h"
#include "tests/suite.h"

enum { ANSWER_TOKEN = 5, CONTEXT = 1 << 20, STEP_TOKENS = 1000, PASSES_MAX = 1000, NODES = 200 };

static int64_t max_queue_tokens = CONTEXT;

// --- the node

static struct {
    struct node_link link;
    atomic_int bins, cancels, finished;
    atomic_ullong request, cancelled; // of the last bin, of the last cancel
    atomic_int computing;             // tokens of the pass that the core has not handled yet
    int passes;                       // used by the test's thread only
} node;

static void node_receive(struct node_link *link, const router_message *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        atomic_store(&node.request, m->prefill_bin->sequences[0]->request);
        atomic_fetch_add(&node.bins, 1);
    } else if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL) {
        atomic_store(&node.cancelled, m->cancel->requests[0]);
        atomic_fetch_add(&node.cancels, 1);
    }
}

static void count_finish(struct node_link *link, enum status status, const char *reason)
{
    atomic_fetch_add(&node.finished, 1);
}

static const struct node_link_ops node_ops = {node_receive, count_finish, node_peer};

static void attach(struct node_link *link, int number, int64_t now_us)
{
    char id[16];
    snprintf(id, sizeof id, "node-%d", number);
    node_attach(link, &node_ops, make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, id), now_us);
}

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    attach(&node.link, 1, now_us);
}

static void event_attach_many(struct core *c, void *arg, int64_t now_us)
{
    static struct node_link links[NODES];
    for (int i = 0; i < NODES; i++)
        attach(&links[i], i + 2, now_us);
}

static void event_step(struct core *c, void *arg, int64_t now_us)
{
    int n = atomic_load(&node.computing);
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT, *results = &result;
    uint32_t tokens[STEP_TOKENS];
    for (int i = 0; i < n; i++)
        tokens[i] = ANSWER_TOKEN;
    result.request = atomic_load(&node.request);
    result.token_ids = tokens;
    result.n_token_ids = (size_t)n;
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = &results;
    step.n_results = 1;
    step.rows = 1;
    step.pairs = 1;
    step.step_us = 1;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    node_link_handle(&node.link, c, &message, now_us);
    atomic_store(&node.computing, 0);
}

// Runs one pass with n tokens of the request. Returns when the core has them.
static void node_pass(int n)
{
    node.passes++;
    atomic_store(&node.computing, n);
    loop_post(front.loop, event_step, NULL);
    AWAIT(atomic_load(&node.computing) == 0);
}

// --- the router

static void open_router(struct http_service_options options)
{
    front_open_demo(CONTEXT);
    front.heartbeat_ms = 1000;
    front_start((struct core_options){.max_queue_requests = 100, .max_queue_tokens = max_queue_tokens});
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 1, .max_bytes = 4 << 20, .max_jobs = 10});
    front_serve_http(options);
    loop_post(front.loop, event_attach, NULL);
}

static int open_post(const char *path, const char *body)
{
    char *request =
        mem_format("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body), body);
    int fd = client_connect(http_service_port(service));
    client_send(fd, request);
    free(request);
    return fd;
}

// Connects a client that asks for a completion.
static int open_completion(const char *body)
{
    return open_post("/v1/completions", body);
}

// Connects a client and returns when its stream is on the node.
static int ask_for_stream(void)
{
    int before = atomic_load(&node.bins),
        fd = open_completion("{\"prompt\":\"hello\",\"max_tokens\":1000000,\"stream\":true,\"return_token_ids\":true}");
    AWAIT(atomic_load(&node.bins) == before + 1);
    return fd;
}

static void expect_text(int fd, const char *part)
{
    struct client_text text = client_receive_until(fd, part);
    free(text.bytes);
}

START_TEST(an_idle_stream_is_pinged)
{
    open_router((struct http_service_options){.ping_ms = 30});
    int fd = ask_for_stream();
    expect_text(fd, ": ping\n\n"); // before the first token
    node_pass(1);
    expect_text(fd, "\"token_ids\":[5]");
    expect_text(fd, ": ping\n\n");
    close(fd);
}
END_TEST

// Passes go on until the node is told to cancel.
START_TEST(a_stream_that_leaves_too_much_unread_is_cut_off)
{
    open_router((struct http_service_options){.max_unread_bytes = 100000});
    int fd = ask_for_stream();
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)), 0);
    while (atomic_load(&node.cancels) == 0) {
        ck_assert_int_lt(node.passes, PASSES_MAX);
        node_pass(STEP_TOKENS);
    }
    ck_assert_uint_eq(atomic_load(&node.cancelled), atomic_load(&node.request));
    close(fd);
}
END_TEST

START_TEST(a_stream_that_is_not_read_for_a_while_is_cut_off)
{
    open_router((struct http_service_options){.stall_ms = 100});
    int fd = ask_for_stream();
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)), 0);
    for (int pass = 0; pass < 100; pass++)
        node_pass(STEP_TOKENS); // more than the sockets hold
    AWAIT(atomic_load(&node.cancels) == 1);
    close(fd);
}
END_TEST

// The node is told while its pass runs: the next pass has the KV blocks.
START_TEST(metrics_keep_to_the_bound_of_all_unread_answers)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    open_router((struct http_service_options){.max_all_unread_bytes = 1 << 20});
    char *text = client_ask_raw(http_service_port(service), request);
    ck_assert_msg(strncmp(text, "HTTP/1.1 200 ", 13) == 0, "%.200s", text);
    free(text);
    loop_post(front.loop, event_attach_many, NULL);
    text = client_ask_raw(http_service_port(service), request); // its copy is made after the nodes have attached
    ck_assert_msg(strncmp(text, "HTTP/1.1 503 ", 13) == 0, "%zu bytes: %.200s", strlen(text), text);
    ck_assert_ptr_nonnull(strstr(text, "unread"));
    free(text);
}
END_TEST

START_TEST(no_pass_lies_between_a_disconnect_and_the_cancel)
{
    open_router((struct http_service_options){0});
    for (int half = 0; half < 2; half++) {
        int fd = ask_for_stream(), before = atomic_load(&node.cancels);
        node_pass(1);
        expect_text(fd, "\"token_ids\":[5]");
        int passes = node.passes;
        if (half)
            shutdown(fd, SHUT_WR);
        else
            close(fd);
        AWAIT(atomic_load(&node.cancels) == before + 1);
        ck_assert_int_eq(node.passes, passes);
        ck_assert_uint_eq(atomic_load(&node.cancelled), atomic_load(&node.request));
        if (half) close(fd);
    }
}
END_TEST

START_TEST(a_client_that_goes_away_before_its_first_token_is_noticed)
{
    open_router((struct http_service_options){0});
    int fd = ask_for_stream();
    close(fd);
    AWAIT(atomic_load(&node.cancels) == 1);
    ck_assert_int_eq(node.passes, 0);
}
END_TEST

// Asks for a completion that starts with its prompt of n words.
static int open_echo(int n, const char *more)
{
    static const char word[] = " the";
    const size_t length = strlen(word);
    char *words = mem_alloc((size_t)n * length + 1);
    for (int i = 0; i < n; i++)
        memcpy(words + (size_t)i * length, word, length);
    char *body = mem_format("{\"prompt\":\"%s\",\"echo\":true%s}", words, more);
    int fd = open_completion(body);
    free(body);
    free(words);
    return fd;
}

// The node computes no pass.
START_TEST(an_echo_counts_while_its_request_waits)
{
    static const char *const cases[] = {"", ",\"stream\":true"};
    open_router((struct http_service_options){.max_body_bytes = 4 << 20});
    for (int i = 0; i < 2; i++) {
        int fd = open_echo(300000, cases[i]);
        expect_text(fd, "whole answers take over 0 MiB");
        close(fd);
    }
    front_stop();
    ck_assert_uint_eq(front.whole.bytes, 0);
}
END_TEST

START_TEST(the_echo_of_each_choice_counts)
{
    open_router((struct http_service_options){.max_body_bytes = 4 << 20});
    front.whole.max_bytes = 1 << 20;
    int fd = open_echo(175000, ",\"n\":2"); // 700 kB while it waits, 1.4 MB once a choice has begun
    AWAIT(atomic_load(&node.bins));
    node_pass(1);
    expect_text(fd, "whole answers take over 1 MiB");
    close(fd);
}
END_TEST

static atomic_size_t whole_bytes;
static atomic_ullong whole_requests; // that the core has taken
static atomic_int whole_events;

static void event_whole(struct core *c, void *arg, int64_t now_us)
{
    atomic_store(&whole_bytes, front.whole.bytes);
    atomic_store(&whole_requests, c->ledger.totals.requests);
    atomic_fetch_add(&whole_events, 1);
}

static size_t count_whole(void)
{
    int before = atomic_load(&whole_events);
    loop_post(front.loop, event_whole, NULL);
    AWAIT(atomic_load(&whole_events) == before + 1);
    return atomic_load(&whole_bytes);
}

static bool requests_were(int n)
{
    count_whole();
    return atomic_load(&whole_requests) == (unsigned)n;
}

// Each echo is as large as the equal share that it would have had when it arrived. A small one is accepted.
START_TEST(many_echoes_that_wait_keep_to_the_limit)
{
    enum { N = 40, MAX = 1 << 20, WORD = 4 };
    open_router((struct http_service_options){.max_body_bytes = 4 << 20});
    front.whole.max_bytes = MAX;
    int fds[N + 1];
    for (int i = 0; i < N; i++) {
        fds[i] = open_echo(MAX / (i + 1) / WORD - 1, "");
        AWAIT(requests_were(i + 1));
        ck_assert_uint_le(count_whole(), 2 * MAX + (i + 1) * EQUAL_SHARE_SMALL_BYTES);
    }
    ck_assert_uint_gt(count_whole(), MAX);
    size_t held = count_whole();
    fds[N] = open_echo(1000, "");
    AWAIT(count_whole() == held + 1000 * WORD);
    int refused = open_echo(100000, "");
    expect_text(refused, "whole answers take over 1 MiB");
    ck_assert_uint_eq(count_whole(), held + 1000 * WORD);
    close(refused);
    for (int i = 0; i <= N; i++)
        close(fds[i]);
    AWAIT(count_whole() == 0);
    ck_assert_int_eq(front.whole.sharing, 0);
}
END_TEST

// 16 stop strings of 1,024 bytes count as over 10,000 tokens for each choice.
START_TEST(stop_strings_count_in_the_queue)
{
    char stop[1025], *stops = mem_string("\"end\"");
    memset(stop, 's', 1024);
    stop[1024] = '\0';
    for (int i = 0; i < 15; i++) {
        char *more = mem_format("%s,\"%s\"", stops, stop);
        free(stops);
        stops = more;
    }
    max_queue_tokens = 100000;
    open_router((struct http_service_options){0});
    for (int i = 0; i < 2; i++) {
        char *body = mem_format("{\"prompt\":\"hello\",\"n\":%d,\"stop\":[%s]}", i ? 40 : 2, stops);
        int fd = open_completion(body);
        if (i == 0)
            AWAIT(requests_were(2));
        else
            expect_text(fd, "grammar, stop strings, texts to compress and turns' pinned ranges count as one");
        close(fd);
        free(body);
    }
    free(stops);
}
END_TEST

// The sentence for the client quotes the text, the log does not.
START_TEST(text_of_a_refused_client_is_not_logged)
{
    static const char *const requests[][2] = {
        {"/v1/completions", "{\"prompt\":\"hello\",\"response_format\":{\"type\":\"MARKER\"}}"},
        {"/v1/completions", "{\"prompt\":\"hello\",\"model\":\"MARKER\"}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"MARKER\"}]}]}"},
    };
    char path[] = "/tmp/forepack-log-XXXXXX", text[8192] = "";
    int saved = dup(STDERR_FILENO), log = mkstemp(path);
    ck_assert_int_ge(log, 0);
    dup2(log, STDERR_FILENO);
    log_setup("test", LOG_INFO);
    open_router((struct http_service_options){0});
    for (int i = 0; i < 3; i++) {
        int fd = open_post(requests[i][0], requests[i][1]);
        expect_text(fd, "MARKER");
        close(fd);
    }
    front_stop();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ck_assert_int_ge(pread(log, text, sizeof text - 1, 0), 0);
    close(log);
    unlink(path);
    int refused = 0;
    for (const char *at = text; (at = strstr(at, "request_refused")); at++)
        refused++;
    ck_assert_int_eq(refused, 3);
    ck_assert_msg(!strstr(text, "MARKER"), "%s", text);
}
END_TEST

SUITE("http_streams")
{
    TCASE("streams");
    TIMEOUT(120);
    FIXTURE(NULL, front_stop);
    TEST(an_idle_stream_is_pinged);
    TEST(a_stream_that_leaves_too_much_unread_is_cut_off);
    TEST(a_stream_that_is_not_read_for_a_while_is_cut_off);
    TEST(metrics_keep_to_the_bound_of_all_unread_answers);
    TEST(no_pass_lies_between_a_disconnect_and_the_cancel);
    TEST(a_client_that_goes_away_before_its_first_token_is_noticed);
    TEST(the_echo_of_each_choice_counts);
    TEST(many_echoes_that_wait_keep_to_the_limit);
    TEST(stop_strings_count_in_the_queue);

    TCASE("stopped"); // these tests stop the router and check what it leaves
    TIMEOUT(120);
    TEST(an_echo_counts_while_its_request_waits);
    TEST(text_of_a_refused_client_is_not_logged);
}
