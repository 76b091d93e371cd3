// SPDX-License-Identifier: Apache-2.0
// The HTTP API of a whole router: what its clients see when nodes are lost, deadlines pass and grammars take long to
// compile. A node of the test takes the bins and answers only what the test says.
#include <semaphore.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "router/front/http_service.h"
#include "router/front/node_link.h"
#include "router/front/reading.h"
#include "tests/http_client.h"

enum { CONTEXT = 512 };

static struct front front;
static struct core *core;
static struct http_service *service;

// --- nodes

typedef Forepack__Cluster__V1__RouterMessage router_message;
typedef Forepack__Cluster__V1__NodeMessage node_message;

static atomic_int bins; // received by the nodes
static sem_t done;      // an event has run

static void node_receive(struct node_link *link, const router_message *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) atomic_fetch_add(&bins, 1);
}

static void node_finish(struct node_link *link, enum status status, const char *reason)
{
}

static const char *node_peer(const struct node_link *link)
{
    return "test";
}

static const struct node_link_ops node_ops = {node_receive, node_finish, node_peer};
static struct node_link worker;

static void node_attach(struct node_link *node, struct core *c, Forepack__Cluster__V1__Role role, int64_t now_us)
{
    static uint64_t instances;
    *node = (struct node_link){.ops = &node_ops};
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.protocol = CLUSTER_PROTOCOL_VERSION;
    hello.role = role;
    hello.node_id = role == FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER ? "worker" : "speculator";
    hello.instance = ++instances;
    hello.model_fingerprint = 1;
    hello.ranks = 1;
    hello.max_seqs = 8;
    hello.tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer);
    hello.vocab_size = (uint32_t)front.config.vocab_size;
    hello.context_tokens = CONTEXT;
    hello.token_budget = 8192;
    hello.block_tokens = 16;
    hello.kv_blocks = 1024;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    node_link_handle(node, c, &message, now_us);
}

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    node_attach(&worker, c, FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, now_us);
    sem_post(&done);
}

static void event_lose(struct core *c, void *arg, int64_t now_us)
{
    node_link_closed(&worker, c, now_us);
    sem_post(&done);
}

// Returns when the event has run on the core's thread.
static void post(loop_fn event, void *arg)
{
    loop_post(front.loop, event, arg);
    sem_wait(&done);
}

// --- the router

static void setup(void)
{
    static char *names[] = {"demo"};
    log_setup("test", LOG_ERROR);
    sem_init(&done, 0, 0);
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    front = (struct front){.model_names = names, .n_model_names = 1, .config = {.max_context = CONTEXT}};
    front.max_queue_requests = 100;
    front.whole.max_bytes = 1 << 20;
    ck_assert_msg(tokenizer_open(dir, &front.tokenizer) == STATUS_OK, "%s", status_message());
    ck_assert_msg(chat_template_open(dir, NULL, &front.chat) == STATUS_OK, "%s", status_message());
    free(dir);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    struct core_ops ops;
    front_core_ops_init(&front, &ops);
    const struct core_options options = {.max_queue_requests = 100,
                                         .max_queue_tokens = 1 << 20,
                                         .worker_grace_us = 60000000,
                                         .heartbeat_us = 3600000000,
                                         .bins_ahead = 2,
                                         .policy = BIN_DATASET,
                                         .tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer),
                                         .vocab_size = front.config.vocab_size,
                                         .clock_us = clock_now_us};
    core = core_create(&options, &ops);
    front.loop = loop_start(core);
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 2, .max_bytes = 64 << 20, .max_jobs = 100});
    front.readings = reading_table_create();
    post(event_attach, NULL);
    const struct http_service_options http = {.host = "127.0.0.1", .max_body_bytes = 1 << 20};
    ck_assert_msg(http_service_open(&front, &http, &service) == STATUS_OK, "%s", status_message());
}

static void teardown(void)
{
    intake_pool_close(front.pool);
    http_service_close(service, 0);
    loop_stop(front.loop);
    http_service_free(service);
    core_free(core);
    intake_pool_free(front.pool);
    reading_table_free(front.readings);
    chat_template_free(front.chat);
    tokenizer_free(front.tokenizer);
}

// Sends a request on a connection of its own, which closes after the answer. Returns the connection.
static int post_send(const char *path, const char *headers, const char *body)
{
    char *request = mem_format("POST %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
                               path, strlen(body), headers, body);
    int fd = client_connect(http_service_port(service));
    client_send(fd, request);
    free(request);
    return fd;
}

// The whole answer; the caller frees it.
static char *answer_take(int fd)
{
    struct client_text text = client_receive_all(fd);
    close(fd);
    return text.bytes;
}

static char *post_ask(const char *path, const char *body)
{
    return answer_take(post_send(path, "", body));
}

static void check_answer(char *answer, int http_status, const char *words)
{
    char start[32];
    snprintf(start, sizeof start, "HTTP/1.1 %d ", http_status);
    ck_assert_msg(strncmp(answer, start, strlen(start)) == 0 && strstr(answer, words), "not %d with '%s': %s",
                  http_status, words, answer);
}

// --- tests

static const char chat_body[] = "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";

static const struct {
    const char *path, *body;
} generations[] = {{"/v1/chat/completions", chat_body},
                   {"/v1/messages", chat_body},
                   {"/v1/completions", "{\"prompt\":\"Hi\"}"},
                   {"/v1/responses", "{\"input\":\"Hi\"}"}};
enum { GENERATIONS = sizeof generations / sizeof *generations };

START_TEST(a_request_that_ends_worker_groups_is_not_sent_again)
{
    int fd = post_send(generations[_i].path, "", generations[_i].body);
    for (int losses = 1; losses <= 3; losses++) {
        AWAIT(atomic_load(&bins) == losses);
        post(event_lose, NULL);
        post(event_attach, NULL);
    }
    char *answer = answer_take(fd);
    check_answer(answer, 500, "\r\nx-should-retry: false\r\n");
    ck_assert_ptr_nonnull(strstr(answer, "the request itself may be the cause"));
    free(answer);
}
END_TEST

// Clients that send again what is refused to shed load would triple it.
START_TEST(a_deadline_that_has_passed_is_not_tried_again)
{
    char *body = mem_format("{\"ttft_deadline_ms\":1,%s", generations[_i].body + 1);
    char *answer = post_ask(generations[_i].path, body);
    check_answer(answer, 504, "\r\nx-should-retry: false\r\n");
    free(answer);
    free(body);
}
END_TEST

START_TEST(what_may_succeed_later_is_tried_again)
{
    post(event_lose, NULL);
    atomic_store(&front.draining, true);
    char *answer = post_ask("/v1/chat/completions", chat_body);
    check_answer(answer, 503, "\r\nRetry-After: ");
    ck_assert_ptr_null(strstr(answer, "x-should-retry"));
    free(answer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_api");
    TCase *tcase = tcase_create("http_api");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, a_request_that_ends_worker_groups_is_not_sent_again, 0, GENERATIONS);
    tcase_add_loop_test(tcase, a_deadline_that_has_passed_is_not_tried_again, 0, GENERATIONS);
    tcase_add_test(tcase, what_may_succeed_later_is_tried_again);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
