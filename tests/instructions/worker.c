// SPDX-License-Identifier: Apache-2.0
// Runs steps of a worker's scheduler: sequences arrive, prefill in chunks, decode and end. Some sequences are greedy,
// others are sampled on the host. The forward pass is not counted.
#include <check.h>
#include <stdlib.h>

#include "lib/base/random.h"
#include "tests/instructions/rows.h"
#include "tests/tiny_model.h"
#include "worker/pace.h"
#include "worker/scheduler.h"

enum { SEQUENCES = 64, AT_ONCE = 16, BUDGET = 64, CONTEXT = 192, BLOCKS = 256, PROMPT_MAX = 100, OUTPUT_MAX = 64 };

static int32_t tokens[SEQUENCES][PROMPT_MAX];
static long n_outputs;

static void report_take(void *arg, const struct step_report *report)
{
    n_outputs += report->n_outputs;
}

static struct engine *engine_start(const char *dir, struct comm **comm_p)
{
    struct engine *engine;
    // This backend computes the same bits on every machine.
    const struct model_options options = {.dir = dir,
                                          .backend = "reference",
                                          .dtype = "f32",
                                          .kv_dtype = "auto",
                                          .threads = 1,
                                          .max_rows = BUDGET,
                                          .max_seqs = AT_ONCE,
                                          .n_kv_blocks = BLOCKS};
    ck_assert_int_eq(comm_open_self(comm_p), STATUS_OK);
    ck_assert_msg(engine_open(&options, *comm_p, &engine) == STATUS_OK, "%s", status_message());
    return engine;
}

static void sequence_add(struct scheduler *scheduler, int index, struct random_source *random, int vocab)
{
    struct sequence_request ask = {.id = (uint64_t)index, .tokens = tokens[index]};
    ask.n_tokens = ask.prompt_tokens = 1 + (int)(random_next(random) % PROMPT_MAX);
    for (int i = 0; i < ask.n_tokens; i++)
        tokens[index][i] = (int32_t)(random_next(random) % (uint64_t)vocab);
    sampling_defaults(&ask.sampling);
    ask.sampling.ignore_eos = true;
    ask.sampling.max_tokens = 1 + (int)(random_next(random) % OUTPUT_MAX);
    ask.sampling.seed = random_next(random);
    if (index % 4 == 0) {
        ask.sampling.temperature = 0.8;
        ask.sampling.top_p = 0.9;
        ask.sampling.repetition_penalty = 1.1;
    }
    ck_assert_msg(scheduler_add(scheduler, &ask) == STATUS_OK, "%s", status_message());
}

long row_scheduler_step(void)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.hidden = 16;
    spec.intermediate = 16;
    spec.n_heads = spec.n_kv_heads = 1;
    char *dir = tiny_model_temp(&spec);
    struct comm *comm;
    struct engine *engine = engine_start(dir, &comm);
    const struct scheduler_limits limits = {.token_budget = BUDGET,
                                            .max_seqs = AT_ONCE,
                                            .context_tokens = CONTEXT,
                                            .kv_blocks = BLOCKS,
                                            .prefix_cache = true,
                                            .pace_us = PACE_UNLIMITED};
    struct scheduler *scheduler;
    ck_assert_msg(scheduler_create(engine, &limits, report_take, NULL, &scheduler) == STATUS_OK, "%s",
                  status_message());
    struct random_source random = random_stream(1, 1);
    for (int i = 0; i < SEQUENCES; i++)
        sequence_add(scheduler, i, &random, spec.vocab_size);
    long steps = 0;
    counting_begin();
    for (; scheduler_busy(scheduler); steps++)
        ck_assert_int_eq(scheduler_step(scheduler), STATUS_OK);
    counting_end();
    ck_assert_int_gt(n_outputs, SEQUENCES);
    scheduler_free(scheduler);
    engine_close(engine);
    comm->ops->close(comm);
    tiny_model_remove(dir);
    return steps;
}
