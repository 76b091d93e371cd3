// SPDX-License-Identifier: Apache-2.0
// A group with ranks as threads of one process: agreement on failures, release, death of the leader, roll calls, the
// watchdog. Also the block manager. check_engine_mpi tests groups of processes.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/roll_call.h"
#include "engine/wakeup.h"
#include "engine/watchdog.h"
#include "lib/base/log.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"

enum { RANKS = 3 };

// ---- ranks as threads ----

// Options of one rank that differ from those of the others. NULL: no difference.
struct rank_options {
    const char *backend, *dtype, *kv_dtype, *allreduce_dtype;
    int kv_blocks;
};

struct rank {
    pthread_t thread;
    struct comm *comm;
    const char *dir;
    struct rank_options own;
    struct engine *engine;
    struct roll_call *roll_call;
    bool mute;             // the rank keeps its socket open and answers no roll call, like a stopped process
    struct wakeup *wakeup; // of a mute rank
    enum status status;
    char message[256];
};

static void keep_message(struct rank *r)
{
    snprintf(r->message, sizeof r->message, "%s", status_message());
}

static void start_ranks(struct rank *ranks, int size, void *(*first)(void *), void *(*others)(void *))
{
    struct comm *comms[RANKS];
    ck_assert_int_eq(comm_open_threads(size, comms), STATUS_OK);
    for (int r = 0; r < size; r++) {
        ranks[r].comm = comms[r];
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, r ? others : first, &ranks[r]), 0);
    }
}

static void join_ranks(struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
        ranks[r].comm->ops->close(ranks[r].comm);
    }
}

static const char *backend = "cpu";

static struct model_options group_options(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = backend,
                                  .dtype = "f32",
                                  .threads = 1,
                                  .max_rows = 64,
                                  .max_seqs = 32,
                                  .n_kv_blocks = 64};
}

static void *open_rank(void *arg)
{
    struct rank *r = arg;
    struct model_options options = group_options(r->dir);
    if (r->own.backend) options.backend = r->own.backend;
    if (r->own.dtype) options.dtype = r->own.dtype;
    if (r->own.kv_blocks) options.n_kv_blocks = r->own.kv_blocks;
    options.kv_dtype = r->own.kv_dtype;
    options.allreduce_dtype = r->own.allreduce_dtype;
    r->status = engine_open(&options, r->comm, &r->engine);
    keep_message(r);
    return NULL;
}

static void *follow_rank(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    if (r->status != STATUS_OK) return NULL;
    r->status = engine_follow(r->engine);
    keep_message(r);
    engine_close(r->engine);
    return NULL;
}

// ---- the engine ----

static const int32_t prompt[] = {1, 20, 3, 4, 5, 60, 7, 8, 9, 10, 11, 12, 130, 14, 15, 16, 17, 18};
enum { PROMPT = sizeof prompt / sizeof *prompt };

// Asks a backend that samples for tokens and logits, then for greedy tokens only, for which no rank gathers logits.
static void ask_for_tokens(struct ragged_batch *batch, int step)
{
    static struct row_sampling draws[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        draws[i] = (struct row_sampling){
            .uniform = 0.05 * i, .top_p = 0.9, .inverse_temperature = i % 2 && step < 2 ? 0.5f : 0};
    batch->sampling = draws;
    batch->n_unread_rows = step == 2 ? batch->n_logit_rows : 0;
}

static void steps(struct engine *engine, struct ranks *alone, struct forward *f)
{
    size_t vocab = (size_t)model_get_config(engine_model(engine))->vocab_size;
    for (int step = 0; step < 3; step++) {
        forward_start(f, 2);
        if (step == 0) forward_add(f, 0, 0, prompt, NULL, PROMPT, LOGITS_ALL);
        if (step > 0) forward_add(f, 0, PROMPT + step - 1, prompt + step, NULL, 1, LOGITS_LAST);
        if (step > 0) forward_add(f, 1, 4 * (step - 1), prompt, NULL, 4, LOGITS_LAST);
        if (model_samples(engine_model(engine))) ask_for_tokens(&f->batch, step);
        struct forward_result mine;
        ck_assert_int_eq(engine_forward(engine, &f->batch, &mine), STATUS_OK);
        struct forward_result theirs = ranks_forward(alone, &f->batch);
        size_t rows = (size_t)f->batch.n_logit_rows;
        ck_assert_int_eq(!mine.logits, f->batch.n_unread_rows == f->batch.n_logit_rows);
        ck_assert_int_eq(!mine.tokens, !f->batch.sampling);
        if (mine.logits) ck_assert_mem_eq(mine.logits, theirs.logits, rows * vocab * sizeof(float));
        if (mine.tokens) ck_assert_mem_eq(mine.tokens, theirs.tokens, rows * sizeof *mine.tokens);
    }
}

static void *lead_rank(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    ck_assert_int_eq(r->status, STATUS_OK);
    struct ranks alone;
    struct model_options options = group_options(r->dir);
    ranks_open(&alone, &options, r->comm->size);
    struct forward *f = calloc(1, sizeof *f);
    steps(r->engine, &alone, f);
    free(f);
    ranks_close(&alone);
    engine_close(r->engine);
    return NULL;
}

START_TEST(a_group_computes_what_its_model_computes)
{
    backend = _i ? "reference" : "cpu"; // only the reference backend samples tokens
    struct tiny_model spec = tiny_model_spec("llama3");
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[RANKS] = {{.dir = dir}, {.dir = dir}};
    start_ranks(ranks, 2, lead_rank, follow_rank);
    join_ranks(ranks, 2);
    ck_assert_msg(ranks[1].status == STATUS_OK, "%s", ranks[1].message);
    tiny_model_remove(dir);
    backend = "cpu";
}
END_TEST

START_TEST(one_rank_needs_no_followers)
{
    struct tiny_model spec = tiny_model_spec("qwen2");
    char *dir = tiny_model_temp(&spec);
    struct rank rank = {.dir = dir};
    ck_assert_int_eq(comm_open_self(&rank.comm), STATUS_OK);
    lead_rank(&rank);
    rank.comm->ops->close(rank.comm);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(one_failing_rank_fails_all_and_reports_alone)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_heads = spec.n_kv_heads = 6;
    spec.intermediate = 96;
    spec.hidden = 96;
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[RANKS] = {{.dir = dir}, {.dir = "/nowhere/model"}, {.dir = dir}};
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++)
        ck_assert_msg(ranks[r].status == ranks[1].status && ranks[r].status != STATUS_OK, "rank %d: %d", r,
                      ranks[r].status);
    ck_assert_str_eq(ranks[0].message, "");
    ck_assert_ptr_nonnull(strstr(ranks[1].message, "/nowhere/model"));
    ck_assert_str_eq(ranks[2].message, "");

    for (int r = 0; r < RANKS; r++) // a mistake of all ranks is reported once
        ranks[r].dir = "/nowhere/model";
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(ranks[r].message[0] != 0, r == 0);
    tiny_model_remove(dir);
}
END_TEST

// ---- ranks that differ ----

static void change_nothing(const char *dir)
{
}

static void change_a_weight(const char *dir)
{
    edit_f32(dir, "model.layers.1.mlp.gate_proj.weight", 0, 0.25f);
}

static void change_the_rope(const char *dir)
{
    edit_file(dir, "config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 50000.0");
}

// A stale copy, another config.json, and a host on which `auto` chooses differently. Ranks of equal shapes would run,
// and answer wrongly.
static const struct difference {
    void (*change)(const char *dir); // the second rank's copy of the model
    struct rank_options first, second;
    const char *values, *remedy;
} differences[] = {
    {change_a_weight, {0}, {0}, "model fingerprint ", "copy the same files to all hosts"},
    {change_the_rope, {0}, {0}, "model fingerprint ", "copy the same files to all hosts"},
    {change_nothing,
     {0},
     {.backend = "reference"},
     "backend reference, but cpu on rank 0",
     "choose one with --backend"},
    {change_nothing, {0}, {.dtype = "bf16"}, "dtype bf16, but f32 on rank 0", "choose one with --dtype"},
    {change_nothing,
     {.dtype = "bf16"},
     {.dtype = "bf16", .kv_dtype = "int8"},
     "kv-cache-dtype int8, but bf16 on rank 0",
     "choose one with --kv-cache-dtype"},
    {change_nothing, {0}, {.kv_blocks = 33}, "kv-blocks 33, but 64 on rank 0", "give all ranks the same value"},
    {change_nothing, {0}, {.allreduce_dtype = "bf16"}, "allreduce-dtype bf16, but auto on rank 0", "give all ranks"},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };

START_TEST(a_rank_that_differs_from_the_leader_fails_the_group)
{
    const struct difference *d = &differences[_i];
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *copy = tiny_model_temp(&spec), host[65] = "";
    struct rank ranks[RANKS] = {{.dir = dir, .own = d->first}, {.dir = copy, .own = d->second}};
    d->change(copy);
    start_ranks(ranks, 2, open_rank, open_rank);
    join_ranks(ranks, 2);
    for (int r = 0; r < 2; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_INVALID);
    gethostname(host, sizeof host - 1);
    char *names = mem_format("rank 1 on %s: %s", host, d->values);
    ck_assert_str_eq(ranks[0].message, "");
    ck_assert_msg(strstr(ranks[1].message, names) == ranks[1].message, "%s", ranks[1].message);
    ck_assert_msg(strstr(ranks[1].message, d->remedy) != NULL, "%s", ranks[1].message);
    ck_assert_int_eq(status_exit_code(ranks[1].status), 2); // another start would fail in the same way
    free(names);
    tiny_model_remove(copy);
    tiny_model_remove(dir);
}
END_TEST

// ---- wake-up sockets ----

static void *send_and_die(void *arg)
{
    struct rank *r = arg;
    struct wakeup *wakeup;
    r->status = wakeup_open(r->comm, &wakeup);
    if (r->status != STATUS_OK) return NULL;
    r->status = wakeup_agree(wakeup, STATUS_OK);
    for (uint32_t i = 0; i < 1000 && r->status == STATUS_OK; i++)
        r->status = wakeup_send(wakeup, (struct wakeup_message){i, 2 * i, 0});
    wakeup_close(wakeup); // as when the process ends
    return NULL;
}

static void *count_rings(void *arg)
{
    struct rank *r = arg;
    struct wakeup *wakeup;
    r->status = wakeup_open(r->comm, &wakeup);
    if (r->status != STATUS_OK) return NULL;
    r->status = wakeup_agree(wakeup, STATUS_OK);
    struct wakeup_message message = {0};
    uint32_t n = 0;
    while (r->status == STATUS_OK && (r->status = wakeup_wait(wakeup, &message)) == STATUS_OK) {
        if (message.kind != n || message.size_bytes != 2 * n) break;
        n++;
    }
    keep_message(r);
    if (n != 1000) r->status = STATUS_DATA;
    wakeup_close(wakeup);
    return NULL;
}

START_TEST(every_ring_arrives_and_so_does_the_end)
{
    struct rank ranks[RANKS] = {0};
    start_ranks(ranks, RANKS, send_and_die, count_rings);
    join_ranks(ranks, RANKS);
    ck_assert_int_eq(ranks[0].status, STATUS_OK);
    for (int r = 1; r < RANKS; r++) {
        ck_assert_int_eq(ranks[r].status, STATUS_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(ranks[r].message, "leader is gone"));
    }
}
END_TEST

// ---- the roll call ----

enum { PATIENCE_MS = 100, ENOUGH_MS = 300000 };

static void *open_roll_call(void *arg)
{
    struct rank *r = arg;
    r->status = r->mute ? wakeup_open(r->comm, &r->wakeup) : roll_call_open(r->comm, &r->roll_call);
    return NULL;
}

// Opens the roll calls. Afterwards the test's thread calls the functions of all ranks.
static void open_roll_calls(struct rank *ranks, int mute)
{
    if (mute >= 0) ranks[mute].mute = true;
    start_ranks(ranks, RANKS, open_roll_call, open_roll_call);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
}

static void close_roll_calls(struct rank *ranks)
{
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].roll_call) roll_call_close(ranks[r].roll_call);
        if (ranks[r].wakeup) wakeup_close(ranks[r].wakeup);
        ranks[r].comm->ops->close(ranks[r].comm);
    }
}

static const char *name_of(int rank)
{
    static char name[128];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d (host %s, pid %d)", rank, host, (int)getpid());
    return name;
}

static void check_answer(struct roll_call *roll_call, int patience_ms, enum roll_call_result result, const char *format,
                         int rank)
{
    char sentence[ROLL_CALL_SENTENCE_MAX], expected[ROLL_CALL_SENTENCE_MAX];
    ck_assert_int_eq(roll_call_ask(roll_call, patience_ms, sentence), result);
    snprintf(expected, sizeof expected, format, name_of(rank));
    ck_assert_str_eq(sentence, expected);
}

static void check_answers(const struct rank *ranks, enum roll_call_result result, const char *format, int rank)
{
    for (int r = 0; r < RANKS; r++)
        check_answer(ranks[r].roll_call, ENOUGH_MS, result, format, rank);
}

START_TEST(a_roll_call_names_the_rank_that_others_wait_for)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    for (int pass = 0; pass < 3; pass++) { // the first is the opening
        for (int r = 0; r < RANKS; r++)
            roll_call_enter(ranks[r].roll_call);
        check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
        for (int late = 0; late < RANKS; late++) {
            for (int r = 0; r < RANKS; r++)
                ranks[r].comm->waits = r != late;
            check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", late);
        }
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = true;
        check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and wait for each other: a device or a link hangs",
                      0);
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = false;
        roll_call_leave(ranks[1].roll_call); // this rank has finished the pass, or has not begun the next
        ranks[0].comm->waits = true;
        check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_call_leave(ranks[0].roll_call);
        roll_call_leave(ranks[2].roll_call);
        roll_call_enter(ranks[0].roll_call);
        roll_call_enter(ranks[1].roll_call);
        ranks[1].comm->waits = true;
        check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_call_leave(ranks[0].roll_call);
        roll_call_leave(ranks[1].roll_call);
        roll_call_enter(ranks[2].roll_call);
        roll_call_leave(ranks[2].roll_call);
        ranks[0].comm->waits = ranks[1].comm->waits = false;
    }
    close_roll_calls(ranks);
}
END_TEST

START_TEST(a_roll_call_names_the_rank_that_does_not_answer)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, _i);
    for (int r = 0; r < RANKS; r++)
        if (r != _i) check_answer(ranks[r].roll_call, PATIENCE_MS, ROLL_CALL_SILENT, "%s does not answer", _i);
    close_roll_calls(ranks);
}
END_TEST

START_TEST(a_roll_call_names_the_rank_that_is_gone)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    roll_call_close(ranks[_i].roll_call);
    ranks[_i].roll_call = NULL;
    for (int r = 0; r < RANKS; r++)
        if (r != _i) check_answer(ranks[r].roll_call, ENOUGH_MS, ROLL_CALL_SILENT, "%s is gone", _i);
    close_roll_calls(ranks);
}
END_TEST

static void read_gpu(void *arg, struct gpu_report *report)
{
    *report = *(const struct gpu_report *)arg;
    memset(report->address, 'a', sizeof report->address); // no terminating NUL: the leader must not need it
}

// Reads reports until the rank's report has this temperature.
static void await_temperature(struct roll_call *leader, int rank, uint32_t celsius, struct gpu_report *reports)
{
    do {
        roll_call_read_gpus(leader, reports);
        usleep(1000);
    } while (reports[rank].temperature_celsius != celsius);
}

START_TEST(the_leader_reads_what_followers_know_of_their_gpus)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served[RANKS] = {0}, reports[RANKS] = {0};
    open_roll_calls(ranks, -1);
    struct roll_call *leader = ranks[0].roll_call;
    roll_call_read_gpus(leader, reports);
    ck_assert(!reports[1].known);
    ck_assert(!*reports[1].address); // it is not served yet
    for (int r = 1; r < RANKS; r++) {
        served[r] = (struct gpu_report){.known = true, .temperature_celsius = (uint32_t)(50 + r), .xid_errors = 7};
        snprintf(served[r].trouble, sizeof served[r].trouble, "of rank %d", r);
        roll_call_serve_gpu(ranks[r].roll_call, read_gpu, &served[r]);
    }
    for (int r = 1; r < RANKS; r++) {
        await_temperature(leader, r, (uint32_t)(50 + r), reports);
        ck_assert(reports[r].known);
        ck_assert_uint_eq(reports[r].xid_errors, 7);
        ck_assert_str_eq(reports[r].trouble, served[r].trouble);
        ck_assert_uint_eq(strlen(reports[r].address), GPU_ADDRESS_MAX - 1);
    }
    check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0); // roll calls go on
    close_roll_calls(ranks);
}
END_TEST

// A rank reads nothing, like a stopped process. Its socket does not fill up, because the rank is asked only once.
START_TEST(a_silent_follower_is_asked_for_its_gpu_once)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served = {.temperature_celsius = 60}, reports[RANKS];
    open_roll_calls(ranks, 2);
    roll_call_serve_gpu(ranks[1].roll_call, read_gpu, &served);
    for (int i = 0; i < 2000; i++)
        roll_call_read_gpus(ranks[0].roll_call, reports);
    await_temperature(ranks[0].roll_call, 1, 60, reports);
    ck_assert_uint_eq(reports[2].temperature_celsius, 0);
    int asked_bytes = 0;
    ck_assert_int_eq(ioctl(wakeup_socket(ranks[2].wakeup, 0), FIONREAD, &asked_bytes), 0);
    ck_assert_int_gt(asked_bytes, 0);
    ck_assert_int_lt(asked_bytes, 2 * ROLL_CALL_SENTENCE_MAX); // one frame
    close_roll_calls(ranks);
}
END_TEST

static atomic_bool gpu_is_stuck;

static void read_stuck_gpu(void *arg, struct gpu_report *report)
{
    while (gpu_is_stuck)
        usleep(1000);
    read_gpu(arg, report);
}

// Reads reports until rank 1's numbers are known, or unknown if `first_known` is false, and rank 2's are known.
static void await_known(struct roll_call *leader, bool first_known, struct gpu_report *reports)
{
    do {
        roll_call_read_gpus(leader, reports);
        usleep(1000);
    } while (reports[1].known != first_known || !reports[2].known);
}

START_TEST(numbers_of_a_follower_that_stops_reporting_are_not_known_any_more)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served = {.known = true, .trouble = "a fan is broken"}, reports[RANKS];
    const int age_ms = roll_call_gpu_age_ms;
    roll_call_gpu_age_ms = 500;
    open_roll_calls(ranks, -1);
    roll_call_serve_gpu(ranks[1].roll_call, read_stuck_gpu, &served);
    roll_call_serve_gpu(ranks[2].roll_call, read_gpu, &served);
    await_known(ranks[0].roll_call, true, reports);
    gpu_is_stuck = true;
    await_known(ranks[0].roll_call, false, reports);
    ck_assert_str_eq(reports[1].trouble, "a fan is broken"); // the rank still has this trouble
    gpu_is_stuck = false;
    await_known(ranks[0].roll_call, true, reports);
    close_roll_calls(ranks);
    roll_call_gpu_age_ms = age_ms;
}
END_TEST

static void *call_often(void *arg)
{
    struct rank *r = arg;
    char sentence[ROLL_CALL_SENTENCE_MAX];
    for (int i = 0; i < 300; i++)
        if (roll_call_ask(r->roll_call, ENOUGH_MS, sentence) == ROLL_CALL_SILENT) r->status = STATUS_UNAVAILABLE;
    return NULL;
}

START_TEST(concurrent_roll_calls_are_all_answered)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, call_often, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
    close_roll_calls(ranks);
}
END_TEST

// ---- the watchdog ----

// Returns the log of a child process that calls run_child(). The child must end with exit code 1.
static char *last_words(void (*run_child)(void))
{
    static char log_text[4096];
    int fds[2], code;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        run_child();
        _exit(0);
    }
    close(fds[1]);
    ssize_t n;
    size_t length = 0;
    while (length < sizeof log_text - 1 && (n = read(fds[0], log_text + length, sizeof log_text - 1 - length)) > 0)
        length += (size_t)n;
    log_text[length] = 0;
    close(fds[0]);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFEXITED(code) && WEXITSTATUS(code) == 1, "ended with %d: %s", code, log_text);
    return log_text;
}

static int stuck_rows; // 0: the work may take any time
static atomic_uint_least64_t no_progress;

static void be_stuck(void)
{
    static struct rank ranks[RANKS];
    open_roll_calls(ranks, 2);
    struct watchdog *watchdog = watchdog_start(ranks[0].roll_call, &no_progress);
    for (int i = 0; i < 3; i++) { // no effect without a timeout, and between passes
        watchdog_enter_pass(watchdog, 1);
        watchdog_leave(watchdog);
    }
    watchdog_set_timeout(watchdog, 20);
    if (stuck_rows) {
        watchdog_enter_pass(watchdog, stuck_rows);
    } else {
        watchdog_enter_open_ended(watchdog);
    }
    for (;;)
        pause();
}

START_TEST(a_stuck_step_ends_the_process_and_names_the_missing_rank)
{
    stuck_rows = 7;
    char *words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "step_stuck rows=7 timeout_ms=20 reason=\"rank 2 (host ") != NULL, "%s", words);
    ck_assert_msg(strstr(words, ") does not answer\"") != NULL, "%s", words);
    stuck_rows = 0;
    words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "group_stuck reason=\"rank 2 (host ") != NULL, "%s", words);
}
END_TEST

START_TEST(a_watchdog_ignores_quick_steps_and_waits_while_all_answer)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    struct watchdog *watchdog = watchdog_start(ranks[1].roll_call, &no_progress);
    watchdog_set_timeout(watchdog, 60000);
    for (int i = 1; i < 1000; i++) {
        watchdog_enter_pass(watchdog, i);
        watchdog_leave(watchdog);
    }
    watchdog_set_timeout(watchdog, 1);
    watchdog_enter_open_ended(watchdog);
    for (int i = 0; i < 1000; i++)
        check_answer(ranks[0].roll_call, ENOUGH_MS, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
    watchdog_leave(watchdog);
    watchdog_stop(watchdog);
    close_roll_calls(ranks);
}
END_TEST

// Opens the model of a follower, which then runs no pass.
static void *open_and_hang(void *arg)
{
    open_rank(arg);
    while (pause() < 0)
        continue;
    return NULL;
}

static atomic_bool stepping;

static void *lead_without_follower(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    const struct ragged_batch batch = ragged_warm_up_batch();
    struct forward_result result;
    stepping = true;
    engine_forward(r->engine, &batch, &result);
    return NULL;
}

static char *stuck_dir;

static void lose_a_follower(void)
{
    static struct rank ranks[RANKS];
    for (int r = 0; r < 2; r++)
        ranks[r].dir = stuck_dir;
    start_ranks(ranks, 2, lead_without_follower, open_and_hang);
    while (!stepping || !ranks[0].comm->waits)
        usleep(1000);
    engine_set_step_timeout(ranks[0].engine, 20);
    for (;;)
        pause();
}

START_TEST(a_follower_that_runs_no_pass_is_named)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    stuck_dir = tiny_model_temp(&spec);
    char *words = last_words(lose_a_follower);
    ck_assert_msg(strstr(words, "timeout_ms=20 reason=\"all 2 ranks answer, the others wait for rank 1 (host ") != NULL,
                  "%s", words);
    tiny_model_remove(stuck_dir);
}
END_TEST

// ---- the block manager ----

START_TEST(allocated_blocks_are_distinct_and_return)
{
    enum { BLOCKS = 50, HOLDERS = 8 };
    struct block_manager *manager = block_manager_create(BLOCKS);
    int32_t held[HOLDERS][BLOCKS];
    int n[HOLDERS] = {0}, owner[BLOCKS];
    memset(owner, -1, sizeof owner);
    uint32_t random = 12345;
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        int h = (int)(random >> 8) % HOLDERS, count = (int)(random >> 16) % 12;
        int before = block_manager_n_free(manager);
        if (n[h]) {
            for (int i = 0; i < n[h]; i++)
                owner[held[h][i]] = -1;
            block_manager_release(manager, held[h], n[h]);
            ck_assert_int_eq(block_manager_n_free(manager), before + n[h]);
            n[h] = 0;
        } else if (block_manager_allocate(manager, count, held[h])) {
            n[h] = count;
            ck_assert_int_eq(block_manager_n_free(manager), before - count);
            for (int i = 0; i < count; i++) {
                ck_assert_int_ge(held[h][i], 0);
                ck_assert_int_lt(held[h][i], BLOCKS);
                ck_assert_int_lt(owner[held[h][i]], 0);
                owner[held[h][i]] = h;
            }
        } else {
            ck_assert_int_lt(before, count);
            ck_assert_int_eq(block_manager_n_free(manager), before);
        }
    }
    for (int h = 0; h < HOLDERS; h++)
        block_manager_release(manager, held[h], n[h]);
    ck_assert_int_eq(block_manager_n_free(manager), block_manager_size(manager));
    block_manager_free(manager);
    ck_assert_int_eq(kv_blocks_for(0), 0);
    ck_assert_int_eq(kv_blocks_for(1), 1);
    ck_assert_int_eq(kv_blocks_for(16), 1);
    ck_assert_int_eq(kv_blocks_for(17), 2);
}
END_TEST

// The sequences have few different tokens, so that many share prefixes. Some have gaps in their positions. The test
// remembers the content of each block. A found block must have the content that was asked for, however many blocks were
// evicted meanwhile.
START_TEST(a_found_block_holds_what_was_asked_for)
{
    enum { BLOCKS = 40, HOLDERS = 6, LONGEST = 8 };
    struct holder {
        struct kv_key keys[LONGEST];
        int32_t blocks[LONGEST];
        uint64_t content[LONGEST]; // hashes of the chain up to each block
        int n, published;
        kv_chain chain;
    };
    static struct holder holders[HOLDERS];
    memset(holders, 0, sizeof holders);
    uint64_t memory[BLOCKS] = {0};
    int users[BLOCKS] = {0}, reused = 0, computed = 0, adopted = 0;
    struct block_manager *manager = block_manager_create(BLOCKS);
    uint32_t random = (uint32_t)_i + 1;
    for (int step = 0; step < 30000; step++) {
        random = random * 1664525 + 1013904223;
        struct holder *h = &holders[(random >> 8) % HOLDERS];
        if (h->n && random >> 30) { // continues: publishes its next block
            if (h->published == h->n) continue;
            int32_t *block = &h->blocks[h->published], before = *block;
            h->keys[h->published].before = h->chain;
            *block = block_manager_publish(manager, &h->keys[h->published], before, &h->chain);
            ck_assert_uint_eq(memory[*block], h->content[h->published]);
            adopted += *block != before;
            users[before]--;
            users[*block]++;
            h->published++;
        } else if (h->n) { // ends
            for (int i = 0; i < h->n; i++)
                users[h->blocks[i]]--;
            block_manager_release(manager, h->blocks, h->n);
            h->n = 0;
        } else { // begins
            int n = 1 + (int)(random >> 16) % LONGEST, position = 0;
            uint64_t content = 7;
            for (int i = 0; i < n; i++) {
                random = random * 1664525 + 1013904223;
                int token = (int)(random >> 20) % 2, gap = (random >> 24) % 8 == 0;
                for (int t = 0; t < KV_BLOCK_TOKENS; t++) {
                    h->keys[i].token[t] = token;
                    h->keys[i].position[t] = position++;
                }
                h->keys[i].position[KV_BLOCK_TOKENS - 1] = position += gap;
                content = (content * 31 + (uint64_t)token * 2 + (uint64_t)gap + 1) * 0x9e3779b97f4a7c15u;
                h->content[i] = content;
            }
            kv_chain chain = 0;
            int found = 0;
            for (; found < n; found++) {
                h->keys[found].before = chain;
                int32_t block = block_manager_lookup(manager, &h->keys[found], &chain);
                if (block < 0) break;
                ck_assert_uint_eq(memory[block], h->content[found]);
                block_manager_retain(manager, block);
                h->blocks[found] = block;
                users[block]++;
            }
            int before = block_manager_n_free(manager);
            if (!block_manager_allocate(manager, n - found, h->blocks + found)) {
                ck_assert_int_lt(before, n - found);
                for (int i = 0; i < found; i++)
                    users[h->blocks[i]]--;
                block_manager_release(manager, h->blocks, found);
                continue;
            }
            for (int i = found; i < n; i++) {
                ck_assert_int_eq(users[h->blocks[i]]++, 0);
                memory[h->blocks[i]] = h->content[i]; // computed immediately
            }
            h->n = n;
            h->published = found;
            h->chain = chain;
            reused += found;
            computed += n - found;
        }
        int held = 0;
        for (int b = 0; b < BLOCKS; b++)
            held += users[b] > 0;
        ck_assert_int_eq(block_manager_n_free(manager), BLOCKS - held);
    }
    for (int i = 0; i < HOLDERS; i++)
        block_manager_release(manager, holders[i].blocks, holders[i].n);
    ck_assert_int_gt(reused, 1000);
    ck_assert_int_gt(computed, 1000);
    ck_assert_int_gt(adopted, 10);
    block_manager_free(manager);
}
END_TEST

START_TEST(the_end_of_the_chain_released_first_is_evicted_first)
{
    struct block_manager *manager = block_manager_create(6);
    int32_t old[3], young[3], more[4];
    struct kv_key keys[6] = {0};
    kv_chain chain = 0;
    block_manager_allocate(manager, 3, old);
    block_manager_allocate(manager, 3, young);
    for (int i = 0; i < 6; i++) {
        if (i == 3) chain = 0;
        keys[i].token[0] = i;
        keys[i].before = chain;
        block_manager_publish(manager, &keys[i], i < 3 ? old[i] : young[i - 3], &chain);
    }
    block_manager_release(manager, old, 3);
    block_manager_release(manager, young, 3);
    ck_assert_int_eq(block_manager_n_free(manager), 6);
    for (int n = 1; n <= 4; n++) { // block by block: the older chain from its end, then the younger one
        ck_assert(block_manager_allocate(manager, 1, more + n - 1));
        static const bool left[][6] = {{1, 1, 0, 1, 1, 1}, {1, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 0}};
        for (int i = 0; i < 6; i++)
            ck_assert_int_eq(block_manager_lookup(manager, &keys[i], &chain) >= 0, left[n - 1][i]);
    }
    block_manager_release(manager, more, 4);
    block_manager_free(manager);
}
END_TEST

START_TEST(a_lookup_continues_where_the_last_one_ended)
{
    enum { BLOCKS = 4, ROWS = BLOCKS * KV_BLOCK_TOKENS + 1 };
    struct block_manager *manager = block_manager_create(BLOCKS);
    static int32_t token[ROWS];
    struct prefix_rows rows = {.token = token, .n = ROWS};
    struct prefix_match match = {0};
    int32_t blocks[BLOCKS];
    int published = 0;
    kv_chain chain = 0;
    ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), 0);
    block_manager_allocate(manager, BLOCKS, blocks);
    for (int n = 0; n <= BLOCKS; n++) {
        prefix_cache_publish(manager, &rows, n * KV_BLOCK_TOKENS, blocks, &published, &chain);
        ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), n);
    }
    block_manager_release(manager, blocks, BLOCKS);
    for (int n = BLOCKS - 1; n >= 0; n--) { // evicted from the end
        int32_t other;
        ck_assert(block_manager_allocate(manager, 1, &other));
        if (n % 2 == 0) ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), n);
        blocks[n] = other;
    }
    // The same blocks published with other tokens are not found.
    static int32_t different[ROWS] = {7};
    struct prefix_rows other = {.token = different, .n = ROWS};
    published = 0;
    chain = 0;
    prefix_cache_publish(manager, &other, ROWS - 1, blocks, &published, &chain);
    ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), 0);
    block_manager_release(manager, blocks, BLOCKS);
    block_manager_free(manager);
}
END_TEST

SUITE("engine")
{
    log_setup("test", LOG_ERROR);
    TIMEOUT(30);
    LOOP(a_group_computes_what_its_model_computes, 0, 2);
    TEST(one_rank_needs_no_followers);
    TEST(one_failing_rank_fails_all_and_reports_alone);
    LOOP(a_rank_that_differs_from_the_leader_fails_the_group, 0, DIFFERENCES);
    TEST(every_ring_arrives_and_so_does_the_end);
    TEST(a_roll_call_names_the_rank_that_others_wait_for);
    LOOP(a_roll_call_names_the_rank_that_does_not_answer, 0, RANKS);
    LOOP(a_roll_call_names_the_rank_that_is_gone, 0, RANKS);
    TEST(concurrent_roll_calls_are_all_answered);
    TEST(the_leader_reads_what_followers_know_of_their_gpus);
    TEST(a_silent_follower_is_asked_for_its_gpu_once);
    TEST(numbers_of_a_follower_that_stops_reporting_are_not_known_any_more);
    TEST(a_stuck_step_ends_the_process_and_names_the_missing_rank);
    TEST(a_watchdog_ignores_quick_steps_and_waits_while_all_answer);
    TEST(a_follower_that_runs_no_pass_is_named);
    TEST(allocated_blocks_are_distinct_and_return);
    LOOP(a_found_block_holds_what_was_asked_for, 0, 3);
    TEST(the_end_of_the_chain_released_first_is_evicted_first);
    TEST(a_lookup_continues_where_the_last_one_ended);
}
