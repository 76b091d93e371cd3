// SPDX-License-Identifier: Apache-2.0
// The step protocol with ranks as threads of one process: agreement on failures, release, death of the leader, roll
// calls, the watchdog; and the pool of KV blocks. check_engine_mpi does it again between processes.
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/doorbell.h"
#include "engine/engine.h"
#include "engine/kv_prefix.h"
#include "engine/roll.h"
#include "engine/watchdog.h"
#include "tests/forward.h"
#include "tests/tiny_model.h"

enum { RANKS = 3 };

// ---- ranks as threads ----

struct rank {
    pthread_t thread;
    struct comm *comm;
    const char *dir;
    struct engine *engine;
    struct roll *roll;
    bool mute;             // holds the line and answers no roll call, like a process that is stopped
    struct doorbell *bell; // its line
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

static struct model_options options_for(const char *dir)
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
    struct model_options options = options_for(r->dir);
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

// Of a backend that draws tokens: tokens beside logits, then the likeliest alone, for which no rank gathers logits.
static void ask_for_tokens(struct ragged_batch *batch, int step)
{
    static struct row_sampling draws[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        draws[i] = (struct row_sampling){
            .uniform = 0.05 * i, .top_p = 0.9, .inverse_temperature = i % 2 && step < 2 ? 0.5f : 0};
    batch->sampling = draws;
    batch->tokens_only = step == 2;
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
        ck_assert_int_eq(!mine.logits, f->batch.tokens_only);
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
    struct model_options options = options_for(r->dir);
    ranks_open(&alone, &options, r->comm->size);
    struct forward *f = calloc(1, sizeof *f);
    steps(r->engine, &alone, f);
    free(f);
    ranks_close(&alone);
    engine_close(r->engine);
    return NULL;
}

START_TEST(a_group_steps_like_its_model_and_lets_go)
{
    backend = _i ? "reference" : "cpu"; // the former draws tokens
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

START_TEST(one_failing_rank_fails_all_and_alone_says_why)
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

    for (int r = 0; r < RANKS; r++) // a mistake they all share is told once
        ranks[r].dir = "/nowhere/model";
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(ranks[r].message[0] != 0, r == 0);
    tiny_model_remove(dir);
}
END_TEST

// ---- the doorbell ----

static void *ring_and_die(void *arg)
{
    struct rank *r = arg;
    struct doorbell *bell;
    r->status = doorbell_open(r->comm, &bell);
    if (r->status != STATUS_OK) return NULL;
    r->status = doorbell_agree(bell, STATUS_OK);
    for (uint32_t i = 0; i < 1000 && r->status == STATUS_OK; i++)
        r->status = doorbell_ring(bell, (struct ring){i, 2 * i, 0});
    doorbell_close(bell); // as when the process ends
    return NULL;
}

static void *count_rings(void *arg)
{
    struct rank *r = arg;
    struct doorbell *bell;
    r->status = doorbell_open(r->comm, &bell);
    if (r->status != STATUS_OK) return NULL;
    r->status = doorbell_agree(bell, STATUS_OK);
    struct ring ring = {0};
    uint32_t n = 0;
    while (r->status == STATUS_OK && (r->status = doorbell_wait(bell, &ring)) == STATUS_OK) {
        if (ring.kind != n || ring.size_bytes != 2 * n) break;
        n++;
    }
    keep_message(r);
    if (n != 1000) r->status = STATUS_DATA;
    doorbell_close(bell);
    return NULL;
}

START_TEST(every_ring_is_heard_and_so_is_the_end)
{
    struct rank ranks[RANKS] = {0};
    start_ranks(ranks, RANKS, ring_and_die, count_rings);
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

static void *open_roll(void *arg)
{
    struct rank *r = arg;
    r->status = r->mute ? doorbell_open(r->comm, &r->bell) : roll_open(r->comm, &r->roll);
    return NULL;
}

// From here on the test's own thread speaks for all ranks.
static void open_rolls(struct rank *ranks, int mute)
{
    if (mute >= 0) ranks[mute].mute = true;
    start_ranks(ranks, RANKS, open_roll, open_roll);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
}

static void close_rolls(struct rank *ranks)
{
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].roll) roll_close(ranks[r].roll);
        if (ranks[r].bell) doorbell_close(ranks[r].bell);
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

static void says(struct roll *roll, int patience_ms, enum roll_result result, const char *format, int rank)
{
    char sentence[ROLL_SENTENCE_MAX], expected[ROLL_SENTENCE_MAX];
    ck_assert_int_eq(roll_call(roll, patience_ms, sentence), result);
    snprintf(expected, sizeof expected, format, name_of(rank));
    ck_assert_str_eq(sentence, expected);
}

static void all_say(const struct rank *ranks, enum roll_result result, const char *format, int rank)
{
    for (int r = 0; r < RANKS; r++)
        says(ranks[r].roll, ENOUGH_MS, result, format, rank);
}

START_TEST(a_roll_call_tells_whom_the_others_wait_for)
{
    struct rank ranks[RANKS] = {0};
    open_rolls(ranks, -1);
    for (int pass = 0; pass < 3; pass++) { // the first is the opening
        for (int r = 0; r < RANKS; r++)
            roll_enter(ranks[r].roll);
        all_say(ranks, ROLL_COMPLETE, "all 3 ranks answer and are at work", 0);
        for (int late = 0; late < RANKS; late++) {
            for (int r = 0; r < RANKS; r++)
                ranks[r].comm->waits = r != late;
            all_say(ranks, ROLL_AWAITED, "all 3 ranks answer, the others wait for %s", late);
        }
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = true;
        all_say(ranks, ROLL_COMPLETE, "all 3 ranks answer and wait for each other: a device or a link hangs", 0);
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = false;
        roll_leave(ranks[1].roll); // is done with it, or has not begun the next
        ranks[0].comm->waits = true;
        all_say(ranks, ROLL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_leave(ranks[0].roll);
        roll_leave(ranks[2].roll);
        roll_enter(ranks[0].roll);
        roll_enter(ranks[1].roll);
        ranks[1].comm->waits = true;
        all_say(ranks, ROLL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_leave(ranks[0].roll);
        roll_leave(ranks[1].roll);
        roll_enter(ranks[2].roll);
        roll_leave(ranks[2].roll);
        ranks[0].comm->waits = ranks[1].comm->waits = false;
    }
    close_rolls(ranks);
}
END_TEST

START_TEST(who_does_not_answer_a_roll_call_is_named)
{
    struct rank ranks[RANKS] = {0};
    open_rolls(ranks, _i);
    for (int r = 0; r < RANKS; r++)
        if (r != _i) says(ranks[r].roll, PATIENCE_MS, ROLL_SILENT, "%s does not answer", _i);
    close_rolls(ranks);
}
END_TEST

START_TEST(who_is_gone_is_named)
{
    struct rank ranks[RANKS] = {0};
    open_rolls(ranks, -1);
    roll_close(ranks[_i].roll);
    ranks[_i].roll = NULL;
    for (int r = 0; r < RANKS; r++)
        if (r != _i) says(ranks[r].roll, ENOUGH_MS, ROLL_SILENT, "%s is gone", _i);
    close_rolls(ranks);
}
END_TEST

static void *call_often(void *arg)
{
    struct rank *r = arg;
    char sentence[ROLL_SENTENCE_MAX];
    for (int i = 0; i < 300; i++)
        if (roll_call(r->roll, ENOUGH_MS, sentence) == ROLL_SILENT) r->status = STATUS_UNAVAILABLE;
    return NULL;
}

START_TEST(roll_calls_at_once_are_all_answered)
{
    struct rank ranks[RANKS] = {0};
    open_rolls(ranks, -1);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, call_often, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
    close_rolls(ranks);
}
END_TEST

// ---- the watchdog ----

// What a process logs that does `bad` and then ends with 1, as it must.
static char *last_words(void (*bad)(void))
{
    static char text[4096];
    int fds[2], code;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        bad();
        _exit(0);
    }
    close(fds[1]);
    ssize_t n;
    size_t length = 0;
    while (length < sizeof text - 1 && (n = read(fds[0], text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = 0;
    close(fds[0]);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFEXITED(code) && WEXITSTATUS(code) == 1, "ended with %d: %s", code, text);
    return text;
}

static int stuck_rows;

static void be_stuck(void)
{
    static struct rank ranks[RANKS];
    open_rolls(ranks, 2);
    struct watchdog *dog = watchdog_start(ranks[0].roll, 0);
    for (int i = 0; i < 3; i++) { // without a limit, and between steps, it keeps still
        watchdog_enter(dog, 1);
        watchdog_leave(dog);
    }
    watchdog_set_timeout(dog, 20);
    watchdog_enter(dog, stuck_rows);
    for (;;)
        pause();
}

START_TEST(a_stuck_step_ends_the_process_and_names_who_is_missing)
{
    stuck_rows = 7;
    char *words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "step_stuck rows=7 limit_ms=20: rank 2 (host ") != NULL, "%s", words);
    ck_assert_msg(strstr(words, ") does not answer; ending the group") != NULL, "%s", words);
    stuck_rows = 0;
    words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "group_stuck: rank 2 (host ") != NULL, "%s", words);
}
END_TEST

START_TEST(a_watchdog_lets_quick_steps_pass_and_waits_while_all_answer)
{
    struct rank ranks[RANKS] = {0};
    open_rolls(ranks, -1);
    struct watchdog *dog = watchdog_start(ranks[1].roll, 60000);
    for (int i = 1; i < 1000; i++) {
        watchdog_enter(dog, i);
        watchdog_leave(dog);
    }
    watchdog_set_timeout(dog, 1);
    watchdog_enter(dog, 0);
    for (int i = 0; i < 1000; i++)
        says(ranks[0].roll, ENOUGH_MS, ROLL_COMPLETE, "all 3 ranks answer and are at work", 0);
    watchdog_leave(dog);
    watchdog_stop(dog);
    close_rolls(ranks);
}
END_TEST

// A follower that opened and then does not follow.
static void *open_and_hang(void *arg)
{
    open_rank(arg);
    while (pause() < 0)
        continue;
    return NULL;
}

static atomic_bool stepping;

static void *lead_in_vain(void *arg)
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
    start_ranks(ranks, 2, lead_in_vain, open_and_hang);
    while (!stepping || !ranks[0].comm->waits)
        usleep(1000);
    engine_set_step_timeout(ranks[0].engine, 20);
    for (;;)
        pause();
}

START_TEST(a_follower_that_does_not_come_is_named)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    stuck_dir = tiny_model_temp(&spec);
    char *words = last_words(lose_a_follower);
    ck_assert_msg(strstr(words, "limit_ms=20: all 2 ranks answer, the others wait for rank 1 (host ") != NULL, "%s",
                  words);
    tiny_model_remove(stuck_dir);
}
END_TEST

// ---- the pool ----

START_TEST(blocks_are_held_once_and_come_back)
{
    enum { BLOCKS = 50, HOLDERS = 8 };
    struct block_manager *pool = block_manager_create(BLOCKS);
    int32_t held[HOLDERS][BLOCKS];
    int n[HOLDERS] = {0}, owner[BLOCKS];
    memset(owner, -1, sizeof owner);
    uint32_t random = 12345;
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        int h = (int)(random >> 8) % HOLDERS, count = (int)(random >> 16) % 12;
        int before = block_manager_n_free(pool);
        if (n[h]) {
            for (int i = 0; i < n[h]; i++)
                owner[held[h][i]] = -1;
            block_manager_release(pool, held[h], n[h]);
            ck_assert_int_eq(block_manager_n_free(pool), before + n[h]);
            n[h] = 0;
        } else if (block_manager_allocate(pool, count, held[h])) {
            n[h] = count;
            ck_assert_int_eq(block_manager_n_free(pool), before - count);
            for (int i = 0; i < count; i++) {
                ck_assert(held[h][i] >= 0 && held[h][i] < BLOCKS && owner[held[h][i]] < 0);
                owner[held[h][i]] = h;
            }
        } else {
            ck_assert_int_lt(before, count);
            ck_assert_int_eq(block_manager_n_free(pool), before);
        }
    }
    for (int h = 0; h < HOLDERS; h++)
        block_manager_release(pool, held[h], n[h]);
    ck_assert_int_eq(block_manager_n_free(pool), block_manager_size(pool));
    block_manager_free(pool);
    ck_assert(kv_blocks_for(0) == 0 && kv_blocks_for(1) == 1 && kv_blocks_for(16) == 1 && kv_blocks_for(17) == 2);
}
END_TEST

// Sequences over few tokens, so that many begin alike, some of them with gaps in their positions. What was computed
// into a block is remembered by the test: a block that is found must hold just that, whatever was forgotten meanwhile.
START_TEST(a_found_block_holds_what_was_asked_for)
{
    enum { BLOCKS = 40, HOLDERS = 6, LONGEST = 8 };
    struct holder {
        struct kv_key keys[LONGEST];
        int32_t blocks[LONGEST];
        uint64_t content[LONGEST]; // of the chain up to each
        int n, published;
        kv_chain chain;
    };
    static struct holder holders[HOLDERS];
    memset(holders, 0, sizeof holders);
    uint64_t memory[BLOCKS] = {0};
    int users[BLOCKS] = {0}, reused = 0, computed = 0, adopted = 0;
    struct block_manager *pool = block_manager_create(BLOCKS);
    uint32_t random = (uint32_t)_i + 1;
    for (int step = 0; step < 30000; step++) {
        random = random * 1664525 + 1013904223;
        struct holder *h = &holders[(random >> 8) % HOLDERS];
        if (h->n && random >> 30) { // goes on: publishes its next block
            if (h->published == h->n) continue;
            int32_t *block = &h->blocks[h->published], before = *block;
            h->keys[h->published].before = h->chain;
            *block = block_manager_publish(pool, &h->keys[h->published], before, &h->chain);
            ck_assert_uint_eq(memory[*block], h->content[h->published]);
            adopted += *block != before;
            users[before]--;
            users[*block]++;
            h->published++;
        } else if (h->n) { // ends
            for (int i = 0; i < h->n; i++)
                users[h->blocks[i]]--;
            block_manager_release(pool, h->blocks, h->n);
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
                int32_t block = block_manager_lookup(pool, &h->keys[found], &chain);
                if (block < 0) break;
                ck_assert_uint_eq(memory[block], h->content[found]);
                block_manager_retain(pool, block);
                h->blocks[found] = block;
                users[block]++;
            }
            int before = block_manager_n_free(pool);
            if (!block_manager_allocate(pool, n - found, h->blocks + found)) {
                ck_assert_int_lt(before, n - found);
                for (int i = 0; i < found; i++)
                    users[h->blocks[i]]--;
                block_manager_release(pool, h->blocks, found);
                continue;
            }
            for (int i = found; i < n; i++) {
                ck_assert_int_eq(users[h->blocks[i]]++, 0);
                memory[h->blocks[i]] = h->content[i]; // computed at once
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
        ck_assert_int_eq(block_manager_n_free(pool), BLOCKS - held);
    }
    for (int i = 0; i < HOLDERS; i++)
        block_manager_release(pool, holders[i].blocks, holders[i].n);
    ck_assert(reused > 1000 && computed > 1000 && adopted > 10);
    block_manager_free(pool);
}
END_TEST

START_TEST(the_end_of_the_chain_given_back_first_is_forgotten_first)
{
    struct block_manager *pool = block_manager_create(6);
    int32_t old[3], young[3], more[4];
    struct kv_key keys[6] = {0};
    kv_chain chain = 0;
    block_manager_allocate(pool, 3, old);
    block_manager_allocate(pool, 3, young);
    for (int i = 0; i < 6; i++) {
        if (i == 3) chain = 0;
        keys[i].token[0] = i;
        keys[i].before = chain;
        block_manager_publish(pool, &keys[i], i < 3 ? old[i] : young[i - 3], &chain);
    }
    block_manager_release(pool, old, 3);
    block_manager_release(pool, young, 3);
    ck_assert_int_eq(block_manager_n_free(pool), 6);
    for (int n = 1; n <= 4; n++) { // block by block: the old chain from its end, then the young one
        ck_assert(block_manager_allocate(pool, 1, more + n - 1));
        static const bool left[][6] = {{1, 1, 0, 1, 1, 1}, {1, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 0}};
        for (int i = 0; i < 6; i++)
            ck_assert_int_eq(block_manager_lookup(pool, &keys[i], &chain) >= 0, left[n - 1][i]);
    }
    block_manager_release(pool, more, 4);
    block_manager_free(pool);
}
END_TEST

START_TEST(what_is_known_is_looked_up_from_where_it_was_left)
{
    enum { BLOCKS = 4, ROWS = BLOCKS * KV_BLOCK_TOKENS + 1 };
    struct block_manager *pool = block_manager_create(BLOCKS);
    static int32_t token[ROWS];
    struct kv_text text = {.token = token, .n = ROWS};
    struct kv_known known = {0};
    int32_t blocks[BLOCKS];
    int published = 0;
    kv_chain chain = 0;
    ck_assert_int_eq(kv_prefix_look(pool, &text, &known), 0);
    block_manager_allocate(pool, BLOCKS, blocks);
    for (int n = 0; n <= BLOCKS; n++) {
        kv_prefix_publish(pool, &text, n * KV_BLOCK_TOKENS, blocks, &published, &chain);
        ck_assert_int_eq(kv_prefix_look(pool, &text, &known), n);
    }
    block_manager_release(pool, blocks, BLOCKS);
    for (int n = BLOCKS - 1; n >= 0; n--) { // forgotten from the end
        int32_t other;
        ck_assert(block_manager_allocate(pool, 1, &other));
        if (n % 2 == 0) ck_assert_int_eq(kv_prefix_look(pool, &text, &known), n);
        blocks[n] = other;
    }
    // The same block, of another text: the look is not fooled.
    static int32_t different[ROWS] = {7};
    struct kv_text other = {.token = different, .n = ROWS};
    published = 0;
    chain = 0;
    kv_prefix_publish(pool, &other, ROWS - 1, blocks, &published, &chain);
    ck_assert_int_eq(kv_prefix_look(pool, &text, &known), 0);
    block_manager_release(pool, blocks, BLOCKS);
    block_manager_free(pool);
}
END_TEST

int main(void)
{
    log_setup("test", LOG_ERROR);
    Suite *suite = suite_create("engine");
    TCase *tcase = tcase_create("engine");
    tcase_set_timeout(tcase, 30);
    tcase_add_loop_test(tcase, a_group_steps_like_its_model_and_lets_go, 0, 2);
    tcase_add_test(tcase, one_rank_needs_no_followers);
    tcase_add_test(tcase, one_failing_rank_fails_all_and_alone_says_why);
    tcase_add_test(tcase, every_ring_is_heard_and_so_is_the_end);
    tcase_add_test(tcase, a_roll_call_tells_whom_the_others_wait_for);
    tcase_add_loop_test(tcase, who_does_not_answer_a_roll_call_is_named, 0, RANKS);
    tcase_add_loop_test(tcase, who_is_gone_is_named, 0, RANKS);
    tcase_add_test(tcase, roll_calls_at_once_are_all_answered);
    tcase_add_test(tcase, a_stuck_step_ends_the_process_and_names_who_is_missing);
    tcase_add_test(tcase, a_watchdog_lets_quick_steps_pass_and_waits_while_all_answer);
    tcase_add_test(tcase, a_follower_that_does_not_come_is_named);
    tcase_add_test(tcase, blocks_are_held_once_and_come_back);
    tcase_add_loop_test(tcase, a_found_block_holds_what_was_asked_for, 0, 3);
    tcase_add_test(tcase, the_end_of_the_chain_given_back_first_is_forgotten_first);
    tcase_add_test(tcase, what_is_known_is_looked_up_from_where_it_was_left);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
