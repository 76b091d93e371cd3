// SPDX-License-Identifier: Apache-2.0
// The ttft task: time to first token with and without speculation, for random weights of any shape. Compares it with
// the bound that the remaining operations set.
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
    int kept_tokens;
};

// Times one request at one keep rate, and with `with_plain` also with everything kept.
static enum status ttft_run(struct quality *q, struct model_pair_prompt *p, int look_ahead, int chunk_tokens,
                            double keep_rate, bool with_plain, struct ttft_times *t)
{
    int32_t token;
    struct model_pair_request request = {.tokens = p->tokens, .n = p->n, .max_tokens = 1, .answer = &token};
    enum status status = STATUS_OK;
    if (with_plain) {
        status = model_pair_generate(q->pair, &request, 1);
        if (status == STATUS_OK) samples_add(&t->plain_ms, (double)request.prefill_us / 1000);
    }
    const struct prefill prefill = quality_prefill(q, look_ahead, chunk_tokens);
    if (status == STATUS_OK) status = model_pair_score(q->pair, false, &prefill, p, 1);
    if (status != STATUS_OK) return status;
    struct token_range *kept;
    request.n_kept = quality_select(q, p, chunk_tokens, keep_rate, &kept);
    request.kept = kept;
    t->kept_tokens = quality_kept_tokens(kept, request.n_kept);
    status = model_pair_generate(q->pair, &request, 1);
    free(kept);
    samples_add(&t->score_ms, (double)p->score_us / 1000);
    samples_add(&t->ttft_ms, (double)(p->score_us + request.prefill_us) / 1000);
    return status;
}

static void ttft_add_row(struct quality *q, int n, int look_ahead, double keep_rate, struct ttft_times *t,
                         double plain_ms)
{
    double whole = ttft_gflop(model_pair_main(q->pair), n, 0),
           spec = ttft_gflop(model_pair_spec(q->pair), n, look_ahead - 1);
    double left = ttft_gflop(model_pair_main(q->pair), t->kept_tokens, 0), kept_share = (double)t->kept_tokens / n;
    double ttft_ms = samples_percentile(&t->ttft_ms, 50), score_ms = samples_percentile(&t->score_ms, 50);
    double speed_up = plain_ms / ttft_ms;
    double bound = 1 / (kept_share + spec / whole), bound_flops = whole / (left + spec);
    if (!q->flags->json)
        printf("%8d %5g %9d | %6.3f | %10.1f | %10.1f %10.1f | %8.2f | %8.2f %5.1f%% | %8.2f %5.1f%%\n", n, keep_rate,
               look_ahead, kept_share, plain_ms, score_ms, ttft_ms, speed_up, bound, 100 * speed_up / bound,
               bound_flops, 100 * speed_up / bound_flops);
    fflush(stdout);
    json_array_append_new(
        q->rows, json_pack("{s:s,s:i,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "task", "ttft",
                           "tokens", n, "keep_rate", keep_rate, "look_ahead", look_ahead, "kept_share", kept_share,
                           "plain_ms", plain_ms, "score_ms", score_ms, "ttft_ms", ttft_ms, "speed_up", speed_up,
                           "bound", bound, "share", speed_up / bound, "bound_flops", bound_flops, "share_flops",
                           speed_up / bound_flops, "main_gflop", whole, "kept_gflop", left, "spec_gflop", spec));
}

static struct model_pair_prompt ttft_prompt(const struct quality *q, int n)
{
    int n_main = model_pair_main(q->pair)->vocab_size, n_spec = model_pair_spec(q->pair)->vocab_size;
    int32_t *tokens = mem_alloc_array((size_t)n, sizeof *tokens);
    passes_tokens(tokens, n, n_main < n_spec ? n_main : n_spec);
    return (struct model_pair_prompt){.tokens = tokens,
                                      .n = n,
                                      .tail_tokens = quality_tail_tokens(q, n),
                                      .importance = mem_alloc_array((size_t)n, sizeof(float))};
}

static void ttft_prompt_free(struct model_pair_prompt *p)
{
    free((void *)p->tokens);
    free(p->importance);
}

// Measures one prompt length. Each round runs everything kept and every keep rate, so that changes of the machine's
// speed affect all of them.
static enum status ttft_run_length(struct quality *q, int length, int look_ahead)
{
    struct model_pair_prompt prompt = ttft_prompt(q, length);
    struct ttft_times *times = mem_alloc_array((size_t)q->n_keep_rates, sizeof *times);
    enum status status = STATUS_OK;
    for (int round = 0; round < q->flags->rounds && status == STATUS_OK; round++)
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            progress_draw(&q->progress, round * q->n_keep_rates + k, q->flags->rounds * q->n_keep_rates, false,
                          "%d tokens: round %d of %lld", length, round + 1, (long long)q->flags->rounds);
            status = ttft_run(q, &prompt, look_ahead, q->chunks.count[0], q->keep_rates[k], k == 0, &times[k]);
        }
    double plain_ms = samples_percentile(&times[0].plain_ms, 50);
    for (int k = 0; k < q->n_keep_rates; k++) {
        if (status == STATUS_OK) ttft_add_row(q, length, look_ahead, q->keep_rates[k], &times[k], plain_ms);
        samples_free(&times[k].plain_ms);
        samples_free(&times[k].score_ms);
        samples_free(&times[k].ttft_ms);
    }
    free(times);
    ttft_prompt_free(&prompt);
    return status;
}

enum status quality_run_ttft(struct quality *q)
{
    if (!q->flags->json) {
        printf("main %s, speculator %s, random weights, %s, %lld rounds\n\n", q->flags->shape, q->flags->spec_shape,
               q->flags->dtype, (long long)q->flags->rounds);
        printf("%8s %5s %9s | %6s | %10s | %10s %10s | %8s | %15s | %15s\n", "", "keep", "", "", "all kept", "scoring",
               "TTFT", "", "bound by tokens", "bound by FLOPs");
        printf("%8s %5s %9s | %6s | %10s | %10s %10s | %8s | %8s %6s | %8s %6s\n", "tokens", "rate", "lookahead",
               "kept", "ms", "ms", "ms", "speed-up", "bound", "share", "bound", "share");
    }
    enum { WARM_UP_TOKENS = 64 };
    // A short uncounted run of both models touches the pages of their weights and KV caches.
    struct ttft_times unused = {0};
    double rate = q->keep_rates[0];
    struct model_pair_prompt warm_up =
        ttft_prompt(q, q->lengths.count[0] < WARM_UP_TOKENS ? q->lengths.count[0] : WARM_UP_TOKENS);
    enum status status = ttft_run(q, &warm_up, 1, q->chunks.count[0], rate, true, &unused);
    ttft_prompt_free(&warm_up);
    samples_free(&unused.plain_ms);
    samples_free(&unused.score_ms);
    samples_free(&unused.ttft_ms);
    for (int i = 0; i < q->lengths.n; i++)
        for (int a = 0; a < q->look_aheads.n && status == STATUS_OK; a++)
            status = ttft_run_length(q, q->lengths.count[i], q->look_aheads.count[a]);
    return status;
}

void quality_report_ttft(struct report *report, const struct quality *q)
{
    static const char *const columns[] = {"tokens=Tokens",
                                          "keep_rate=Keep rate",
                                          "look_ahead=Look-ahead",
                                          "kept_share=Kept share",
                                          "plain_ms=TTFT ms, everything kept",
                                          "score_ms=Scoring ms",
                                          "ttft_ms=TTFT ms",
                                          "speed_up=Speed-up",
                                          "bound=Bound by kept tokens",
                                          "share=Share of it",
                                          "bound_flops=Bound by FLOPs",
                                          "share_flops=Share of it"};
    const struct quality_flags *f = q->flags;
    report_paragraph(report, "Main model %s, speculator %s, random weights, %s.", f->shape, f->spec_shape, f->dtype);
    report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
}
