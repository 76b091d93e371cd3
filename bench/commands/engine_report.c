// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "bench/commands/engine.h"
#include "bench/memory.h"

double engine_peak_rss_mb(const struct engine_bench *b)
{
    double sum = 0;
    for (int r = 0; r < b->ranks; r++)
        sum += memory_peak_mb(b->pids[r]);
    return sum;
}

void engine_print_heading(const struct engine_bench *b)
{
    if (b->flags->json) return;
    struct work_model shape = work_model_of(&b->config, 1, 0);
    double weights = shape.layer_weights + shape.head_weights * (b->config.tied_embeddings ? 1 : 2);
    printf(
        "%s: %.0f million %sweights in %s, %d rank%s, %d threads in total; opened in %.1f s, then %.0f MB resident\n",
        b->path, weights / 1e6, b->dummy ? "random " : "", b->dtype, b->ranks, b->ranks > 1 ? "s" : "", b->threads,
        b->open_seconds, b->megabytes_at_open);
    printf(BENCH_SHARE_LEGEND "\n\n");
    printf("%-8s %5s %7s %8s %10s %7s %10s %9s %9s %7s %7s %7s %8s\n", "phase", "batch", "tokens", "context",
           "tokens/s", "spread", "ms", "GFLOP/s", "peak", "GB/s", "DRAM", "share", "RSS MB");
    fflush(stdout);
}

// Returns "-" if the work was not counted.
static const char *rate_text(double work, double seconds, char text[static 16])
{
    if (work > 0)
        snprintf(text, 16, "%.1f", work / seconds);
    else
        strcpy(text, "-");
    return text;
}

static void engine_print_row(const struct engine_run *run, const struct measurement *m,
                             const struct rounds_readings *readings, const struct contender *c, double rss_mb)
{
    if (run->bench->flags->json) return;
    double tokens = (double)run->batch * run->tokens;
    char share[BENCH_SHARE_BYTES], gflops[16], gbytes[16];
    printf("%-8s %5d %7d %8d %10.1f %6.1f%% %10.2f %9s %9.1f %7s %7.1f %7s %8.0f\n", run->phase, run->batch,
           run->tokens, run->context, tokens / m->seconds, 100 * m->spread, 1000 * m->seconds,
           rate_text(c->gflop, m->seconds, gflops), readings->mean.gflops, rate_text(c->gbytes, m->seconds, gbytes),
           readings->mean.gbytes_per_s, c->gflop > 0 ? bench_share_text(m, share) : "-", rss_mb);
    fflush(stdout);
}

static void add_work(json_t *row, const struct engine_run *run, const struct measurement *m, const struct contender *c)
{
    json_object_set_new(row, "gflops", json_real(c->gflop / m->seconds));
    json_object_set_new(row, "gbytes_per_s", json_real(c->gbytes / m->seconds));
    json_object_set_new(row, "linear_gflop", json_real(run->work.linear_gflop));
    json_object_set_new(row, "attention_gflop", json_real(run->work.attention_gflop));
    json_object_set_new(row, "gbytes", json_real(run->work.gbytes));
    bench_add_share(row, m);
}

json_t *engine_add_row(struct engine_bench *b, const struct engine_run *run, const struct measurement *m,
                       const struct rounds_readings *readings, const struct contender *c)
{
    double rss_mb = engine_peak_rss_mb(b), tokens = (double)run->batch * run->tokens;
    engine_print_row(run, m, readings, c, rss_mb);
    json_t *row =
        json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:i}", "phase", run->phase, "tokens", run->tokens, "batch",
                  run->batch, "context", run->context, "tokens_per_s", tokens / m->seconds, "ms", 1000 * m->seconds,
                  "spread", m->spread, "peak_rss_mb", rss_mb, "rounds", (int)b->flags->rounds);
    if (c->gflop > 0) add_work(row, run, m, c);
    json_object_set_new(row, "backend", json_string(model_backend(engine_model(b->engine))));
    json_object_set_new(row, "dtype", json_string(b->dtype));
    json_object_set_new(row, "kv_dtype", json_string(b->kv_dtype));
    json_object_set_new(row, "ranks", json_integer(b->ranks));
    json_object_set_new(row, "threads", json_integer(b->threads));
    json_object_set_new(row, "open_s", json_real(b->open_seconds));
    bench_add_readings(row, readings);
    json_array_append_new(b->rows, row);
    return row;
}
