// SPDX-License-Identifier: Apache-2.0
#include "bench/prepack.h"

#include <stdlib.h>
#include <string.h>

#include "bench/pack_offline.h"
#include "engine/block_manager.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

const char *prepack_policy_name(enum prepack_policy policy)
{
    static const char *const names[] = {[PREPACK_PADDED] = "padded", [PREPACK_LENGTH_ORDERED] = "length-ordered",
                                        [PREPACK_BATCH] = "batch",   [PREPACK_DATASET] = "dataset",
                                        [PREPACK_NONE] = "none",     [PREPACK_FULL_BINS] = "full bins"};
    return names[policy];
}

// ---- plans ------------------------------------------------------------------------------------------

static int plan_longest(const struct prepack_plan *plan, const int32_t *length, int first, int n)
{
    int longest = 0;
    for (int i = first; i < first + n; i++)
        if (length[plan->order[i]] > longest) longest = length[plan->order[i]];
    return longest;
}

static void plan_add_pass(struct prepack_plan *plan, int first, int n, int rows_each, int rows, int group)
{
    plan->passes[plan->n_passes++] = (struct prepack_pass){first, n, rows_each, rows, group};
    plan->rows += rows;
    plan->n_groups = group + 1;
}

static void plan_add_padded(struct prepack_plan *plan, const int32_t *length)
{
    for (int first = 0; first < plan->n_prompts; first += plan->batch_size) {
        int n = plan->n_prompts - first < plan->batch_size ? plan->n_prompts - first : plan->batch_size;
        int longest = plan_longest(plan, length, first, n);
        plan_add_pass(plan, first, n, longest, n * longest, plan->n_groups);
    }
}

// Packs the prompts order[first .. first + n) and sorts this part of `order` by bin.
static void plan_add_bins(struct prepack_plan *plan, const int32_t *length, int first, int n, int token_budget,
                          bool one_group)
{
    size_t size = (size_t)n;
    int32_t *memory = mem_alloc_array(4 * size + 1, sizeof *memory);
    int32_t *packed = memory, *bin_of = memory + size, *order = memory + 2 * size, *end = memory + 3 * size;
    int longest = plan_longest(plan, length, first, n), capacity = longest > token_budget ? longest : token_budget;
    int64_t from_us = clock_now_us();
    for (int i = 0; i < n; i++)
        packed[i] = length[order[i] = plan->order[first + i]];
    int n_bins = pack_items(packed, n, capacity, PACK_BEST_FIT, bin_of);
    plan->pack_us += (double)(clock_now_us() - from_us);
    for (int i = 0; i < n; i++)
        end[bin_of[i]]++;
    for (int b = 1; b < n_bins; b++)
        end[b] += end[b - 1];
    for (int i = n - 1; i >= 0; i--)
        plan->order[first + --end[bin_of[i]]] = order[i]; // end[b] becomes the start of bin b
    int group = plan->n_groups;
    for (int b = 0; b < n_bins; b++) {
        int from = end[b], to = b + 1 < n_bins ? end[b + 1] : n, rows = 0;
        for (int i = from; i < to; i++)
            rows += length[plan->order[first + i]];
        plan_add_pass(plan, first + from, to - from, 0, rows, one_group ? group : plan->n_groups);
    }
    if (capacity > plan->capacity) plan->capacity = capacity;
    free(memory);
}

struct prompt_length {
    int32_t length, prompt;
};

static int prompt_length_compare(const void *a, const void *b)
{
    const struct prompt_length *x = a, *y = b;
    return x->length != y->length ? x->length - y->length : x->prompt - y->prompt;
}

static void plan_sort_by_length(struct prepack_plan *plan, const int32_t *length)
{
    struct prompt_length *sorted = mem_alloc_array((size_t)plan->n_prompts, sizeof *sorted);
    for (int i = 0; i < plan->n_prompts; i++)
        sorted[i] = (struct prompt_length){length[i], i};
    qsort(sorted, (size_t)plan->n_prompts, sizeof *sorted, prompt_length_compare);
    for (int i = 0; i < plan->n_prompts; i++)
        plan->order[i] = sorted[i].prompt;
    free(sorted);
}

struct prepack_plan prepack_plan_make(enum prepack_policy policy, const int32_t *length, int n, int batch_size,
                                      int token_budget)
{
    struct prepack_plan plan = {.policy = policy, .batch_size = batch_size, .n_prompts = n};
    plan.order = mem_alloc_array((size_t)n, sizeof *plan.order);
    plan.passes = mem_alloc_array((size_t)n, sizeof *plan.passes);
    for (int i = 0; i < n; i++)
        plan.order[i] = i;
    switch (policy) {
    case PREPACK_LENGTH_ORDERED:
        plan_sort_by_length(&plan, length);
        // fall through
    case PREPACK_PADDED: plan_add_padded(&plan, length); break;
    case PREPACK_BATCH:
        for (int first = 0; first < n; first += batch_size)
            plan_add_bins(&plan, length, first, n - first < batch_size ? n - first : batch_size, token_budget, true);
        break;
    case PREPACK_DATASET: plan_add_bins(&plan, length, 0, n, token_budget, false); break;
    default:
        for (int i = 0; i < n; i++)
            plan_add_pass(&plan, i, 1, 0, length[i], i);
    }
    return plan;
}

struct prepack_plan prepack_plan_full_bins(const struct prompts *prompts, int capacity, struct prompts *cut_p)
{
    struct prepack_plan plan = {.policy = PREPACK_FULL_BINS, .capacity = capacity};
    struct prompts cut = {.longest = prompts->longest < capacity ? prompts->longest : capacity};
    int n_bins = (int)((prompts->tokens + capacity - 1) / capacity), next = 0, room_for_length = 0, room_for_data = 0;
    plan.passes = mem_alloc_array((size_t)n_bins, sizeof *plan.passes);
    for (int bin = 0; bin < n_bins; bin++) {
        int first = cut.n;
        for (int room = capacity; room > 0; room -= cut.length[cut.n++]) {
            MEM_GROW(cut.length, cut.n, room_for_length);
            MEM_GROW(cut.data, cut.n, room_for_data);
            cut.length[cut.n] = prompts->length[next] < room ? prompts->length[next] : room;
            cut.data[cut.n] = prompts->data[next];
            next = (next + 1) % prompts->n;
        }
        plan_add_pass(&plan, first, cut.n - first, 0, capacity, bin);
    }
    cut.tokens = plan.rows;
    plan.batch_size = plan.n_prompts = cut.n;
    plan.order = mem_alloc_array((size_t)cut.n, sizeof *plan.order);
    for (int i = 0; i < cut.n; i++)
        plan.order[i] = i;
    *cut_p = cut;
    return plan;
}

void prepack_plan_free(struct prepack_plan *plan)
{
    free(plan->order);
    free(plan->passes);
    *plan = (struct prepack_plan){0};
}

// ---- memory ---------------------------------------------------------------------------------------------------------

struct prepack_memory prepack_memory_of(const struct model *model)
{
    return (struct prepack_memory){.row_bytes = (double)model_row_bytes(model),
                                   .logit_bytes = (double)model_logit_bytes(model),
                                   .block_bytes = (double)model_kv_bytes(model) / model_kv_blocks(model)};
}

static int pass_rows(const struct prepack_pass *pass, const int32_t *length, int prompt)
{
    return pass->rows_each ? pass->rows_each : length[prompt];
}

// Returns the need of the passes [first, end), which are one group.
static struct prepack_need group_need(const struct prepack_plan *plan, const int32_t *length, int first, int end,
                                      const struct prepack_memory *memory)
{
    struct prepack_need need = {.rows = 0};
    for (int i = first; i < end; i++) {
        const struct prepack_pass *pass = &plan->passes[i];
        for (int p = pass->first; p < pass->first + pass->n; p++)
            need.kv_blocks += kv_blocks_for(pass_rows(pass, length, plan->order[p]));
        double bytes = memory->row_bytes * pass->rows + memory->logit_bytes * pass->n;
        if (bytes > need.pass_bytes) need.pass_bytes = bytes;
        if (pass->rows > need.rows) need.rows = pass->rows;
        if (pass->n > need.prompts) need.prompts = pass->n;
    }
    need.kv_bytes = memory->block_bytes * need.kv_blocks;
    return need;
}

static int plan_group_end(const struct prepack_plan *plan, int first)
{
    int end = first;
    while (end < plan->n_passes && plan->passes[end].group == plan->passes[first].group)
        end++;
    return end;
}

struct prepack_need prepack_group_need(const struct prepack_plan *plan, const int32_t *length, int group,
                                       const struct prepack_memory *memory)
{
    int first = 0;
    while (plan->passes[first].group != group)
        first++;
    return group_need(plan, length, first, plan_group_end(plan, first), memory);
}

struct prepack_need prepack_plan_need(const struct prepack_plan *plan, const int32_t *length,
                                      const struct prepack_memory *memory)
{
    struct prepack_need max = {.rows = 0};
    for (int first = 0, end; first < plan->n_passes; first = end) {
        end = plan_group_end(plan, first);
        struct prepack_need need = group_need(plan, length, first, end, memory);
        if (need.kv_bytes + need.pass_bytes > max.kv_bytes + max.pass_bytes) {
            max.kv_bytes = need.kv_bytes;
            max.pass_bytes = need.pass_bytes;
        }
        if (need.kv_blocks > max.kv_blocks) max.kv_blocks = need.kv_blocks;
        if (need.rows > max.rows) max.rows = need.rows;
        if (need.prompts > max.prompts) max.prompts = need.prompts;
    }
    return max;
}

static bool batch_fits(enum prepack_policy policy, const struct prompts *prompts, int n, int token_budget, double bytes,
                       const struct prepack_memory *memory)
{
    int32_t *length = mem_alloc_array((size_t)n, sizeof *length);
    for (int i = 0; i < n; i++)
        length[i] = prompts->length[i % prompts->n];
    struct prepack_plan plan = prepack_plan_make(policy, length, n, n, token_budget);
    struct prepack_need need = prepack_plan_need(&plan, length, memory);
    prepack_plan_free(&plan);
    free(length);
    return need.kv_bytes + need.pass_bytes <= bytes;
}

int prepack_largest_batch(enum prepack_policy policy, const struct prompts *prompts, int token_budget, double bytes,
                          const struct prepack_memory *memory)
{
    enum { BATCH_MAX = 1 << 16 };
    int fitting = 0, limit = 1; // `fitting` fits, `limit` does not or is not tried yet
    while (limit <= BATCH_MAX && (int64_t)limit * prompts->longest <= 1 << 30 &&
           batch_fits(policy, prompts, limit, token_budget, bytes, memory))
        fitting = limit, limit *= 2;
    while (limit - fitting > 1) {
        int middle = (fitting + limit) / 2;
        if (batch_fits(policy, prompts, middle, token_budget, bytes, memory))
            fitting = middle;
        else
            limit = middle;
    }
    return fitting;
}

// ---- runs -----------------------------------------------------------------------------------------------------------

void prepack_run_init(struct prepack_run *run, const struct prepack_plan *plan, const struct prompts *prompts,
                      int rounds)
{
    size_t n = (size_t)plan->n_prompts;
    *run = (struct prepack_run){.plan = *plan, .prompts = prompts};
    run->n_batches = (plan->n_prompts + plan->batch_size - 1) / plan->batch_size;
    run->batch_s = mem_alloc_array((size_t)run->n_batches * (size_t)rounds, sizeof *run->batch_s);
    run->ttft_s = mem_alloc_array(n, sizeof *run->ttft_s);
    run->waited_ttft_s = mem_alloc_array(n, sizeof *run->waited_ttft_s);
    run->digest = mem_alloc_array(n, sizeof *run->digest);
}

void prepack_run_free(struct prepack_run *run)
{
    prepack_plan_free(&run->plan);
    free(run->batch_s);
    free(run->ttft_s);
    free(run->waited_ttft_s);
    free(run->digest);
}

static int greedy_token(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

// Returns a hash of the token, and of all bits of the logits if the host has them.
static uint64_t token_digest(const float *logits, int n, int token)
{
    uint64_t digest = (uint64_t)token;
    for (int i = 0; logits && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        digest = (digest ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 29;
    }
    return digest;
}

// Runs one pass. `token` [pass->n] gets the first token of each prompt.
static enum status run_pass(struct prepack_run *run, struct passes *passes, const struct prepack_pass *pass,
                            int vocab_size, int *block, int *token, const float **logits_p)
{
    struct passes_prompt *prompts = mem_alloc_array((size_t)pass->n, sizeof *prompts);
    for (int i = 0; i < pass->n; i++) {
        int prompt = run->plan.order[pass->first + i];
        prompts[i] = (struct passes_prompt){run->prompts->data[prompt], run->prompts->length[prompt],
                                            pass_rows(pass, run->prompts->length, prompt)};
    }
    struct forward_result result;
    enum status status = passes_prompts(passes, prompts, pass->n, block, &run->work, &result);
    for (int i = 0; i < pass->n && status == STATUS_OK; i++)
        token[i] =
            result.tokens ? result.tokens[i] : greedy_token(result.logits + (size_t)i * (size_t)vocab_size, vocab_size);
    if (status == STATUS_OK) *logits_p = result.logits;
    free(prompts);
    return status;
}

// Adds the time of a pass to the times of its prompts and their batches.
static void run_add_time(struct prepack_run *run, const struct prepack_pass *pass, double seconds, double since_group)
{
    const struct prepack_plan *plan = &run->plan;
    int64_t tokens = 0;
    for (int i = pass->first; i < pass->first + pass->n; i++)
        tokens += run->prompts->length[plan->order[i]];
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        int prompt = plan->order[i];
        int batch = (plan->policy == PREPACK_LENGTH_ORDERED ? i : prompt) / plan->batch_size;
        run->batch_s[run->batch_at + batch] += seconds * run->prompts->length[prompt] / (double)tokens;
        run->ttft_s[prompt] += since_group;
        run->waited_ttft_s[prompt] += run->clock_s;
    }
    run->total_s += seconds;
    run->rows_done += pass->rows;
}

enum status prepack_run_group(struct prepack_run *run, struct passes *passes, int vocab_size)
{
    const struct prepack_plan *plan = &run->plan;
    int first = run->next_pass, end = plan_group_end(plan, first), block = 0;
    double since_group = 0;
    for (int i = first; i < end; i++) {
        const struct prepack_pass *pass = &plan->passes[i];
        const float *logits = NULL;
        int *token = mem_alloc_array((size_t)pass->n, sizeof *token);
        int64_t from_us = clock_now_us();
        enum status status = run_pass(run, passes, pass, vocab_size, &block, token, &logits);
        double seconds = (double)(clock_now_us() - from_us) / 1e6;
        for (int p = 0; p < pass->n && status == STATUS_OK; p++)
            run->digest[plan->order[pass->first + p]] =
                token_digest(logits ? logits + (size_t)p * (size_t)vocab_size : NULL, vocab_size, token[p]);
        free(token);
        if (status != STATUS_OK) return status;
        since_group += seconds;
        run->clock_s += seconds;
        run_add_time(run, pass, seconds, since_group);
    }
    run->next_pass = end;
    if (end == plan->n_passes) {
        run->next_pass = 0;
        run->clock_s = 0;
        run->rounds_done++;
        run->batch_at += run->n_batches;
    }
    return STATUS_OK;
}
