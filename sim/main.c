// SPDX-License-Identifier: Apache-2.0
// forepack-sim: the cluster under virtual time. See docs/simulator.md.
#include <inttypes.h>
#include <stdio.h>

#include "lib/base/log_options.h"
#include "sim/generate.h"
#include "sim/isolated.h"
#include "sim/plan.h"
#include "sim/shrink.h"

static struct {
    int64_t seed, seeds, events, jobs, shrink_runs, failures_max;
    bool print, json;
    char *replay;
    struct plan_options plan;
    struct log_options log;
} o;

static const struct option options[] = {
    {.name = "-Seeds"},
    {.name = "seed",
     .type = OPTION_INT,
     .value = &o.seed,
     .default_text = "1",
     .max = 1e18,
     .help = "the scenario to run, or the first of a series (--seeds)"},
    {.name = "seeds",
     .type = OPTION_INT,
     .value = &o.seeds,
     .default_text = "1",
     .min = 1,
     .max = 1e12,
     .help = "number of scenarios to run, from --seed on"},
    {.name = "events",
     .type = OPTION_INT,
     .value = &o.events,
     .default_text = "5000",
     .min = 100,
     .max = 1e9,
     .unit = "events",
     .help = "rough size of a scenario"},
    {.name = "jobs",
     .type = OPTION_INT,
     .value = &o.jobs,
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .help = "scenarios that run at the same time, each in a process of its own"},
    {.name = "replay",
     .type = OPTION_STRING,
     .value = &o.replay,
     .placeholder = "FILE",
     .help = "runs the scenario of a file instead"},
    {.name = "print",
     .type = OPTION_BOOL,
     .value = &o.print,
     .help = "prints the scenario of --seed and does not run it"},
    {.name = "shrink-runs",
     .type = OPTION_INT,
     .value = &o.shrink_runs,
     .default_text = "2000",
     .max = 1e6,
     .unit = "runs",
     .help = "most runs spent on shrinking a failing scenario; 0 prints it unchanged"},
    {.name = "failures-max",
     .type = OPTION_INT,
     .value = &o.failures_max,
     .default_text = "10",
     .min = 1,
     .max = 1e12,
     .unit = "seeds",
     .help = "ends the series after this many failed seeds"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "prints one JSON object instead of lines"},
    PLAN_OPTION_ROWS(o.plan),
    {.name = "-Logging"},
    LOG_OPTION_ROWS_FROM(o.log, "error"), // a run logs as much as a whole cluster
    {0},
};

static const char usage[] =
    "Usage: forepack-sim [options]\n"
    "       forepack-sim (--trace FILE | --prompt-tokens N --qps X) --shape FILE [options]\n"
    "Runs a whole cluster in one process under virtual time, with faults drawn from a seed, and checks that\n"
    "every request is answered exactly once and correctly. A violation is shrunk, printed, and exit code 1.\n"
    "With --trace or --prompt-tokens it plans: what the clients of such a cluster would see under this load.";

// --- series

struct series {
    uint64_t seeds, failed, first_failed, events, digest;
    int64_t simulated_us;
    struct run_result failure; // the run of first_failed
};

static bool seed_ended(void *arg, uint64_t seed, const struct run_result *result)
{
    struct series *series = arg;
    series->seeds++;
    series->events += result->events;
    series->simulated_us += result->simulated_us;
    series->digest = series->digest * 3 + result->digest;
    if (!result->failed) return true;
    if (!series->failed++) {
        series->first_failed = seed;
        series->failure = *result;
    }
    fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, result->violation);
    return series->failed < (uint64_t)o.failures_max;
}

static void series_print(const struct series *series)
{
    const char *format = o.json ? "{\"seeds\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"events\":%" PRIu64
                                  ",\"simulated_s\":%.3f,\"digest\":\"%016" PRIx64 "\"}\n"
                                : "%" PRIu64 " seeds, %" PRIu64 " failed, %" PRIu64
                                  " events, %.3f s simulated, digest %016" PRIx64 "\n";
    printf(format, series->seeds, series->failed, series->events, (double)series->simulated_us / 1e6, series->digest);
}

// --- failures

static void failure_print(struct scenario *s, struct run_result result)
{
    if (o.shrink_runs) scenario_shrink(s, &result, (int)o.shrink_runs);
    printf("# %s\n", result.violation);
    printf("# forepack-sim --replay FILE runs these lines; a file in tests/sim makes them a test\n");
    scenario_write(s, stdout);
}

static int run_seeds(void)
{
    struct series series = {0};
    isolated_run_seeds((uint64_t)o.seed, (uint64_t)o.seeds, o.events, (int)o.jobs, seed_ended, &series);
    series_print(&series);
    if (!series.failed) return 0;
    struct scenario s;
    scenario_generate(series.first_failed, o.events, &s);
    failure_print(&s, series.failure);
    scenario_fini(&s);
    return 1;
}

static int run_replay(void)
{
    struct scenario s;
    if (scenario_read(o.replay, &s) != STATUS_OK) {
        fprintf(stderr, "forepack-sim: %s\n", status_message());
        return 2;
    }
    struct series series = {0};
    struct run_result result;
    isolated_run(&s, false, &result);
    seed_ended(&series, 0, &result);
    series_print(&series);
    scenario_fini(&s);
    return result.failed;
}

static int print_scenario(void)
{
    struct scenario s;
    scenario_generate((uint64_t)o.seed, o.events, &s);
    scenario_write(&s, stdout);
    scenario_fini(&s);
    return 0;
}

int main(int argc, char **argv)
{
    options_main(options, usage, argc, argv, NULL);
    log_options_apply(&o.log, "sim"); // without log_writer_start(): scenarios run in children, which have no threads
    bool plans = o.plan.trace || o.plan.prompt_tokens;
    int code = plans ? plan_main(&o.plan, o.json) : o.print ? print_scenario() : o.replay ? run_replay() : run_seeds();
    options_free(options);
    return code;
}
