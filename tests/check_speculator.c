// SPDX-License-Identifier: Apache-2.0
// The program forepack-speculator, with one rank and with two, attached to a router of tests/test_router.h: its Hello,
// scores equal to the slow implementation, invalid items, cancellation, drain, a router that restarts or refuses, wrong
// options.
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/text/config.h"
#include "tests/slow_importance.h"
#include "tests/slow_select.h"
#include "tests/suite.h"
#include "tests/test_router.h"

extern char **environ;

typedef Forepack__Cluster__V1__ScoreItem item_message;

enum { N_PROMPTS = 10, LONGEST = 90 };

#ifdef FOREPACK_MPI
enum { GROUP_SIZES = 2 }; // one rank and two
#else
enum { GROUP_SIZES = 1 };
#endif

static struct tiny_model spec;
static char *model_dir;
static struct test_router router;
static char *error_file;

static void setup(void)
{
    spec = tiny_model_spec("llama");
    spec.tokenizer = true;
    model_dir = tiny_model_temp(&spec);
    error_file = mem_format("%s/stderr", model_dir);
    rpc_init();
    test_router_open(&router, 0);
}

static void teardown(void)
{
    test_router_close(&router);
    rpc_shutdown();
    unlink(error_file);
    free(error_file);
    tiny_model_remove(model_dir);
}

// Starts the program with its stderr in error_file. `extra` has more arguments, separated by spaces.
static pid_t start(int ranks, int port, const char *extra)
{
    const char *bin = getenv("FOREPACK_BIN");
    char *program = mem_format("%s/forepack-speculator", bin ? bin : "build/bin");
    char *router_flag = mem_format("--router=127.0.0.1:%d", port), *words = mem_string(extra);
    char *argv[64] = {"mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"};
    int argc = ranks > 1 ? 6 : 0;
    argv[argc++] = program;
    argv[argc++] = "--model";
    argv[argc++] = model_dir;
    argv[argc++] = router_flag;
    argv[argc++] = "--threads=1";
    argv[argc++] = "--max-num-batched-tokens=64";
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, error_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    int error = posix_spawnp(&child, argv[0], &files, NULL, argv, environ);
    ck_assert_msg(!error, "%s: %s", argv[0], strerror(error));
    posix_spawn_file_actions_destroy(&files);
    free(words);
    free(router_flag);
    free(program);
    return child;
}

static int wait_exit(pid_t child)
{
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static bool stderr_has(const char *text)
{
    static char said[20000];
    FILE *file = fopen(error_file, "r");
    ck_assert_ptr_nonnull(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    fclose(file);
    return strstr(said, text) != NULL;
}

// --- prompts

struct prompt {
    uint32_t tokens[LONGEST];
    Forepack__Cluster__V1__Range pinned, *pinned_list[1];
    item_message item;
    int rate; // thousandths
};

static void make_prompts(struct prompt *prompts, item_message **items)
{
    uint32_t state = 77;
    for (int i = 0; i < N_PROMPTS; i++) {
        struct prompt *p = &prompts[i];
        int n = 5 + i * (LONGEST - 5) / N_PROMPTS;
        for (int j = 0; j < n; j++) {
            state = state * 1664525u + 1013904223u;
            p->tokens[j] = (state >> 16) % (uint32_t)spec.vocab_size;
        }
        if (i % 2) p->tokens[0] = TINY_BOS;
        p->rate = 100 * (1 + i % 5);
        forepack__cluster__v1__score_item__init(&p->item);
        p->item.request = 100 + (uint64_t)i;
        p->item.token_ids = p->tokens;
        p->item.n_token_ids = (size_t)n;
        p->item.keep_rate = p->rate / 1000.0;
        p->item.look_ahead = 1 + (uint32_t)i % 8;
        p->item.chunk_tokens = i % 3 ? 4 : 0;
        p->item.pool_window = i % 4 ? 13 : 1;
        p->item.want_importance = true;
        p->item.tail_tokens = (uint32_t)i % 3;
        p->item.paper_exact = i == 4;
        forepack__cluster__v1__range__init(&p->pinned);
        p->pinned.first = 2;
        p->pinned.last = 3;
        p->pinned_list[0] = &p->pinned;
        p->item.pinned = p->pinned_list;
        p->item.n_pinned = (size_t)i % 2;
        items[i] = &p->item;
    }
}

static void check_result(const struct slow_llama *slow, const struct model_config *config, const struct prompt *p)
{
    const Forepack__Cluster__V1__ScoreResult *got = test_router_result(&router, p->item.request);
    ck_assert_ptr_nonnull(got);
    ck_assert_str_eq(got->error, "");
    int n = (int)p->item.n_token_ids;
    double importance[LONGEST], gap;
    int32_t sampled[64];
    int steps = slow_importance(slow, &spec, (const int32_t *)p->tokens, n, (int)p->item.look_ahead,
                                (int)p->item.pool_window, config->eos_id, config->n_eos, importance, sampled, &gap);
    ck_assert_uint_eq(got->n_importance, (size_t)n);
    if (gap < 1e-4) return;
    ck_assert_int_eq((int)got->steps, steps);
    for (int j = 0; j < n; j++)
        ck_assert_double_eq_tol(got->importance[j], importance[j], 2e-5);
    struct token_range pinned = {2, 3};
    struct select_policy policy = {.chunk_tokens = (int)p->item.chunk_tokens,
                                   .paper_exact = p->item.paper_exact,
                                   .keep_first = p->tokens[0] == TINY_BOS,
                                   .tail_tokens = (int)p->item.tail_tokens,
                                   .pinned = &pinned,
                                   .n_pinned = (int)p->item.n_pinned};
    bool expected[LONGEST], kept[LONGEST] = {0};
    if (slow_select(importance, n, &policy, p->rate, expected) < 4e-5) return;
    for (size_t r = 0; r < got->n_kept; r++)
        for (uint32_t j = got->kept[r]->first; j <= got->kept[r]->last; j++)
            kept[j] = true;
    ck_assert_mem_eq(kept, expected, (size_t)n * sizeof *kept);
}

static void check_prompts(const struct prompt *prompts)
{
    struct model_config config;
    ck_assert_int_eq(model_config_read(model_dir, &config), STATUS_OK);
    struct slow_llama *slow = slow_llama_create(&spec);
    for (int i = 0; i < N_PROMPTS; i++)
        check_result(slow, &config, &prompts[i]);
    slow_llama_free(slow);
}

static void cancel(uint64_t *requests, size_t n)
{
    Forepack__Cluster__V1__Cancel message = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    message.requests = requests;
    message.n_requests = n;
    Forepack__Cluster__V1__RouterMessage to = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    to.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    to.cancel = &message;
    test_router_send(&router, &to);
}

START_TEST(prompts_are_scored_and_a_drain_ends_the_process)
{
    int ranks = _i + 1;
    pid_t child = start(ranks, router.port, "--node-id spec-1 --dtype f32");
    test_router_await(&router, &router.hellos, 1);
    const Forepack__Cluster__V1__Hello *hello = router.hello->hello;
    ck_assert_str_eq(hello->node_id, "spec-1");
    ck_assert_int_eq((int)hello->role, FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR);
    ck_assert_uint_eq(hello->ranks, (unsigned)ranks);
    ck_assert_str_eq(hello->dtype, "f32");
    ck_assert_uint_eq(hello->vocab_size, (unsigned)spec.vocab_size);
    ck_assert_uint_eq(hello->context_tokens, (unsigned)spec.max_context);
    ck_assert_uint_eq(hello->token_budget, 64);
    ck_assert_uint_eq(hello->max_seqs, 32);
    ck_assert_uint_eq(hello->block_tokens, 16);
    ck_assert_uint_gt(hello->kv_blocks, 0);
    ck_assert_uint_eq(hello->n_eos_token_ids, 2);
    ck_assert(hello->model_fingerprint);
    ck_assert(hello->tokenizer_fingerprint);

    static struct prompt prompts[N_PROMPTS];
    item_message *items[N_PROMPTS];
    make_prompts(prompts, items);
    test_router_send_bin(&router, 1, items, N_PROMPTS);
    test_router_await(&router, &router.results, N_PROMPTS);
    check_prompts(prompts);

    // An invalid item gets its own error; the other items of the bin are scored.
    static struct prompt again[N_PROMPTS];
    make_prompts(again, items);
    for (int i = 0; i < N_PROMPTS; i++)
        again[i].item.request = 200 + (uint64_t)i;
    again[0].tokens[1] = 4000000000u;
    again[1].item.keep_rate = 0;
    again[2].item.look_ahead = 4000000000u;
    again[3].item.n_token_ids = 0;
    again[5].pinned.last = 4000000000u;
    again[6].item.keep_rate = (double)NAN;
    test_router_send_bin(&router, 2, items, N_PROMPTS);
    test_router_await(&router, &router.results, 2 * N_PROMPTS);
    for (int i = 0; i < N_PROMPTS; i++) {
        const Forepack__Cluster__V1__ScoreResult *result = test_router_result(&router, 200 + (uint64_t)i);
        bool bad = i <= 3 || i == 5 || i == 6;
        ck_assert_msg((*result->error != 0) == bad, "%d: '%s'", i, result->error);
        ck_assert_uint_eq(result->n_kept > 0, !bad);
    }

    cancel((uint64_t[]){1, 2, 300}, 3); // unknown requests
    kill(child, ranks > 1 ? SIGUSR1 : SIGTERM);
    ck_assert_int_eq(wait_exit(child), 0);
    test_router_await(&router, &router.half_closes, 1);
    ck_assert_int_eq(router.drainings, 1);
    ck_assert(stderr_has("drain_started by="));
}
END_TEST

START_TEST(a_drain_finishes_running_work)
{
    enum { COPIES = 20 };
    pid_t child = start(1, router.port, "--max-num-seqs 2");
    test_router_await(&router, &router.heartbeats, 1);
    static struct prompt prompts[N_PROMPTS];
    item_message *items[COPIES * N_PROMPTS];
    make_prompts(prompts, items);
    for (int i = N_PROMPTS; i < COPIES * N_PROMPTS; i++)
        items[i] = items[i - N_PROMPTS];
    // One message has all prompts, so that the node has received them when it begins. Messages that arrive after the
    // signal would not count.
    test_router_send_bin(&router, 1, items, COPIES * N_PROMPTS);
    test_router_await(&router, &router.results, 1);
    kill(child, SIGTERM);
    ck_assert_int_eq(wait_exit(child), 0);
    test_router_await(&router, &router.half_closes, 1);
    ck_assert_int_eq(test_router_count(&router, &router.results), COPIES * N_PROMPTS);
}
END_TEST

START_TEST(a_restarted_router_is_served_again)
{
    pid_t child = start(1, router.port, "");
    test_router_await(&router, &router.heartbeats, 1);
    static struct prompt prompts[N_PROMPTS];
    item_message *items[N_PROMPTS];
    make_prompts(prompts, items);
    for (uint64_t bin = 0; bin < 50; bin++) // dropped when this router stops
        test_router_send_bin(&router, bin, items, N_PROMPTS);
    test_router_await(&router, &router.results, 1);
    int port = router.port;
    test_router_close(&router);
    test_router_open(&router, port);
    test_router_await(&router, &router.heartbeats, 1);
    test_router_send_bin(&router, 1, items, N_PROMPTS);
    test_router_await(&router, &router.results, N_PROMPTS);
    check_prompts(prompts);
    ck_assert_int_eq(test_router_count(&router, &router.results), N_PROMPTS);
    kill(child, SIGTERM);
    ck_assert_int_eq(wait_exit(child), 0);
}
END_TEST

START_TEST(a_refused_speculator_tries_again_and_says_why)
{
    router.refuse = "its tokenizer differs from the main model's";
    pid_t child = start(1, router.port, "");
    test_router_await(&router, &router.hellos, 2);
    kill(child, SIGTERM);
    ck_assert_int_eq(wait_exit(child), 0);
    ck_assert(stderr_has("its tokenizer differs from the main model's"));
}
END_TEST

static const struct {
    const char *arguments, *sentence;
} wrong[] = {
    {"--threads -1", "--threads '-1': must be a whole number from 0"},
    {"--model /nowhere", "/nowhere"},
    {"--backend tpu", "backend 'tpu'"},
    {"--dtype int4", "--dtype 'int4': must be one of auto|f32|bf16|bf12|int8|int8-g128"},
    {"--kv-cache-dtype int4", "--kv-cache-dtype 'int4': must be one of auto|bf16|int8"},
    {"--dtype f32 --kv-cache-dtype int8", "kv-cache-dtype int8: a model computed in f32 keeps K and V in f32"},
    {"--router nowhere", "'nowhere'"},
    {"--speed 9", "unknown flag --speed"},
};

START_TEST(wrong_options_are_exit_code_2_with_a_sentence)
{
    pid_t child = start(1, 1, wrong[_i].arguments);
    ck_assert_int_eq(wait_exit(child), 2);
    ck_assert_msg(stderr_has(wrong[_i].sentence), "%s", wrong[_i].arguments);
}
END_TEST

SUITE("speculator")
{
    TIMEOUT(120);
    FIXTURE(setup, teardown);
    LOOP(prompts_are_scored_and_a_drain_ends_the_process, 0, GROUP_SIZES);
    TEST(a_drain_finishes_running_work);
    TEST(a_restarted_router_is_served_again);
    TEST(a_refused_speculator_tries_again_and_says_why);
    EACH(wrong_options_are_exit_code_2_with_a_sentence, wrong);
}
