// SPDX-License-Identifier: Apache-2.0
// router/front/metrics_reporter: every request for metrics is answered once, from counts of the core's thread. This
// includes requests that wait when the reporter closes. Requests that arrive together share a copy.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "router/front/live/metrics_reporter.h"
#include "router/front/request/intake_pool.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { ASKS = 200 };

static struct fixture f;
static struct front front;
static struct refusals refusals;
static const struct http_server_status http = {.connections = 3, .responses[4] = 5};
static struct batch_metrics batch;
static atomic_int answered, wrong;
static char texts[2][64]; // the beginning of the last text of each format

static void answer(void *arg, enum metrics_format format, const char *text, size_t size)
{
    const enum metrics_format *expected = arg;
    wrong += format != *expected || size != strlen(text);
    wrong += !strstr(text, "forepack:requests_refused_total{reason=\"not_found\"} 2\n");
    wrong += !strstr(text, "forepack:model_info{model_name=\"m\"} 1\n");
    wrong += !strstr(text, "forepack:http_connections 3\n");
    wrong += !strstr(text, "forepack:http_responses_total{status=\"4xx\"} 5\n");
    snprintf(texts[format], sizeof texts[format], "%s", text);
    answered++;
}

static char *names[] = {"m"};

static void front_start(void)
{
    fixture_init(&f);
    fixture_start(&f);
    const struct intake_pool_options pool = {.threads = 1, .max_bytes = 1 << 20, .max_jobs = 10};
    memset(&refusals, 0, sizeof refusals);
    answered = wrong = 0;
    front = (struct front){
        .model_names = names, .n_model_names = 1, .loop = loop_start(f.c), .pool = intake_pool_open(&pool)};
    front.refusals = &refusals;
    front_refused(&front, STATUS_NOT_FOUND);
    front_refused(&front, STATUS_NOT_FOUND);
}

static void front_stop(void)
{
    intake_pool_close(front.pool);
    intake_pool_free(front.pool);
    loop_stop(front.loop);
    fixture_stop(&f);
}

START_TEST(every_request_is_answered_in_its_format)
{
    static enum metrics_format formats[] = {METRICS_TEXT, METRICS_OPENMETRICS};
    struct metrics_reporter *reporter = metrics_reporter_open(&front);
    for (int i = 0; i < ASKS; i++) {
        metrics_reporter_ask(reporter, formats[i % 2], &http, &batch, answer, &formats[i % 2]);
        if (i % 50 == 0)
            while (answered <= i)
                usleep(1000);
    }
    metrics_reporter_close(reporter);
    ck_assert_int_eq(answered, ASKS);
    ck_assert_int_eq(wrong, 0);
    ck_assert(strstr(texts[0], "# HELP forepack:time_to_first_token_seconds") == texts[0]);
    ck_assert_str_eq(texts[0], texts[1]);
}
END_TEST

struct gate {
    atomic_bool open;
};

static void event_wait(struct core *c, void *arg, int64_t now_us)
{
    const struct gate *gate = arg;
    while (!atomic_load(&gate->open))
        usleep(1000);
}

static void event_nothing(struct core *c, void *arg, int64_t now_us)
{
}

START_TEST(requests_that_come_while_the_core_is_busy_share_a_copy)
{
    static enum metrics_format format = METRICS_TEXT;
    struct gate gate = {false};
    struct metrics_reporter *reporter = metrics_reporter_open(&front);
    loop_post(front.loop, event_wait, &gate);
    while (loop_backlog(front.loop))
        usleep(1000);
    for (int i = 0; i < ASKS; i++)
        metrics_reporter_ask(reporter, format, &http, &batch, answer, &format);
    while (!loop_backlog(front.loop))
        usleep(1000);
    loop_post(front.loop, event_nothing, NULL);
    ck_assert_int_eq(loop_backlog(front.loop), 2); // one copy, and the event above
    atomic_store(&gate.open, true);
    metrics_reporter_close(reporter);
    ck_assert_int_eq(answered, ASKS);
    ck_assert_int_eq(wrong, 0);
}
END_TEST

SUITE("metrics_reporter")
{
    FIXTURE(front_start, front_stop);
    TEST(every_request_is_answered_in_its_format);
    TEST(requests_that_come_while_the_core_is_busy_share_a_copy);
}
