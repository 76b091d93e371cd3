// SPDX-License-Identifier: Apache-2.0
// The ttft task: time to first token with and without speculation, for random weights of any shape, compared with the
// bound that the remaining operations set.
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "bench/commands/quality.h"
#include "bench/passes.h"
#include "bench/quantiles.h"
#include "bench/work.h"

// Operations of a prefill of n tokens and of `steps` decode passes of one row.
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
static enum status ttft_run(struct quality *q, int look_ahead, int chunk_tokens, double keep_rate, bool with_plain,
                            struct ttft_times *t)
{
    int32_t token;
    struct model_pair_answer answer = {.tokens = &token};
    enum status status = STATUS_OK;
    if (with_plain) {
        status = model_pair_generate(q->pair, q->tokens, q->n, NULL, 0, 1, &answer);
        if (status == STATUS_OK) samples_add(&t->plain_ms, (double)answer.prefill_us / 1000);
    }
    int64_t score_us = 0;
    if (status == STATUS_OK) status = quality_score(q, look_ahead, &score_us);
    if (status != STATUS_OK) return status;
    struct token_range *kept;
    int n_kept = quality_select(q, chunk_tokens, keep_rate, q->tokens[0] == model_pair_spec(q->pair)->bos_id, &kept);
    t->kept_tokens = quality_kept_tokens(kept, n_kept);
    status = model_pair_generate(q->pair, q->tokens, q->n, kept, n_kept, 1, &answer);
    free(kept);
    samples_add(&t->score_ms, (double)score_us / 1000);
    samples_add(&t->ttft_ms, (double)(score_us + answer.prefill_us) / 1000);
    return status;
}

static void ttft_add_row(struct quality *q, int look_ahead, double keep_rate, struct ttft_times *t, double plain_ms)
{
    double whole = ttft_gflop(model_pair_main(q->pair), q->n, 0),
           spec = ttft_gflop(model_pair_spec(q->pair), q->n, look_ahead - 1);
    double left = ttft_gflop(model_pair_main(q->pair), t->kept_tokens, 0), kept_share = (double)t->kept_tokens / q->n;
    double ttft_ms = samples_percentile(&t->ttft_ms, 50), score_ms = samples_percentile(&t->score_ms, 50);
    double speed_up = plain_ms / ttft_ms;
    double bound = 1 / (kept_share + spec / whole), bound_flops = whole / (left + spec);
    if (!q->flags->json)
        printf("%8d %5g %9d | %6.3f | %10.1f | %10.1f %10.1f | %8.2f | %8.2f %5.1f%% | %8.2f %5.1f%%\n", q->n,
               keep_rate, look_ahead, kept_share, plain_ms, score_ms, ttft_ms, speed_up, bound, 100 * speed_up / bound,
               bound_flops, 100 * speed_up / bound_flops);
    fflush(stdout);
    json_array_append_new(
        q->rows, json_pack("{s:s,s:i,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "task", "ttft",
                           "tokens", q->n, "keep_rate", keep_rate, "look_ahead", look_ahead, "kept_share", kept_share,
                           "plain_ms", plain_ms, "score_ms", score_ms, "ttft_ms", ttft_ms, "speed_up", speed_up,
                           "bound", bound, "share", speed_up / bound, "bound_flops", bound_flops, "share_flops",
                           speed_up / bound_flops, "main_gflop", whole, "kept_gflop", left, "spec_gflop", spec));
}

// Each round runs everything kept and every keep rate, so that changes of the machine's speed affect all of them.
static enum status ttft_run_length(struct quality *q, int length, int look_ahead)
{
    int n_vocab = model_pair_main(q->pair)->vocab_size, n_spec = model_pair_spec(q->pair)->vocab_size;
    free(q->tokens);
    q->n = length;
    q->tokens = mem_alloc_array((size_t)length, sizeof *q->tokens);
    passes_tokens(q->tokens, length, n_vocab < n_spec ? n_vocab : n_spec);
    struct ttft_times *times = mem_alloc_array((size_t)q->n_keep_rates, sizeof *times);
    enum status status = STATUS_OK;
    for (int round = 0; round < q->flags->rounds && status == STATUS_OK; round++)
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            progress_draw(&q->progress, round * q->n_keep_rates + k, q->flags->rounds * q->n_keep_rates, false,
                          "%d tokens: round %d of %lld", length, round + 1, (long long)q->flags->rounds);
            status = ttft_run(q, look_ahead, q->chunks.count[0], q->keep_rates[k], k == 0, &times[k]);
        }
    double plain_ms = samples_percentile(&times[0].plain_ms, 50);
    for (int k = 0; k < q->n_keep_rates; k++) {
        if (status == STATUS_OK) ttft_add_row(q, look_ahead, q->keep_rates[k], &times[k], plain_ms);
        samples_free(&times[k].plain_ms);
        samples_free(&times[k].score_ms);
        samples_free(&times[k].ttft_ms);
    }
    free(times);
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
    // A short uncounted run of both models touches the pages of their weights and KV caches.
    struct ttft_times unused = {0};
    double rate = q->keep_rates[0];
    q->n = 64;
    q->tokens = mem_alloc_array((size_t)q->n, sizeof *q->tokens);
    enum status status = ttft_run(q, 1, q->chunks.count[0], rate, true, &unused);
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
