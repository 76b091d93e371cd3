// SPDX-License-Identifier: Apache-2.0
// router/sched/prefix_chain and prefix_index: chains, and the records of nodes, against a model with one list of blocks
// for each node.
#include "router/sched/prefix_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/node.h"
#include "router/sched/prefix_tails.h"
#include "tests/heap.h"
#include "tests/suite.h"

static const struct hash_key key = {1, 2};

static uint32_t random_state = 5;
static int random_below(int n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (int)((random_state >> 8) % (uint32_t)n);
}

// Holds and releases the chain of a request.
static void use(struct prefix_record *record, const uint64_t *chain, int n)
{
    prefix_record_release(record, prefix_record_hold(record, chain, n));
}

START_TEST(chains_differ_from_the_first_different_token_or_position_on)
{
    enum { TOKENS = 200 };
    int32_t a[TOKENS], b[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        a[i] = b[i] = i % 50;
    b[70] = 99;
    const struct token_range whole = {0, TOKENS - 1}, gaps[2] = {{0, 39}, {48, TOKENS - 1}}, none = {0, 14};
    uint64_t *one, *same, *other, *pruned, *empty;
    ck_assert_int_eq(prefix_chain_make(&key, 0, a, &whole, 1, &one), 12);
    ck_assert_int_eq(prefix_chain_make(&key, 0, a, &whole, 1, &same), 12);
    ck_assert_int_eq(prefix_chain_make(&key, 0, b, &whole, 1, &other), 12);
    ck_assert_int_eq(prefix_chain_make(&key, 0, a, gaps, 2, &pruned), 12); // 192 tokens
    ck_assert_int_eq(prefix_chain_make(&key, 0, a, &none, 1, &empty), 0);
    ck_assert_ptr_null(empty);
    struct prefix_index *index = prefix_index_create();
    struct prefix_record *record = prefix_record_open(index, NULL, 100);
    ck_assert_int_eq(prefix_record_match(record, one, 12), 0);
    use(record, one, 12);
    ck_assert_int_eq(prefix_record_match(record, same, 12), 12);
    ck_assert_int_eq(prefix_record_match(record, same, 5), 5);
    ck_assert_int_eq(prefix_record_match(record, other, 12), 4);  // token 70 is in the fifth block
    ck_assert_int_eq(prefix_record_match(record, pruned, 12), 2); // the third holds tokens 32 to 39 and 48 to 55
    ck_assert_int_eq(prefix_record_match(record, NULL, 0), 0);
    use(record, NULL, 0);
    prefix_record_close(record);
    prefix_record_close(NULL);
    prefix_index_free(index);
    prefix_index_free(NULL);
    free(one);
    free(same);
    free(other);
    free(pruned);
}
END_TEST

// --- the model: the blocks of one node in the order of eviction; blocks that requests hold are at the end

enum { CAPACITY = 50, CHAINS = 30, CHAIN = 40, NODES = 5, RUNS = 6, STEPS = 10000 };

struct model_block {
    uint64_t hash;
    int holds;
};

struct model {
    struct prefix_record *record;
    int node; // its address names the node
    struct model_block block[CAPACITY + CHAIN];
    int n;
    struct {
        const struct prefix_run *run;
        const uint64_t *chain;
    } held[RUNS];
};

static uint64_t chains[CHAINS][CHAIN];

static int model_find(const struct model *model, uint64_t hash)
{
    int at = model->n - 1;
    while (at >= 0 && model->block[at].hash != hash)
        at--;
    return at;
}

static void model_move(struct model *model, int at, int to)
{
    struct model_block block = model->block[at];
    memmove(model->block + at, model->block + at + 1, (size_t)(model->n - at - 1) * sizeof block);
    memmove(model->block + to + 1, model->block + to, (size_t)(model->n - to - 1) * sizeof block);
    model->block[to] = block;
}

static int model_held(const struct model *model)
{
    int n = 0;
    while (n < model->n && model->block[model->n - 1 - n].holds)
        n++;
    return n;
}

// Returns the number of blocks that are held.
static int model_hold(struct model *model, const uint64_t *chain, int n)
{
    int run = 0;
    for (; run < n; run++) {
        int at = model_find(model, chain[run]);
        if ((at < 0 || !model->block[at].holds) && model_held(model) == CAPACITY) break;
        if (at < 0) model->block[at = model->n++] = (struct model_block){chain[run], 0};
        model->block[at].holds++;
        model_move(model, at, model->n - 1);
    }
    for (; model->n > CAPACITY; model->n--)
        memmove(model->block, model->block + 1, (size_t)(model->n - 1) * sizeof *model->block);
    return run;
}

static void model_release(struct model *model, const uint64_t *chain, int n)
{
    while (n) {
        int at = model_find(model, chain[--n]), held = model_held(model);
        if (--model->block[at].holds == 0) model_move(model, at, model->n - held); // the youngest that is not held
    }
}

static int model_match(const struct model *model, const uint64_t *chain, int n, bool held)
{
    int match = 0, at;
    while (match < n && (at = model_find(model, chain[match])) >= 0 && (!held || model->block[at].holds))
        match++;
    return match;
}

static void check_record(const struct model *model, const uint64_t *chain, int n)
{
    ck_assert_int_eq(prefix_record_match(model->record, chain, n), model_match(model, chain, n, false));
    ck_assert_int_eq(prefix_record_held(model->record, chain, n), model_match(model, chain, n, true));
    ck_assert_int_eq(prefix_record_blocks_held(model->record), model_held(model));
}

static void check_lookup(const struct prefix_index *index, const struct model *models, const uint64_t *chain, int n)
{
    struct prefix_hit hits[NODES];
    int n_hits = prefix_index_lookup(index, chain, n, hits, NODES), with_blocks = 0, held = 0;
    for (int m = 0; m < NODES; m++) {
        int blocks = model_match(&models[m], chain, n, false), here = model_match(&models[m], chain, n, true);
        if (here > held) held = here;
        with_blocks += blocks > 0;
        for (int i = 0; i < n_hits; i++)
            if (hits[i].node == (const void *)&models[m].node) ck_assert_int_eq(hits[i].blocks, blocks);
    }
    ck_assert_int_eq(n_hits, with_blocks);
    ck_assert_int_eq(prefix_index_held(index, chain, n), held);
    for (int i = 1; i < n_hits; i++) {
        ck_assert_int_le(hits[i].blocks, hits[i - 1].blocks);
        ck_assert_ptr_ne(hits[i].node, hits[i - 1].node);
    }
    struct prefix_hit best;
    ck_assert_int_eq(prefix_index_lookup(index, chain, n, &best, 1), n_hits > 0);
}

static void model_open(struct model *model, struct prefix_index *index)
{
    *model = (struct model){.n = 0};
    model->record = prefix_record_open(index, (void *)&model->node, CAPACITY);
}

static void model_close(struct model *model)
{
    for (int k = 0; k < RUNS; k++)
        prefix_record_release(model->record, model->held[k].run);
    prefix_record_close(model->record);
}

static void model_toggle(struct model *model, int k, const uint64_t *chain, int n)
{
    if (model->held[k].run) {
        int run = prefix_run_blocks(model->held[k].run);
        prefix_record_release(model->record, model->held[k].run);
        model_release(model, model->held[k].chain, run);
        model->held[k].run = NULL;
        return;
    }
    model->held[k].run = prefix_record_hold(model->record, chain, n);
    model->held[k].chain = chain;
    ck_assert_int_eq(prefix_run_blocks(model->held[k].run), model_hold(model, chain, n));
}

// Requests arrive, stay and end on five nodes that share one index. Their prompts share prefixes. Sometimes a node is
// lost and another replaces it.
START_TEST(records_hold_what_requests_use_and_evict_the_rest_from_the_end_of_the_oldest_chain)
{
    struct prefix_index *index = prefix_index_create();
    static struct model models[NODES];
    for (int c = 0; c < CHAINS; c++) // each shares a prefix with the one before it
        for (int i = 0; i < CHAIN; i++)
            chains[c][i] = c && i < 3 * (c % 5) ? chains[c - 1][i] : (uint64_t)(c * 1000 + i + 1) * 64;
    for (int m = 0; m < NODES; m++)
        model_open(&models[m], index);
    for (int step = 0; step < STEPS; step++) {
        struct model *model = &models[random_below(NODES)];
        const uint64_t *chain = chains[random_below(CHAINS)];
        int n = 1 + random_below(CHAIN);
        check_record(model, chain, n);
        if (step % 4 == 0) check_lookup(index, models, chain, n);
        if (random_below(500) == 0) {
            model_close(model);
            model_open(model, index);
        }
        int k = random_below(RUNS);
        model_toggle(model, k, chain, n);
        if (k >= RUNS / 3 && model->held[k].run) model_toggle(model, k, chain, n); // most end immediately
    }
    for (int m = 0; m < NODES; m++)
        model_close(&models[m]);
    prefix_index_free(index);
}
END_TEST

// --- memory

// Makes a chain of `head` blocks that requests of the same text share, followed by blocks of this request alone.
static void chain_fill(uint64_t *chain, int n, int head, int text, int request)
{
    uint64_t state = 0;
    for (int i = 0; i < n; i++)
        chain[i] = state =
            ((state >> 29) ^ (uint64_t)(i < head ? text : 1000 + request)) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
}

// A thousand nodes, each with the cache for a million tokens and requests that stay, in two cases: all prompts differ,
// or all nodes have the same few texts, cut at any length.
START_TEST(a_thousand_nodes_take_a_bounded_memory_each)
{
    enum { MANY = 1000, CACHE = 65536, LONGEST = 512, STAY = 40 };
    static uint64_t chain[LONGEST];
    static struct prefix_record *records[MANY];
    static const struct prefix_run *runs[MANY][STAY];
    bool shared = _i;
    int each = shared ? 60 : 150;
    chain_fill(chain, LONGEST, 0, 0, 0);
    size_t before = heap_bytes();
    struct prefix_index *index = prefix_index_create();
    for (int i = 0; i < MANY; i++)
        records[i] = prefix_record_open(index, NULL, CACHE);
    for (int k = 0; k < each; k++) {
        for (int i = 0; i < MANY; i++) {
            int n = 1 + random_below(LONGEST);
            if (shared) {
                chain_fill(chain, n, n - random_below(n < 8 ? n : 8), k % 4, k * MANY + i);
            } else {
                chain[0] = (uint64_t)(k * MANY + i); // which makes it a different chain
            }
            const struct prefix_run *run = prefix_record_hold(records[i], chain, n);
            prefix_record_release(records[i], runs[i][k % STAY]);
            runs[i][k % STAY] = run;
        }
    }
    size_t bytes = (heap_bytes() - before) / MANY;
    int64_t held = 0;
    for (int i = 0; i < MANY; i++)
        held += prefix_record_blocks_held(records[i]);
    printf("%s: %zu bytes for each node, which holds %lld blocks\n", shared ? "shared" : "alone", bytes,
           (long long)held / MANY);
    ck_assert_int_gt(held / MANY, LONGEST);
    ck_assert_uint_le(bytes, PREFIX_RECORD_BYTES + PREFIX_RECORD_BYTES * HEAP_ROUNDING_PERCENT / 100);
    size_t others = sizeof(struct core_node) + sizeof(struct prefix_tails) + PREFIX_TAILS_BLOCKS * sizeof(uint64_t);
    ck_assert_uint_le(PREFIX_RECORD_BYTES + others, 200000);
    if (!shared) ck_assert_uint_ge(bytes, PREFIX_RECORD_BYTES / 2); // the records are full
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < STAY; k++)
            prefix_record_release(records[i], runs[i][k]);
        prefix_record_close(records[i]);
    }
    prefix_index_free(index);
}
END_TEST

// Requests hold more than a record may take. The run ends earlier, and is released like others.
START_TEST(a_run_ends_where_a_record_is_full)
{
    static uint64_t chain[PREFIX_BLOCKS_MAX];
    chain_fill(chain, PREFIX_BLOCKS_MAX, PREFIX_BLOCKS_MAX, 1, 0);
    struct prefix_index *index = prefix_index_create();
    struct prefix_record *record = prefix_record_open(index, NULL, PREFIX_BLOCKS_MAX);
    const struct prefix_run *run = prefix_record_hold(record, chain, PREFIX_BLOCKS_MAX);
    int blocks = prefix_run_blocks(run);
    ck_assert_int_gt(blocks, PREFIX_RECORD_BYTES / 5);
    ck_assert_int_lt(blocks, PREFIX_RECORD_BYTES / 4);
    ck_assert_int_eq(prefix_record_match(record, chain, PREFIX_BLOCKS_MAX), blocks);
    const struct prefix_run *again = prefix_record_hold(record, chain, PREFIX_BLOCKS_MAX);
    ck_assert_ptr_eq(again, run);
    chain[0] ^= 1;
    ck_assert_ptr_null(prefix_record_hold(record, chain, 10));
    prefix_record_release(record, run);
    ck_assert_int_eq(prefix_record_blocks_held(record), blocks);
    prefix_record_release(record, again);
    ck_assert_int_eq(prefix_record_blocks_held(record), 0);
    run = prefix_record_hold(record, chain, 10);
    ck_assert_int_eq(prefix_run_blocks(run), 10);
    chain[0] ^= 1;
    ck_assert(prefix_record_match(record, chain, PREFIX_BLOCKS_MAX) > blocks - 200); // the other chain took its end
    prefix_record_release(record, run);
    prefix_record_close(record);
    prefix_index_free(index);
}
END_TEST

SUITE("prefix_index")
{
    TIMEOUT(60);
    TEST(chains_differ_from_the_first_different_token_or_position_on);
    TEST(records_hold_what_requests_use_and_evict_the_rest_from_the_end_of_the_oldest_chain);
    LOOP(a_thousand_nodes_take_a_bounded_memory_each, 0, 2);
    TEST(a_run_ends_where_a_record_is_full);
}
