// SPDX-License-Identifier: Apache-2.0
// identity/quota_*: the use of daily quotas survives a restart, drains while the router is down, and a damaged file is
// refused with a sentence.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/identity/identity.h"
#include "lib/identity/quota_keeper.h"
#include "tests/suite.h"

enum { DAY_MS = 24 * 3600 * 1000 };

static char folder[64], keys_path[80], state_path[80], file_path[96];
static char key[KEY_BYTES + 1], hash[2 * KEY_HASH_BYTES + 1];

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    uint8_t bytes[KEY_HASH_BYTES];
    strcpy(folder, "/tmp/check_quotas.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(keys_path, sizeof keys_path, "%s/keys", folder);
    snprintf(state_path, sizeof state_path, "%s/state", folder);
    snprintf(file_path, sizeof file_path, "%s/state/quotas", folder);
    key_generate(key, bytes);
    for (int i = 0; i < KEY_HASH_BYTES; i++)
        snprintf(hash + 2 * i, 3, "%02x", bytes[i]);
    char *text = mem_format("k sha256:%s acme tokens_per_day=1000\n", hash);
    write_text(keys_path, text);
    free(text);
}

static void teardown(void)
{
    unlink(file_path);
    rmdir(state_path);
    unlink(keys_path);
    rmdir(folder);
}

struct run {
    struct identity *identity;
    struct quota_keeper *keeper;
    struct principal *principal;
};

static struct run run_start(void)
{
    struct run run = {0};
    ck_assert_int_eq(identity_open(keys_path, &run.identity), STATUS_OK);
    enum status status = quota_keeper_open(state_path, run.identity, &run.keeper);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(identity_authenticate_key(run.identity, key, &run.principal), STATUS_OK);
    return run;
}

static void run_end(struct run *run)
{
    principal_unref(run->principal);
    quota_keeper_close(run->keeper);
    identity_close(run->identity);
}

// Uses tokens of the key. Returns false if its quota is used up.
static bool use(struct run *run, double tokens)
{
    int64_t retry_us;
    if (identity_admit(run->principal, &retry_us) != STATUS_OK) return false;
    ck_assert_int_eq(identity_reserve(run->principal, &(struct limits_need){1, tokens / 2, tokens / 2}, &retry_us),
                     STATUS_OK);
    identity_end(run->principal, tokens / 2, tokens / 2);
    return true;
}

START_TEST(the_use_of_a_day_survives_a_restart)
{
    struct run run = run_start();
    ck_assert(use(&run, 600));
    run_end(&run);
    run = run_start();
    ck_assert(use(&run, 500));
    run_end(&run);
    run = run_start();
    ck_assert(!use(&run, 1));
    ck_assert_ptr_nonnull(strstr(status_message(), "1000 tokens per day, which are used up"));
    run_end(&run);
}
END_TEST

static void write_list(double used, int64_t age_ms)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct quota quotas[] = {{"k", "acme", used}, {"gone", "acme", 5}};
    struct quota_list list = {quotas, 2, (int64_t)now.tv_sec * 1000 - age_ms};
    mkdir(state_path, 0700);
    ck_assert_msg(quota_file_write(file_path, &list) == STATUS_OK, "%s", status_message());
}

START_TEST(the_use_drains_while_no_process_runs)
{
    write_list(2000, DAY_MS / 2); // half of the quota has drained: 500
    struct run run = run_start();
    ck_assert(!use(&run, 1));
    run_end(&run);
    write_list(1400, DAY_MS / 2);
    run = run_start();
    ck_assert(use(&run, 90));
    ck_assert(use(&run, 20));
    ck_assert(!use(&run, 1));
    run_end(&run);
    write_list(2000, -DAY_MS); // the wall clock was set back: nothing drains
    run = run_start();
    ck_assert(!use(&run, 1));
    run_end(&run);
}
END_TEST

START_TEST(a_damaged_file_is_refused_with_a_sentence)
{
    char *text;
    size_t size;
    struct quota_list list;
    write_list(10, 0);
    ck_assert_int_eq(file_text_read(file_path, 4096, &text, &size), STATUS_OK);
    for (size_t i = 0; i < size; i++) { // each changed byte, and each length
        char *damaged = mem_string(text);
        damaged[i] = damaged[i] == '7' ? '8' : '7';
        write_text(file_path, damaged);
        ck_assert_int_eq(quota_file_read(file_path, &list), STATUS_INVALID);
        damaged[i] = 0;
        write_text(file_path, damaged);
        ck_assert_int_eq(quota_file_read(file_path, &list), STATUS_INVALID);
        free(damaged);
    }
    ck_assert_ptr_eq(strstr(status_message(), file_path), status_message());
    ck_assert_ptr_nonnull(strstr(status_message(), "is damaged (move it away to start with unused quotas)"));
    struct identity *identity;
    struct quota_keeper *keeper;
    ck_assert_int_eq(identity_open(keys_path, &identity), STATUS_OK);
    ck_assert_int_eq(quota_keeper_open(state_path, identity, &keeper), STATUS_INVALID);
    identity_close(identity);
    free(text);
}
END_TEST

START_TEST(wrong_lines_with_a_right_hash_are_refused)
{
    static const char *const names[][2] = {{"", "acme"}, {"a b", "acme"}, {"k", "ac/me"}, {"k", ""}};
    struct quota_list list;
    mkdir(state_path, 0700);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct quota quota = {.used = 1};
        strcpy(quota.id, names[i][0]);
        strcpy(quota.tenant, names[i][1]);
        ck_assert_int_eq(quota_file_write(file_path, &(struct quota_list){&quota, 1, 1}), STATUS_OK);
        ck_assert_int_eq(quota_file_read(file_path, &list), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(status_message(), "line 2: "));
    }
    struct quota quota = {"k", "acme", -1};
    ck_assert_int_eq(quota_file_write(file_path, &(struct quota_list){&quota, 1, 1}), STATUS_OK);
    ck_assert_int_eq(quota_file_read(file_path, &list), STATUS_INVALID);
    quota.used = 1;
    ck_assert_int_eq(quota_file_write(file_path, &(struct quota_list){&quota, 1, 0}), STATUS_OK);
    ck_assert_int_eq(quota_file_read(file_path, &list), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "line 1: "));
}
END_TEST

START_TEST(one_process_uses_a_folder)
{
    struct run run = run_start();
    struct quota_keeper *keeper;
    ck_assert_int_eq(quota_keeper_open(state_path, run.identity, &keeper), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "another router uses it"));
    ck_assert_int_eq(quota_keeper_open(keys_path, run.identity, &keeper), STATUS_INVALID);
    run_end(&run);
}
END_TEST

SUITE("quotas")
{
    FIXTURE(setup, teardown);
    TEST(the_use_of_a_day_survives_a_restart);
    TEST(the_use_drains_while_no_process_runs);
    TEST(a_damaged_file_is_refused_with_a_sentence);
    TEST(wrong_lines_with_a_right_hash_are_refused);
    TEST(one_process_uses_a_folder);
}
