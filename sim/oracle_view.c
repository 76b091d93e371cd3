// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_view.h"

#include <math.h>

#include "sim/oracle_waiting.h"

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t blocks_for(int64_t tokens, int64_t block_tokens)
{
    return tokens / block_tokens + (tokens % block_tokens > 0);
}

static bool can_hold(const struct sched_node *node, const struct sched_request *r)
{
    const struct node_limits *limits = &node->limits;
    bool worker = node->role == NODE_WORKER, scored = r->usage->kept_tokens > 0;
    int64_t output = r->spec->sampling.no_output ? 0 : r->spec->sampling.max_tokens;
    int64_t more = worker ? output : r->spec->prefill.look_ahead - 1;
    int64_t entries = scored ? r->usage->kept_tokens + (int64_t)r->spec->sampling.max_tokens - 1 : 0;
    return !node->draining && (worker || !scored) && r->spec->n_tokens + more <= limits->context_tokens &&
           entries <= (int64_t)limits->kv_blocks * limits->block_tokens;
}

static int64_t rows_of(const struct sched_request *r)
{
    int kept = r->usage->kept_tokens;
    return kept ? kept + r->usage->completion_tokens : request_score_prompt(request_of(r)).n_tokens;
}

// Returns the KV blocks expected at the request's end. The remaining output is expected to be shorter than max_tokens.
static int64_t blocks_expected(const struct sched_request *r, int64_t block_tokens)
{
    const struct request_usage *usage = r->usage;
    int64_t max_tokens = r->spec->sampling.max_tokens;
    int64_t left = blocks_for(max_tokens - usage->completion_tokens, block_tokens);
    int64_t have = blocks_for((int64_t)usage->kept_tokens + usage->completion_tokens, block_tokens);
    return least_of(have + (int64_t)output_blocks_expected(left),
                    blocks_for(usage->kept_tokens + max_tokens - 1, block_tokens));
}

static int64_t blocks_needed(const struct sched_node *node, const struct sched_request *r)
{
    int64_t shared = 0;
    if (node->role != NODE_WORKER) return 0;
    if (node->prefixes && node->limits.block_tokens == PREFIX_BLOCK)
        shared = least_of(prefix_record_held(node->prefixes, r->prefix, r->n_prefix), (rows_of(r) - 1) / PREFIX_BLOCK);
    return blocks_expected(r, node->limits.block_tokens) - shared;
}

static void check_room(struct world *w, const struct sched_node *node)
{
    const struct node_account *account = &node->account;
    int64_t budget = node->limits.token_budget, decodes = account->requests.count - account->requests_in_bins;
    int64_t rows = budget - least_of(decodes, budget / 2);
    HOLDS(sched_node_pass_rows(node) == rows);
    HOLDS(sched_node_bin_rows(node) == rows - (account->long_prompts ? rows / 2 : 0));
    int64_t left = sched_node_blocks_left(node), in_index = sched_index_blocks(node, left);
    bool converts = node->role == NODE_WORKER && node->limits.block_tokens != PREFIX_BLOCK;
    HOLDS(left == (node->role == NODE_WORKER ? node->limits.kv_blocks - account->kv_blocks : INT64_MAX));
    if (!converts) HOLDS(in_index == left);
    // Every request that fits the node's blocks also fits by the blocks of the node index, which have another size.
    if (converts && left >= 0) {
        int64_t entries = left * node->limits.block_tokens;
        HOLDS(in_index >= blocks_for(entries, PREFIX_BLOCK) && in_index <= blocks_for(entries, PREFIX_BLOCK) + 2);
    }
}

// Returns the most bytes of the request's message. A number takes five bytes. Numbers are the rows and the draft, the
// prompt if penalties need it, and two for each logit bias. A range takes 32 bytes; each kept token may be a range.
static int64_t message_bytes(const struct sched_request *r)
{
    const struct request_spec *spec = r->spec;
    int64_t kept = r->usage->kept_tokens, ranges = r->score_tokens ? r->score_ranges : spec->n_pinned, more = 0;
    if (kept) ranges = kept == spec->n_tokens && !spec->n_turns ? 1 : kept;
    if (kept) more = 2 * (int64_t)spec->sampling.logit_bias.n + LOOK_AHEAD_MAX;
    if (kept && spec->sampling.repetition_penalty != 1) more += spec->n_tokens;
    return 5 * (rows_of(r) + more) + 32 * ranges + (int64_t)spec->sampling.grammar.text_bytes + 1024;
}

static void check_request(struct world *w, const struct sched_node *node, const struct sched_request *r)
{
    bool shares = node->role == NODE_WORKER && node->prefixes && node->limits.block_tokens == PREFIX_BLOCK;
    int64_t needed = blocks_needed(node, r), asked = shares && r->need.blocks > needed ? r->need.blocks : needed;
    int64_t cached = node->prefixes ? prefix_record_match(node->prefixes, r->prefix, r->n_prefix) : 0;
    HOLDS(sched_node_shares_blocks(node) == shares && sched_request_message_bytes(r) == message_bytes(r));
    HOLDS(sched_node_can_hold(node, r) == can_hold(node, r));
    HOLDS(sched_node_blocks_needed(node, r) == needed && sched_node_blocks_asked(node, r) == asked);
    HOLDS(sched_request_cached_blocks(r, node) == cached);
    HOLDS(sched_request_rows_on(r, node) ==
          rows_of(r) - PREFIX_BLOCK * least_of(cached, (rows_of(r) - 1) / PREFIX_BLOCK));
}

void oracle_view(struct world *w, const struct sched_node *node, const struct sched_request *r)
{
    static const int block_sizes[] = {0, 7, PREFIX_BLOCK, 48}; // 0: the node's own size
    for (int i = 0; i < 4; i++) {
        struct sched_node other = *node;
        if (block_sizes[i]) other.limits.block_tokens = block_sizes[i];
        check_room(w, &other);
        check_request(w, &other, r);
    }
}

void oracle_rate_mean(struct world *w, struct random_source *random)
{
    const int64_t ten_minutes_us = 600 * INT64_C(1000000);
    struct rate_mean mean = {0, 0};
    int64_t now_us = 1, added_us = 0;
    double rate = 0;
    for (int i = 0; i < 32; i++) {
        double known = added_us && now_us - added_us < ten_minutes_us ? rate : 0.3, added = random_unit(random);
        HOLDS(fabs(rate_mean_get(&mean, now_us) - known) < 1e-12);
        if (random_below(random, 2)) {
            rate_mean_add(&mean, added, now_us);
            rate = known + (added - known) / 32;
            added_us = now_us;
        }
        int64_t jump_us = ten_minutes_us + random_below(random, 3) - 1;
        now_us = random_below(random, 3) && added_us ? now_us + random_below(random, 1000)
                                                     : (added_us ? added_us : now_us) + jump_us;
    }
}
