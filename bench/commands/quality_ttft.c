// SPDX-License-Identifier: Apache-2.0
// The ttft task: time to the last first token of a batch of prompts, with and without speculation, for random weights
// of any shape. Compares it with the bound that the remaining operations set.
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/quality.h"
#include "bench/passes.h"
#include "bench/quantiles.h"
#include "engine/model/work.h"
#include "lib/base/mem.h"

// Returns the operations of a prefill of n tokens and of `steps` decode passes of one row.
static double ttft_gflop(const struct model_config *config, double n, int steps)
{
    const struct work_model w = work_model_of(config, 1, 1);
    double rows = n + steps, pairs = n * (n + 1) / 2 + steps * n;
    return (2 * (w.layer_weights * rows + w.head_weights * (1 + steps)) + w.attention_flop * pairs) / 1e9;
}

struct ttft_times {
    struct samples plain_ms, score_ms, ttft_ms;
    int kept_tokens; // of all prompts of the batch
};

// Prompts that arrive together. Each has tokens of its own, and all have the same length.
struct ttft_batch {
    int32_t *tokens; // [n_prompts, length]
    struct model_pair_prompt *prompts;
    struct model_pair_request *requests;
    int32_t *answers; // [n_prompts]
    int n_prompts, length;
};

static struct ttft_batch ttft_batch_create(const struct quality *q, int n_prompts, int length)
{
    int n_main = model_pair_main(q->pair)->vocab_size, n_spec = model_pair_spec(q->pair)->vocab_size;
    struct ttft_batch b = {.tokens = mem_alloc_array((size_t)n_prompts * (size_t)length, sizeof *b.tokens),
                           .prompts = mem_alloc_array((size_t)n_prompts, sizeof *b.prompts),
                           .requests = mem_alloc_array((size_t)n_prompts, sizeof *b.requests),
                           .answers = mem_alloc_array((size_t)n_prompts, sizeof *b.answers),
                           .n_prompts = n_prompts,
                           .length = length};
    passes_tokens(b.tokens, n_prompts * length, n_main < n_spec ? n_main : n_spec);
    for (int i = 0; i < n_prompts; i++)
        b.prompts[i] = (struct model_pair_prompt){.tokens = b.tokens + (size_t)i * (size_t)length,
                                                  .n = length,
                                                  .tail_tokens = quality_tail_tokens(q, length),
                                                  .importance = mem_alloc_array((size_t)length, sizeof(float))};
    return b;
}

static void ttft_batch_free(struct ttft_batch *b)
{
    for (int i = 0; i < b->n_prompts; i++)
        free(b->prompts[i].importance);
    free(b->prompts);
    free(b->requests);
    free(b->answers);
    free(b->tokens);
}

// Prefills all prompts, or their kept tokens if `kept` is not NULL. Returns the time until the last of them has its
// first token.
static enum status ttft_prefill(struct quality *q, struct ttft_batch *b, struct token_range **kept, const int *n_kept,
                                int64_t *us_p)
{
    for (int i = 0; i < b->n_prompts; i++)
        b->requests[i] = (struct model_pair_request){.tokens = b->prompts[i].tokens,
                                                     .n = b->length,
                                                     .kept = kept ? kept[i] : NULL,
                                                     .n_kept = kept ? n_kept[i] : 0,
                                                     .max_tokens = 1,
                                                     .answer = &b->answers[i]};
    TRY(model_pair_generate(q->pair, b->requests, b->n_prompts));
    *us_p = 0;
    for (int i = 0; i < b->n_prompts; i++)
        if (b->requests[i].prefill_us > *us_p) *us_p = b->requests[i].prefill_us;
    return STATUS_OK;
}

// Scores all prompts. Returns the time until the last of them has its scores.
static enum status ttft_score(struct quality *q, struct ttft_batch *b, int look_ahead, int chunk_tokens, int64_t *us_p)
{
    const struct prefill prefill = quality_prefill(q, look_ahead, chunk_tokens);
    TRY(model_pair_score(q->pair, false, &prefill, b->prompts, b->n_prompts));
    *us_p = 0;
    for (int i = 0; i < b->n_prompts; i++)
        if (b->prompts[i].score_us > *us_p) *us_p = b->prompts[i].score_us;
    return STATUS_OK;
}

// Times one batch at one keep rate, and with `with_plain` also with everything kept.
static enum status ttft_run(struct quality *q, struct ttft_batch *b, int look_ahead, int chunk_tokens, double keep_rate,
                            bool with_plain, struct ttft_times *t)
{
    int64_t score_us, prefill_us;
    if (with_plain) {
        TRY(ttft_prefill(q, b, NULL, NULL, &prefill_us));
        samples_add(&t->plain_ms, (double)prefill_us / 1000);
    }
    TRY(ttft_score(q, b, look_ahead, chunk_tokens, &score_us));
    struct token_range **kept = mem_alloc_array((size_t)b->n_prompts, sizeof *kept);
    int *n_kept = mem_alloc_array((size_t)b->n_prompts, sizeof *n_kept);
    t->kept_tokens = 0;
    for (int i = 0; i < b->n_prompts; i++) {
        n_kept[i] = quality_select(q, &b->prompts[i], chunk_tokens, keep_rate, &kept[i]);
        t->kept_tokens += quality_kept_tokens(kept[i], n_kept[i]);
    }
    enum status status = ttft_prefill(q, b, kept, n_kept, &prefill_us);
    for (int i = 0; i < b->n_prompts; i++)
        free(kept[i]);
    free(kept);
    free(n_kept);
    if (status != STATUS_OK) return status;
    samples_add(&t->score_ms, (double)score_us / 1000);
    samples_add(&t->ttft_ms, (double)(score_us + prefill_us) / 1000);
    return STATUS_OK;
}

static void ttft_add_row(struct quality *q, const struct ttft_batch *b, int look_ahead, double keep_rate,
                         struct ttft_times *t, double plain_ms)
{
    const int n = b->length;
    double kept_share = (double)t->kept_tokens / n / b->n_prompts;
    double whole = ttft_gflop(model_pair_main(q->pair), n, 0) * b->n_prompts;
    double spec = ttft_gflop(model_pair_spec(q->pair), n, look_ahead - 1) * b->n_prompts;
    double left = ttft_gflop(model_pair_main(q->pair), kept_share * n, 0) * b->n_prompts;
    double ttft_ms = samples_percentile(&t->ttft_ms, 50), score_ms = samples_percentile(&t->score_ms, 50);
    double speed_up = plain_ms / ttft_ms;
    double bound = 1 / (kept_share + spec / whole), bound_flops = whole / (left + spec);
    if (!q->flags->json)
        printf("%8d %5d %5g %9d | %6.3f | %10.1f | %10.1f %10.1f | %8.2f | %8.2f %5.1f%% | %8.2f %5.1f%%\n", n,
               b->n_prompts, keep_rate, look_ahead, kept_share, plain_ms, score_ms, ttft_ms, speed_up, bound,
               100 * speed_up / bound, bound_flops, 100 * speed_up / bound_flops);
    fflush(stdout);
    json_array_append_new(q->rows,
                          json_pack("{s:s,s:i,s:i,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "task",
                                    "ttft", "tokens", n, "batch", b->n_prompts, "keep_rate", keep_rate, "look_ahead",
                                    look_ahead, "kept_share", kept_share, "plain_ms", plain_ms, "score_ms", score_ms,
                                    "ttft_ms", ttft_ms, "speed_up", speed_up, "bound", bound, "share", speed_up / bound,
                                    "bound_flops", bound_flops, "share_flops", speed_up / bound_flops, "main_gflop",
                                    whole, "kept_gflop", left, "spec_gflop", spec));
}

// Measures one prompt length and batch size. Each round runs everything kept and every keep rate, so that changes of
// the machine's speed affect all of them.
static enum status ttft_run_length(struct quality *q, int length, int n_prompts, int look_ahead)
{
    struct ttft_batch batch = ttft_batch_create(q, n_prompts, length);
    struct ttft_times *times = mem_alloc_array((size_t)q->n_keep_rates, sizeof *times);
    enum status status = STATUS_OK;
    for (int round = 0; round < q->flags->rounds && status == STATUS_OK; round++)
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            progress_draw(&q->progress, round * q->n_keep_rates + k, q->flags->rounds * q->n_keep_rates, false,
                          "%d x %d tokens: round %d of %lld", n_prompts, length, round + 1,
                          (long long)q->flags->rounds);
            status = ttft_run(q, &batch, look_ahead, q->chunks.count[0], q->keep_rates[k], k == 0, &times[k]);
        }
    double plain_ms = samples_percentile(&times[0].plain_ms, 50);
    for (int k = 0; k < q->n_keep_rates; k++) {
        if (status == STATUS_OK) ttft_add_row(q, &batch, look_ahead, q->keep_rates[k], &times[k], plain_ms);
        samples_free(&times[k].plain_ms);
        samples_free(&times[k].score_ms);
        samples_free(&times[k].ttft_ms);
    }
    free(times);
    ttft_batch_free(&batch);
    return status;
}

enum status quality_run_ttft(struct quality *q)
{
    if (!q->flags->json) {
        printf("main %s, speculator %s, random weights, %s, %lld rounds\n\n", q->flags->shape, q->flags->spec_shape,
               q->flags->dtype, (long long)q->flags->rounds);
        printf("%8s %5s %5s %9s | %6s | %10s | %10s %10s | %8s | %15s | %15s\n", "", "", "keep", "", "", "all kept",
               "scoring", "TTFT", "", "bound by tokens", "bound by FLOPs");
        printf("%8s %5s %5s %9s | %6s | %10s | %10s %10s | %8s | %8s %6s | %8s %6s\n", "tokens", "batch", "rate",
               "lookahead", "kept", "ms", "ms", "ms", "speed-up", "bound", "share", "bound", "share");
    }
    enum { WARM_UP_TOKENS = 64 };
    // A short uncounted run of both models touches the pages of their weights and KV caches.
    struct ttft_times unused = {0};
    double rate = q->keep_rates[0];
    int warm_up_tokens = q->lengths.count[0] < WARM_UP_TOKENS ? q->lengths.count[0] : WARM_UP_TOKENS;
    struct ttft_batch warm_up = ttft_batch_create(q, 1, warm_up_tokens);
    enum status status = ttft_run(q, &warm_up, 1, q->chunks.count[0], rate, true, &unused);
    ttft_batch_free(&warm_up);
    samples_free(&unused.plain_ms);
    samples_free(&unused.score_ms);
    samples_free(&unused.ttft_ms);
    for (int i = 0; i < q->lengths.n; i++)
        for (int k = 0; k < q->batches.n; k++)
            for (int a = 0; a < q->look_aheads.n && status == STATUS_OK; a++)
                if ((int64_t)q->batches.count[k] * q->lengths.count[i] <= q->flags->max_batch_tokens)
                    status = ttft_run_length(q, q->lengths.count[i], q->batches.count[k], q->look_aheads.count[a]);
    return status;
}

void quality_report_ttft(struct report *report, const struct quality *q)
{
    static const char *const columns[] = {"tokens=Tokens",          "batch=Prompts together",
                                          "keep_rate=Keep rate",    "look_ahead=Look-ahead",
                                          "kept_share=Kept share",  "plain_ms=TTFT ms, everything kept",
                                          "score_ms=Scoring ms",    "ttft_ms=TTFT ms",
                                          "speed_up=Speed-up",      "bound=Bound by kept tokens",
                                          "share=Share of it",      "bound_flops=Bound by FLOPs",
                                          "share_flops=Share of it"};
    const struct quality_flags *f = q->flags;
    report_paragraph(report, "Main model %s, speculator %s, random weights, %s.", f->shape, f->spec_shape, f->dtype);
    report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
}
