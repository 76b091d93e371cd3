// SPDX-License-Identifier: Apache-2.0
// Workloads of bench/: arrivals, traces, and percentiles of latencies.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/arrivals.h"
#include "bench/quantiles.h"
#include "bench/throughput_share.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "tests/suite.h"

// ---- quantiles ------------------------------------------------------------------------------------------------------

START_TEST(percentiles_are_interpolated)
{
    struct samples s = {0};
    struct quantiles none = samples_quantiles(&s);
    ck_assert(isnan(none.mean));
    ck_assert(isnan(none.p50));
    ck_assert(isnan(none.max));
    samples_add(&s, 7);
    ck_assert_double_eq(samples_percentile(&s, 99), 7);
    static const double more[] = {1, 9, 3, 5};
    for (int i = 0; i < 4; i++)
        samples_add(&s, more[i]);
    struct quantiles q = samples_quantiles(&s); // 1 3 5 7 9
    ck_assert_double_eq(q.mean, 5);
    ck_assert_double_eq(q.p50, 5);
    ck_assert_double_eq_tol(q.p90, 8.2, 1e-12);  // 3.6 of the way
    ck_assert_double_eq_tol(q.p99, 8.92, 1e-12); // 3.96
    ck_assert_double_eq(q.max, 9);
    ck_assert_double_eq(samples_percentile(&s, 0), 1);
    ck_assert_double_eq(samples_percentile(&s, 37.5), 4);
    samples_free(&s);
}
END_TEST

// ---- arrivals -------------------------------------------------------------------------------------------------------

enum { N = 20000 };

START_TEST(constant_arrivals_have_equal_gaps)
{
    int64_t at[5];
    arrivals_make(ARRIVALS_CONSTANT, 4, 1, 5, at);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(at[i], 250000 * i);
}
END_TEST

START_TEST(poisson_arrivals_have_the_mean_and_deviation_of_exponential_gaps)
{
    int64_t *at = mem_alloc_array(N, sizeof *at), *again = mem_alloc_array(N, sizeof *again);
    arrivals_make(ARRIVALS_POISSON, 50, 3, N, at);
    ck_assert_int_eq(at[0], 0);
    double mean = (double)at[N - 1] / (N - 1), variance = 0;
    ck_assert_double_eq_tol(mean, 20000, 600); // four standard deviations
    int over = 0;
    for (int i = 1; i < N; i++) {
        double gap = (double)(at[i] - at[i - 1]);
        ck_assert(gap >= 0);
        variance += (gap - mean) * (gap - mean) / (N - 1);
        over += gap > mean;
    }
    ck_assert_double_eq_tol(sqrt(variance) / mean, 1, 0.05);
    ck_assert_double_eq_tol((double)over / N, exp(-1), 0.02);
    arrivals_make(ARRIVALS_POISSON, 50, 3, N, again);
    ck_assert(memcmp(at, again, N * sizeof *at) == 0);
    arrivals_make(ARRIVALS_POISSON, 50, 4, N, again);
    ck_assert(memcmp(at, again, N * sizeof *at) != 0);
    free(at);
    free(again);
}
END_TEST

START_TEST(random_streams_are_independent_and_uniform)
{
    struct random_source a = random_stream(1, 0), b = random_stream(1, 1), c = random_stream(2, 0);
    ck_assert_uint_ne(random_next(&a), random_next(&b));
    ck_assert_uint_ne(random_next(&a), random_next(&c));
    int counts[10] = {0};
    for (int i = 0; i < N; i++)
        counts[random_below(&a, 10)]++;
    for (int i = 0; i < 10; i++)
        ck_assert_int_le(abs(counts[i] - N / 10), 200);
}
END_TEST

// ---- traces ---------------------------------------------------------------------------------------------------------

static char path[] = "/tmp/forepack-trace-XXXXXX";

static void write_trace(const char *text)
{
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

START_TEST(trace_columns_are_found_by_name)
{
    write_trace("arrival_ms,prompt_tokens,output_tokens\r\n0,374,44\r\n4314.579,396,0\r\n\n4314.579,1,7");
    struct trace t;
    ck_assert_msg(trace_read(path, &t) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(t.n_rows, 3);
    ck_assert(t.rows[1].arrival_ms == 4314.579);
    ck_assert_int_eq(t.rows[1].prompt_tokens, 396);
    ck_assert_int_eq(t.rows[1].output_tokens, 0);
    ck_assert_int_eq(t.rows[2].n_blocks, 0);
    trace_free(&t);
    unlink(path);
    write_trace("output_tokens,other,prefix_blocks,prompt_tokens,arrival_ms\n5,x,0 12  7,1300,3\n6,,,9,4\n");
    ck_assert_msg(trace_read(path, &t) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(t.n_rows, 2);
    ck_assert_int_eq(t.rows[0].n_blocks, 3);
    ck_assert_int_eq(t.blocks[1], 12);
    ck_assert_int_eq(t.rows[1].n_blocks, 0);
    ck_assert_int_eq(t.rows[0].prompt_tokens, 1300);
    ck_assert_int_eq(t.rows[0].output_tokens, 5);
    ck_assert(t.rows[0].arrival_ms == 3);
    trace_free(&t);
    unlink(path);
}
END_TEST

START_TEST(trace_errors_name_the_line)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "has no rows"},
        {"arrival_ms,prompt_tokens,output_tokens\n", "has no rows"},
        {"arrival_ms,tokens\n0,1\n", ":1: the header lacks the column prompt_tokens"},
        {"arrival_ms,prompt_tokens,output_tokens\n0,1,1\n1,2\n", ":3: the row lacks output_tokens"},
        {"arrival_ms,prompt_tokens,output_tokens\n0,0,1\n", ":2: prompt_tokens '0': must be"},
        {"arrival_ms,prompt_tokens,output_tokens\n0,12x,1\n", ":2: prompt_tokens '12x': must be"},
        {"arrival_ms,prompt_tokens,output_tokens\n0,99999999999,1\n", ":2: prompt_tokens"},
        {"arrival_ms,prompt_tokens,output_tokens\n0,1,-1\n", ":2: output_tokens '-1': must be"},
        {"arrival_ms,prompt_tokens,output_tokens\nnan,1,1\n", ":2: arrival_ms 'nan': must be"},
        {"arrival_ms,prompt_tokens,output_tokens\n,1,1\n", ":2: arrival_ms '': must be"},
        {"arrival_ms,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n", ":3: arrival_ms 4 is less than"},
        {"arrival_ms,prompt_tokens,output_tokens,prefix_blocks\n5,1,1,1 b\n", ":2: prefix_blocks '1 b': must be"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_trace(bad[i].text);
        struct trace t;
        ck_assert_int_eq(trace_read(path, &t), STATUS_INVALID);
        ck_assert_msg(strstr(status_message(), bad[i].message) != NULL, "%zu: %s", i, status_message());
        unlink(path);
    }
    struct trace t;
    ck_assert_int_eq(trace_read("/no/such/trace.csv", &t), STATUS_NOT_FOUND);
}
END_TEST

static int common_prefix(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

START_TEST(prompts_with_equal_block_ids_share_their_tokens)
{
    write_trace("arrival_ms,prompt_tokens,output_tokens,prefix_blocks\n0,1200,1,5 6 7\n0,1500,1,5 6 8\n0,1200,1,5 6 7\n"
                "0,2000,1,5\n0,700,1,\n0,700,1,\n");
    struct trace t;
    ck_assert_msg(trace_read(path, &t) == STATUS_OK, "%s", status_message());
    unlink(path);
    enum { MOST = 4000, VOCAB = 30000 };
    static int32_t tokens[6][MOST];
    int n[6];
    for (int i = 0; i < 6; i++)
        trace_prompt(&t, i, 1, 9, VOCAB, MOST, tokens[i], &n[i]);
    ck_assert_int_eq(n[0], 1200);
    ck_assert_int_eq(n[1], 1500);
    ck_assert_int_eq(n[3], 2000);
    ck_assert_int_eq(n[4], 700);
    ck_assert_int_eq(common_prefix(tokens[0], n[0], tokens[1], n[1]), 1024);
    ck_assert_int_eq(common_prefix(tokens[0], n[0], tokens[2], n[2]), 1200);
    ck_assert_int_eq(common_prefix(tokens[0], n[0], tokens[3], n[3]), 512);
    ck_assert_int_eq(common_prefix(tokens[4], n[4], tokens[5], n[5]), 0);
    ck_assert_int_lt(common_prefix(tokens[3] + 512, 512, tokens[3] + 1024, 512), 10); // blocks of one prompt differ
    for (int i = 0; i < n[3]; i++) {
        ck_assert_int_ge(tokens[3][i], 0);
        ck_assert_int_lt(tokens[3][i], VOCAB);
    }
    // With a length scale below 1, blocks shrink with their prompts.
    for (int i = 0; i < 2; i++)
        trace_prompt(&t, i, 0.1, 9, VOCAB, MOST, tokens[i], &n[i]);
    ck_assert_int_eq(n[0], 120);
    ck_assert_int_eq(n[1], 150);
    ck_assert_int_eq(common_prefix(tokens[0], n[0], tokens[1], n[1]), 102);
    trace_prompt(&t, 0, 1e-6, 9, VOCAB, MOST, tokens[0], &n[0]);
    ck_assert_int_eq(n[0], 1);
    trace_prompt(&t, 0, 10, 9, VOCAB, MOST, tokens[0], &n[0]);
    ck_assert_int_eq(n[0], MOST);
    trace_free(&t);
}
END_TEST

START_TEST(throughput_follows_from_growing_latencies)
{
    enum { REQUESTS = 400 };
    double due_s[REQUESTS], e2e_s[REQUESTS];
    // Requests arrive 30 times a second and end 25.6 times a second.
    for (int i = 0; i < REQUESTS; i++) {
        due_s[i] = i / 30.0;
        e2e_s[i] = 0.5 + i / 25.6 - i / 30.0;
    }
    ck_assert_double_eq_tol(throughput_share(due_s, e2e_s, REQUESTS), 25.6 / 30, 1e-9);
    e2e_s[REQUESTS - 1] = 100; // a single slow answer
    ck_assert_double_eq_tol(throughput_share(due_s, e2e_s, REQUESTS), 25.6 / 30, 0.01);
    for (int i = 0; i < REQUESTS; i++)
        e2e_s[i] = 0.5 + (i * 7 % 10) / 100.0;
    ck_assert_double_eq_tol(throughput_share(due_s, e2e_s, REQUESTS), 1, 1e-3);
    for (int i = 0; i < REQUESTS; i++)
        if (i % 10 == 0) e2e_s[i] = NAN; // a tenth fails
    ck_assert_double_eq_tol(throughput_share(due_s, e2e_s, REQUESTS), 0.9, 2e-3);
    ck_assert_double_eq(throughput_share(due_s, e2e_s, 0), 0);
}
END_TEST

SUITE("workload")
{
    TEST(throughput_follows_from_growing_latencies);
    TEST(percentiles_are_interpolated);
    TEST(constant_arrivals_have_equal_gaps);
    TEST(poisson_arrivals_have_the_mean_and_deviation_of_exponential_gaps);
    TEST(random_streams_are_independent_and_uniform);
    TEST(trace_columns_are_found_by_name);
    TEST(trace_errors_name_the_line);
    TEST(prompts_with_equal_block_ids_share_their_tokens);
}
