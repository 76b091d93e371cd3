// SPDX-License-Identifier: Apache-2.0
// identity: callers are found by their keys, keys change while the router runs, and limits hold. The test sets the
// time.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/identity/identity.h"
#include "lib/identity/key_file.h"
#include "lib/identity/limits.h"
#include "tests/suite.h"

enum { SECOND = 1000000, KEYS = 3 };

static int64_t now_us = SECOND;
int64_t clock_now_us(void) // instead of lib/base/clock.c
{
    return __atomic_load_n(&now_us, __ATOMIC_RELAXED);
}

static char path[] = "/tmp/check_identity.XXXXXX";
static char key[KEYS][KEY_BYTES + 1], hash[KEYS][2 * KEY_HASH_BYTES + 1];
static struct identity *identity;

// Replaces the file. The new file has a line for the first key, and one for the second key unless `end_of_second` is
// NULL.
static void keys_write(int first, const char *end_of_first, int second, const char *end_of_second)
{
    char *beside = mem_format("%s.new", path);
    FILE *file = fopen(beside, "w");
    fprintf(file, "key-%d sha256:%s %s\n", first, hash[first], end_of_first);
    if (end_of_second) fprintf(file, "key-%d sha256:%s %s\n", second, hash[second], end_of_second);
    fclose(file);
    ck_assert_int_eq(rename(beside, path), 0);
    free(beside);
    now_us += SECOND;
}

static void setup(void)
{
    strcpy(strrchr(path, '.'), ".XXXXXX");
    close(mkstemp(path));
    for (int k = 0; k < KEYS; k++) {
        uint8_t bytes[KEY_HASH_BYTES];
        key_generate(key[k], bytes);
        for (int i = 0; i < KEY_HASH_BYTES; i++)
            snprintf(hash[k] + 2 * i, 3, "%02x", bytes[i]);
    }
    keys_write(0, "acme priority=2", 1, "globex operator");
    ck_assert_msg(identity_open(path, &identity) == STATUS_OK, "%s", status_message());
}

static void teardown(void)
{
    identity_close(identity);
    unlink(path);
}

static struct principal *authenticated(int k)
{
    struct principal *p = NULL;
    ck_assert_msg(identity_authenticate_key(identity, key[k], &p) == STATUS_OK, "%s", status_message());
    return p;
}

// The sentence must contain `word` and no key.
static void refused(const char *authorization, const char *word)
{
    struct principal *p;
    ck_assert_int_eq(identity_authenticate(identity, authorization, &p), STATUS_UNAUTHENTICATED);
    ck_assert_msg(strstr(status_message(), word), "%s", status_message());
    ck_assert_ptr_null(strstr(status_message(), KEY_PREFIX));
}

static void refused_key(int k, const char *word)
{
    char *value = mem_format("Bearer %s", key[k]);
    refused(value, word);
    free(value);
}

START_TEST(callers_are_found_by_their_keys)
{
    struct principal *a = authenticated(0), *same, *b = authenticated(1);
    char *value = mem_format("bearer  %s", key[0]);
    ck_assert_int_eq(identity_authenticate(identity, value, &same), STATUS_OK);
    ck_assert_ptr_eq(same, a);
    ck_assert_str_eq(principal_key_id(a), "key-0");
    ck_assert_str_eq(principal_tenant(a), "acme");
    ck_assert(!principal_is_operator(a));
    ck_assert(principal_is_operator(b));
    free(value);
    principal_unref(a);
    principal_unref(same);
    principal_unref(b);
    refused(NULL, "is required");
    refused("", "must be 'Bearer KEY'");
    refused("Bearer ", "is required");
    refused("Basic abc", "must be 'Bearer KEY'");
    refused_key(2, "is unknown");
    key[0][KEY_BYTES - 1] ^= 1;
    refused_key(0, "is unknown");
    char *longest = mem_format("Bearer %0100000d", 7);
    refused(longest, "is unknown");
    free(longest);
}
END_TEST

START_TEST(a_request_names_its_own_tenant_and_an_allowed_priority)
{
    struct principal *p = authenticated(0);
    ck_assert_int_eq(principal_check(p, "", 2), STATUS_OK);
    ck_assert_int_eq(principal_check(p, "acme", -5), STATUS_OK);
    ck_assert_int_eq(principal_check(p, "globex", 0), STATUS_DENIED);
    ck_assert_int_eq(principal_check(p, "", 3), STATUS_DENIED);
    ck_assert_msg(strstr(status_message(), "may have at most 2"), "%s", status_message());
    principal_unref(p);
}
END_TEST

// Priorities of requests and keys below -8 count as -8, and above 8 as 8.
START_TEST(a_priority_out_of_range_counts_as_the_nearest_in_range)
{
    keys_write(0, "acme priority=8", 1, "globex priority=-1000");
    struct principal *highest = authenticated(0), *lowest = authenticated(1);
    ck_assert_int_eq(principal_check(highest, "", 9), STATUS_OK);
    ck_assert_int_eq(principal_check(highest, "", INT32_MAX), STATUS_OK);
    ck_assert_int_eq(principal_check(lowest, "", -8), STATUS_OK);
    ck_assert_int_eq(principal_check(lowest, "", -7), STATUS_DENIED);
    principal_unref(highest);
    principal_unref(lowest);
}
END_TEST

START_TEST(changes_of_the_file_take_effect_within_a_second)
{
    struct principal *before = authenticated(0);
    int64_t retry_us;
    keys_write(0, "acme concurrency=1", 2, "initech");
    now_us -= SECOND; // not yet
    refused_key(2, "is unknown");
    now_us += SECOND;
    struct principal *added = authenticated(2), *same = authenticated(0);
    ck_assert_ptr_eq(same, before); // the key keeps the counts of its limits
    refused_key(1, "is unknown");
    ck_assert_int_eq(identity_admit(before, &retry_us), STATUS_OK);
    ck_assert_int_eq(identity_admit(same, &retry_us), STATUS_KEY_LIMIT); // the new limit

    keys_write(0, "acme revoked", 2, "initech expires=2020-01-01");
    refused_key(0, "was revoked");
    refused_key(2, "expired at 2020-01-01T00:00:00Z");
    ck_assert_int_eq(identity_admit(added, &retry_us), STATUS_UNAUTHENTICATED); // a call that is still open
    ck_assert_int_eq(identity_admit(before, &retry_us), STATUS_UNAUTHENTICATED);
    identity_end(before, 0, 0);
    ck_assert_str_eq(principal_tenant(before), "acme");
    principal_unref(before);
    principal_unref(same);
    principal_unref(added);
}
END_TEST

START_TEST(a_key_that_left_the_file_or_changed_its_tenant_starts_nothing)
{
    struct principal *gone = authenticated(0), *moved = authenticated(1);
    int64_t retry_us;
    keys_write(1, "other", 0, NULL);
    struct principal *now = authenticated(1);
    ck_assert_ptr_ne(now, moved);
    ck_assert_str_eq(principal_tenant(moved), "globex");
    ck_assert_int_eq(identity_admit(gone, &retry_us), STATUS_UNAUTHENTICATED);
    ck_assert_int_eq(identity_admit(moved, &retry_us), STATUS_UNAUTHENTICATED);
    ck_assert_int_eq(identity_admit(now, &retry_us), STATUS_OK);
    identity_end(now, 0, 0);
    principal_unref(gone);
    principal_unref(moved);
    principal_unref(now);
}
END_TEST

START_TEST(a_broken_or_missing_file_keeps_the_keys_before_it)
{
    keys_write(0, "acme colour=blue", 0, NULL);
    principal_unref(authenticated(0));
    principal_unref(authenticated(1));
    unlink(path);
    now_us += SECOND;
    principal_unref(authenticated(1));
    keys_write(0, "acme", 0, NULL);
    principal_unref(authenticated(0));
    refused_key(1, "is unknown");
    struct identity *none;
    keys_write(0, "acme colour=blue", 0, NULL);
    ck_assert_int_eq(identity_open(path, &none), STATUS_INVALID);
}
END_TEST

static void *authenticate_often(void *arg)
{
    for (int i = 0; i < 2000; i++) {
        struct principal *p;
        int64_t retry_us;
        if (identity_authenticate_key(identity, key[0], &p) != STATUS_OK) return arg;
        if (identity_admit(p, &retry_us) != STATUS_OK) return arg;
        identity_reserve(p, &(struct limits_need){1, 1, 2}, &retry_us);
        identity_end(p, 2, 1);
        principal_unref(p);
        __atomic_fetch_add(&now_us, SECOND / 10, __ATOMIC_RELAXED);
    }
    return NULL;
}

START_TEST(threads_authenticate_while_the_file_changes)
{
    pthread_t threads[3];
    for (int t = 0; t < 3; t++)
        pthread_create(&threads[t], NULL, authenticate_often, path);
    for (int i = 0; i < 100; i++) {
        char *beside = mem_format("%s.new", path);
        FILE *file = fopen(beside, "w");
        fprintf(file, "key-0 sha256:%s acme concurrency=%d\n", hash[0], 100 + i);
        fclose(file);
        rename(beside, path);
        free(beside);
    }
    for (int t = 0; t < 3; t++) {
        void *failed;
        pthread_join(threads[t], &failed);
        ck_assert_ptr_null(failed);
    }
}
END_TEST

START_TEST(salts_belong_to_tenants)
{
    ck_assert_uint_eq(identity_prefix_salt("acme", ""), identity_prefix_salt("acme", ""));
    ck_assert_uint_ne(identity_prefix_salt("acme", ""), identity_prefix_salt("acm", ""));
    ck_assert_uint_ne(identity_prefix_salt("", ""), 0);
    ck_assert_uint_eq(identity_prefix_salt("acme", "a"), identity_prefix_salt("acme", "a"));
    ck_assert_uint_ne(identity_prefix_salt("acme", "a"), identity_prefix_salt("acme", "b"));
    ck_assert_uint_ne(identity_prefix_salt("acme", "a"), identity_prefix_salt("acmea", ""));
    ck_assert_uint_ne(identity_prefix_salt("acme", "a"), identity_prefix_salt("a", "acme"));
}
END_TEST

// --- limits

static struct limits_use use;
static int64_t retry_us;

// Reserves for a message of n requests whose prompts and answers have this many tokens in all.
static enum status reserve(const struct key_limits *limits, int n, double prompts, double answers)
{
    TRY(limits_start(&use, limits, now_us, &retry_us));
    enum status status = limits_reserve(&use, limits, &(struct limits_need){n, prompts, answers}, now_us, &retry_us);
    if (status != STATUS_OK) limits_end(&use, limits, 0, 0, now_us);
    return status;
}

// Reserves for a request whose answer takes no tokens.
static bool starts(const struct key_limits *limits, double tokens)
{
    return reserve(limits, 1, tokens, 0) == STATUS_OK;
}

static void ck_says(const char *words)
{
    ck_assert_msg(strstr(status_message(), words), "%s", status_message());
}

START_TEST(requests_start_at_the_rate_of_their_limit)
{
    const struct key_limits limits = {.requests_per_minute = 6};
    use = (struct limits_use){0};
    for (int i = 0; i < 6; i++)
        ck_assert(starts(&limits, 1000));
    ck_assert(!starts(&limits, 1));
    ck_assert_int_eq(retry_us, 10 * SECOND);
    now_us += retry_us - 1;
    ck_assert(!starts(&limits, 1));
    now_us += 1;
    ck_assert_int_eq(limits_count_call(&use, &limits, now_us, &retry_us), STATUS_OK); // this call counts
    ck_assert_int_eq(limits_count_call(&use, &limits, now_us, &retry_us), STATUS_KEY_LIMIT);
    ck_assert(!starts(&limits, 1));
    ck_assert(starts(&(struct key_limits){0}, 1)); // the limit was removed
}
END_TEST

START_TEST(a_prompt_may_exceed_the_limit_and_the_next_one_waits)
{
    const struct key_limits limits = {.tokens_per_minute = 6000};
    use = (struct limits_use){0};
    ck_assert(starts(&limits, 5999));
    limits_end(&use, &limits, 0, 1, now_us); // one generated token
    ck_assert(!starts(&limits, 1));
    ck_assert_int_eq(retry_us, SECOND / 100);
    ck_assert_int_eq(limits_count_call(&use, &limits, now_us, &retry_us), STATUS_OK); // needs no tokens
    now_us += SECOND;
    ck_assert(starts(&limits, 100000));
    ck_assert(!starts(&limits, 1));
    ck_assert_int_eq(retry_us, (100000 - 100 + 1) * (int64_t)(SECOND / 100));
    limits_end(&use, &limits, 0, -100000, now_us); // none of it was computed
    ck_assert(starts(&limits, 1));
}
END_TEST

START_TEST(the_tokens_of_all_answers_are_reserved_and_what_is_not_generated_is_given_back)
{
    const struct key_limits limits = {.tokens_per_minute = 6000, .tokens_per_day = 100000};
    use = (struct limits_use){0};
    ck_assert_int_eq(reserve(&limits, 4, 4000, 1600), STATUS_OK);
    ck_assert_int_eq(reserve(&limits, 1, 100, 301), STATUS_KEY_LIMIT);
    ck_says("6000 tokens per minute, of which 400 are left, and 401 may be needed: lower max_tokens, or try again in");
    ck_assert_int_eq(retry_us, SECOND / 100); // a prompt drains
    ck_assert_int_eq(reserve(&limits, 1, 100, 300), STATUS_OK);
    ck_assert_int_eq(reserve(&limits, 1, 1, 0), STATUS_KEY_LIMIT);
    for (int i = 0; i < 4; i++)
        limits_end(&use, &limits, 400, i ? 0 : 100, now_us);
    ck_assert_int_eq(reserve(&limits, 2, 1000, 501), STATUS_KEY_LIMIT);
    ck_assert_int_eq(reserve(&limits, 2, 1000, 500), STATUS_OK);
    now_us += INT64_C(60) * SECOND; // reserved tokens do not drain
    ck_assert_int_eq(reserve(&limits, 1, 5201, 0), STATUS_KEY_LIMIT);
    ck_assert_int_eq(retry_us, 0); // unknown: a request has to end first
    ck_says("try again when running requests have ended");
    ck_assert_int_eq(reserve(&limits, 1, 5200, 0), STATUS_OK);
    ck_assert_int_eq(use.running, 4);
}
END_TEST

START_TEST(one_request_may_exceed_the_limit_alone_and_several_never)
{
    const struct key_limits limits = {.tokens_per_minute = 6000};
    use = (struct limits_use){0};
    ck_assert_int_eq(reserve(&limits, 1024, 1024, 1024 * 100000.0), STATUS_DENIED);
    ck_says("n: the prompts and answers of 1024 choices may have 102401024 tokens, this API key has 6000 tokens per "
            "minute");
    ck_assert_int_eq(use.running, 0);
    ck_assert(!(use.reserved > 0));
    ck_assert_int_eq(reserve(&limits, 1, 10, 8192), STATUS_OK);
    ck_assert_int_eq(reserve(&limits, 1, 10, 8192), STATUS_KEY_LIMIT); // while another request runs
    ck_says("which are used up: try again when running requests have ended");
    ck_assert_int_eq(limits_count_call(&use, &limits, now_us, &retry_us), STATUS_OK); // needs no tokens
    limits_end(&use, &limits, 8192, 5, now_us);
    ck_assert_int_eq(reserve(&limits, 1, 10, 8192), STATUS_OK);
}
END_TEST

START_TEST(the_limit_with_the_longest_wait_is_named)
{
    const struct key_limits limits = {.requests_per_minute = 1, .tokens_per_minute = 10, .tokens_per_day = 1440};
    use = (struct limits_use){0};
    ck_assert(starts(&limits, 1440));
    ck_assert(!starts(&limits, 1));
    ck_assert_msg(strstr(status_message(), "10 tokens per minute"), "%s", status_message());
    now_us += INT64_C(144) * 60 * SECOND; // a tenth of a day
    ck_assert(starts(&limits, 144));
    now_us += 60 * SECOND;
    ck_assert(!starts(&limits, 1));
    ck_assert_msg(strstr(status_message(), "10 tokens per minute"), "%s", status_message());
    now_us += 15 * 60 * SECOND;
    ck_assert(starts(&limits, 1440));
    now_us += INT64_C(720) * 60 * SECOND; // half a day, after the tokens of two
    ck_assert(!starts(&limits, 1));
    ck_assert_msg(strstr(status_message(), "1440 tokens per day"), "%s", status_message());
}
END_TEST

START_TEST(a_limit_that_was_lowered_has_a_wait_of_at_most_a_year)
{
    struct key_limits limits = {.tokens_per_day = INT64_C(200000000)};
    use = (struct limits_use){0};
    ck_assert(starts(&limits, 200000000));
    limits.tokens_per_day = 1;
    ck_assert(!starts(&limits, 1));
    ck_assert_int_eq(retry_us, INT64_C(366) * 1440 * 60 * SECOND);
}
END_TEST

START_TEST(no_more_requests_run_than_the_limit)
{
    const struct key_limits limits = {.concurrency = 2};
    use = (struct limits_use){0};
    ck_assert(starts(&limits, 1));
    ck_assert(starts(&limits, 1));
    ck_assert(!starts(&limits, 1));
    ck_assert_int_eq(retry_us, 0);
    ck_assert_int_eq(limits_count_call(&use, &limits, now_us, &retry_us), STATUS_OK);
    limits_end(&use, &limits, 0, 0, now_us);
    ck_assert_int_eq(reserve(&limits, 2, 1, 1), STATUS_KEY_LIMIT); // another choice of a message
    ck_says("1 more are over its limit of 2");
    ck_assert_int_eq(reserve(&limits, 3, 1, 1), STATUS_DENIED);
    limits_end(&use, &limits, 0, 0, now_us);
    ck_assert_int_eq(reserve(&limits, 2, 1, 1), STATUS_OK);
    ck_assert(!starts(&limits, 1));
    limits_end(&use, &limits, 0, 0, now_us);
    ck_assert(starts(&limits, 1));
}
END_TEST

SUITE("identity")
{
    log_setup("check_identity", LOG_ERROR);
    TCASE("identity");
    FIXTURE(setup, teardown);
    TEST(callers_are_found_by_their_keys);
    TEST(a_request_names_its_own_tenant_and_an_allowed_priority);
    TEST(a_priority_out_of_range_counts_as_the_nearest_in_range);
    TEST(changes_of_the_file_take_effect_within_a_second);
    TEST(a_key_that_left_the_file_or_changed_its_tenant_starts_nothing);
    TEST(a_broken_or_missing_file_keeps_the_keys_before_it);
    TEST(threads_authenticate_while_the_file_changes);
    TEST(salts_belong_to_tenants);

    TCASE("limits");
    TEST(the_tokens_of_all_answers_are_reserved_and_what_is_not_generated_is_given_back);
    TEST(one_request_may_exceed_the_limit_alone_and_several_never);
    TEST(requests_start_at_the_rate_of_their_limit);
    TEST(a_prompt_may_exceed_the_limit_and_the_next_one_waits);
    TEST(the_limit_with_the_longest_wait_is_named);
    TEST(a_limit_that_was_lowered_has_a_wait_of_at_most_a_year);
    TEST(no_more_requests_run_than_the_limit);
}
