// SPDX-License-Identifier: Apache-2.0
// forepack bench serve: latencies and throughput of a running cluster under load. Every level of load gives one row.
#include "bench/commands/serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "bench/report.h"
#include "cli/remote.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

static struct serve_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "-Requests"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts,
     .help = "JSON Lines as for forepack batch; starts over after the last row"},
    {.name = "trace", .type = OPTION_STRING, .value = &o.trace,
     .help = "CSV with arrival_ms, prompt_tokens, output_tokens and optionally prefix_blocks; prompts are random tokens"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .unit = "tokens",
     .help = "random prompts of these lengths, comma-separated, cycled; outputs have --max-tokens tokens"},
    {.name = "length-scale", .type = OPTION_REAL, .value = &o.length_scale, .default_text = "1", .min = 1e-6, .max = 1000,
     .help = "with --trace: factor on prompt and output lengths"},
    {.name = "-Arrivals"},
    {.name = "qps", .type = OPTION_STRING, .value = &o.qps, .unit = "requests/s",
     .help = "open loop: arrival rates, comma-separated, one level each, or \"search\" for --search from 1; without it "
             "--trace replays the recorded times"},
    {.name = "arrivals", .type = OPTION_CHOICE, .value = &o.arrivals, .default_text = "poisson",
     .choices = "poisson|constant", .help = "distribution of the gaps between requests with --qps"},
    {.name = "concurrency", .type = OPTION_STRING, .value = &o.concurrency, .unit = "requests",
     .help = "closed loop: numbers of concurrent requests, comma-separated; each number is one level"},
    {.name = "time-scale", .type = OPTION_REAL, .value = &o.time_scale, .default_text = "1", .min = 1e-6, .max = 1e6,
     .help = "with --trace: factor on the gaps between arrivals; 0.5 doubles the rate"},
    {.name = "requests", .type = OPTION_INT, .value = &o.requests, .default_text = "0", .max = 10000000,
     .help = "most requests of a level; 0 is the whole trace, as many as fit into --duration, or 100"},
    {.name = "duration", .type = OPTION_REAL, .value = &o.duration, .default_text = "0", .max = 1e6, .unit = "s",
     .help = "with --qps or --trace: time over which the requests of a level arrive; 0 is no limit"},
    {.name = "warm-up", .type = OPTION_INT, .value = &o.warm_up, .default_text = "4", .max = 100000, .unit = "requests",
     .help = "uncounted requests before the first level, one at a time"},
    {.name = "load-seed", .type = OPTION_INT, .value = &o.load_seed, .default_text = "1", .help = "seed of arrivals and random tokens"},
    {.name = "-Limits"},
    {.name = "timeout", .type = OPTION_REAL, .value = &o.timeout, .default_text = "60", .max = 1e6, .unit = "s",
     .help = "a request not complete this long after its arrival is aborted and counted as failed; 0 is no limit"},
    {.name = "ttft-limit-ms", .type = OPTION_INT, .value = &o.ttft_limit_ms, .default_text = "0", .max = 1e9, .unit = "ms",
     .help = "TTFT limit of a good answer; 0 is no limit"},
    {.name = "hold-share", .type = OPTION_REAL, .value = &o.hold_share, .default_text = "0.95", .min = 0.01, .max = 1,
     .help = "share of good answers from which a level counts as held"},
    {.name = "hold-throughput", .type = OPTION_REAL, .value = &o.hold_throughput, .default_text = "0.98", .min = 0.01, .max = 1,
     .help = "share of the arrival rate that the throughput of a held level must reach"},
    {.name = "search", .type = OPTION_BOOL, .value = &o.search,
     .help = "search for the highest rate that is held, starting from the first --qps, to within 10 %"},
    {.name = "-Results"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "also write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON object"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

enum { SEARCH_LEVELS_MAX = 20 };
static const double search_step = 1.1, search_min_qps = 1e-3;

// ---- levels ---------------------------------------------------------------------------------------------------------

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static enum status serve_run_load(struct serve *s, const struct serve_level *level, int n, bool quiet,
                                  struct load_result *result)
{
    char *run = mem_format("%s-%d", s->run_name, level->number), *label = serve_level_name(level);
    int64_t *due_us = serve_schedule(s, level, n);
    struct rpc_bytes *messages = serve_pack_requests(s, level, n, run);
    const struct load load = {
        .remote = &o.remote,
        .n = n,
        .messages = messages,
        .run = run,
        .due_us = due_us,
        .concurrency = level->concurrency,
        .timeout_us = llround(o.timeout * 1e6),
        .label = quiet ? NULL : label,
    };
    enum status status = load_run(&load, result);
    for (int i = 0; i < n; i++)
        rpc_bytes_free(&messages[i]);
    free(messages);
    free(due_us);
    free(label);
    free(run);
    return status;
}

// Runs a level. *held_p becomes true if the level was held.
static enum status serve_run_level(struct serve *s, struct serve_level level, bool *held_p)
{
    level.number = s->n_levels + 1;
    struct load_result result;
    double cpu_s = cpu_seconds();
    enum status status = serve_run_load(s, &level, serve_count_requests(s, &level), false, &result);
    if (status == STATUS_OK) {
        if (*result.error) fprintf(stderr, "first failure: %s\n", result.error);
        *held_p = serve_add_level(s, &level, &result, cpu_seconds() - cpu_s);
    }
    load_result_free(&result);
    return status;
}

// Runs the warm-up. The first requests are slower: they touch the pages of the weights and fill the machine's caches.
static enum status serve_warm_up(struct serve *s)
{
    if (!o.warm_up) return STATUS_OK;
    const struct serve_level level = {.concurrency = 1};
    struct load_result result;
    enum status status = serve_run_load(s, &level, (int)o.warm_up, true, &result);
    if (status == STATUS_OK && result.records[0].end != LOAD_COMPLETE)
        status = status_fail(STATUS_UNAVAILABLE, "%s does not answer: %s", o.remote.server,
                             *result.error ? result.error : serve_failure_name(&result.records[0]));
    load_result_free(&result);
    return status;
}

// Searches the highest rate: doubles or halves it until one rate is held and one is missed, then narrows the interval.
static enum status serve_search(struct serve *s)
{
    double held = 0, missed = INFINITY, qps = s->qps[0];
    for (int i = 0; i < SEARCH_LEVELS_MAX && missed > held * search_step && qps >= search_min_qps; i++) {
        bool is_held;
        enum status status = serve_run_level(s, (struct serve_level){.qps = qps}, &is_held);
        if (status != STATUS_OK) return status;
        if (is_held)
            held = qps;
        else
            missed = qps;
        qps = isinf(missed) ? 2 * held : held > 0 ? sqrt(held * missed) : missed / 2;
    }
    return STATUS_OK;
}

static enum status serve_run_levels(struct serve *s)
{
    enum status status = serve_warm_up(s);
    bool held;
    if (status == STATUS_OK) serve_print_heading(s);
    if (status == STATUS_OK && o.search) return serve_search(s);
    for (int i = 0; i < s->n_qps && status == STATUS_OK; i++)
        status = serve_run_level(s, (struct serve_level){.qps = s->qps[i]}, &held);
    for (int i = 0; i < s->concurrency.n && status == STATUS_OK; i++)
        status = serve_run_level(s, (struct serve_level){.concurrency = s->concurrency.count[i]}, &held);
    if (status == STATUS_OK && !s->n_qps && !s->concurrency.n)
        status = serve_run_level(s, (struct serve_level){.replay = true}, &held);
    return status;
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status serve_check_flags(void)
{
    if (!!o.prompts + !!o.trace + !!o.prompt_tokens != 1)
        return status_fail(STATUS_INVALID, "give exactly one of --prompts F, --trace F and --prompt-tokens N");
    if (o.qps && o.concurrency) return status_fail(STATUS_INVALID, "give one of --qps and --concurrency");
    if (o.concurrency && o.duration > 0)
        return status_fail(STATUS_INVALID, "--duration cannot be used with --concurrency: give --requests");
    if (!o.qps && !o.concurrency && !o.trace)
        return status_fail(STATUS_INVALID, "give --qps or --concurrency (only --trace has recorded arrival times)");
    if (o.search && !o.qps) return status_fail(STATUS_INVALID, "--search: give --qps, the first rate to try");
    return STATUS_OK;
}

static enum status serve_configure(struct serve *s)
{
    enum status status = serve_check_flags();
    if (status == STATUS_OK) status = request_spec_from_flags(options, &s->defaults);
    if (status == STATUS_OK && o.qps && strcmp(o.qps, "search") == 0) {
        o.search = true;
        s->qps[s->n_qps++] = 1;
    } else if (status == STATUS_OK && o.qps) {
        status = real_list_parse("qps", o.qps, search_min_qps, 1e6, s->qps, &s->n_qps);
    }
    if (status == STATUS_OK && o.concurrency)
        status = count_list_parse("concurrency", o.concurrency, 1, 1000000, &s->concurrency);
    if (status == STATUS_OK && o.prompt_tokens)
        status = count_list_parse("prompt-tokens", o.prompt_tokens, 1, 100000000, &s->lengths);
    if (status == STATUS_OK && o.prompts)
        status = request_rows_read(o.prompts, &s->defaults, &s->prompts, &s->n_prompts);
    if (status == STATUS_OK && o.trace) status = trace_read(o.trace, &s->trace);
    return status;
}

static enum status serve_ask_model(struct serve *s)
{
    Forepack__V1__GetModelInfoRequest request = FOREPACK__V1__GET_MODEL_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    enum status status = remote_call(&o.remote, "/forepack.v1.Inference/GetModelInfo", &request.base,
                                     &forepack__v1__model_info__descriptor, &answer);
    if (status != STATUS_OK) return status;
    const Forepack__V1__ModelInfo *m = (const void *)answer;
    s->vocab_size = (int)m->vocab_size;
    s->context_tokens = (int)m->context_tokens;
    protobuf_c_message_free_unpacked(answer, NULL);
    if (s->vocab_size < 1 || s->context_tokens < 2)
        return status_fail(STATUS_INTERNAL, "%s reports a vocabulary of %d tokens and a context of %d", o.remote.server,
                           s->vocab_size, s->context_tokens);
    return STATUS_OK;
}

static void serve_free(struct serve *s)
{
    for (int i = 0; i < s->n_levels; i++)
        free(s->curves[i].name);
    free(s->curves);
    if (s->prompts) request_rows_free(s->prompts, s->n_prompts);
    request_spec_free(&s->defaults);
    trace_free(&s->trace);
    json_decref(s->rows);
}

int bench_serve(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench serve --server H:P (--prompts F.jsonl | --trace F.csv | --prompt-tokens N)\n"
                 "                            (--qps 1,2,4 | --qps search | --concurrency N) [options]\n"
                 "Latencies and throughput of a running cluster under load, as its clients see them.",
                 argc, argv, NULL);
    struct serve s = {.flags = &o, .rows = json_array()};
    struct report *report = NULL;
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)clock_now_us();
    snprintf(s.run_name, sizeof s.run_name, "%016llx", (unsigned long long)random);
    enum status status = serve_configure(&s);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench serve", &report);
    rpc_init();
    if (status == STATUS_OK) status = serve_ask_model(&s);
    if (status == STATUS_OK) status = serve_run_levels(&s);
    rpc_shutdown();
    if (status == STATUS_OK) serve_print_result(&s);
    if (status == STATUS_OK && report) serve_write_report(report, &s);
    if (report) {
        enum status written = report_close(report);
        if (status == STATUS_OK) status = written;
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    serve_free(&s);
    options_free(options);
    return code;
}
