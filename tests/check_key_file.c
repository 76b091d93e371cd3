// SPDX-License-Identifier: Apache-2.0
// identity/key_file: what a line may contain, what is refused and with which sentence, and edits of the file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/identity/key_file.h"
#include "tests/suite.h"

#define HASH  "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "sha256:1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static char folder[] = "/tmp/check_key_file.XXXXXX", path[64];

static void setup(void)
{
    strcpy(strrchr(folder, '.'), ".XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/keys", folder);
}

static void teardown(void)
{
    char *command = mem_format("rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

static void file_write(const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_uint_eq(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
    chmod(path, 0600);
}

static char *file_text(void)
{
    FILE *file = fopen(path, "r");
    char *text = mem_alloc(4096);
    text[fread(text, 1, 4095, file)] = 0;
    fclose(file);
    return text;
}

static struct key_file parse(const char *text)
{
    struct key_file file;
    ck_assert_msg(key_file_parse(text, strlen(text), &file) == STATUS_OK, "%s", status_message());
    return file;
}

START_TEST(a_line_has_an_id_a_hash_a_tenant_and_limits)
{
    struct key_file file =
        parse("# keys\n\n  \nprod-1 " HASH " acme priority=-3 requests_per_minute=600 "
              "tokens_per_minute=7 tokens_per_day=5000000\tconcurrency=8 expires=2027-01-31T12:00:00Z "
              "operator revoked\r\n b " OTHER " b@x.org:1_2\n");
    ck_assert_int_eq(file.n, 2);
    const struct api_key *key = &file.keys[0];
    ck_assert_str_eq(key->id, "prod-1");
    ck_assert_str_eq(key->tenant, "acme");
    ck_assert_uint_eq(key->hash[0], 0x01);
    ck_assert_uint_eq(key->hash[31], 0xef);
    ck_assert_int_eq(key->priority, -3);
    ck_assert_int_eq(key->limits.requests_per_minute, 600);
    ck_assert_int_eq(key->limits.tokens_per_minute, 7);
    ck_assert_int_eq(key->limits.tokens_per_day, 5000000);
    ck_assert_int_eq(key->limits.concurrency, 8);
    ck_assert_int_eq(key->expires_s, 1801396800);
    ck_assert(key->is_operator);
    ck_assert(key->revoked);
    key++;
    ck_assert_str_eq(key->tenant, "b@x.org:1_2");
    ck_assert(!key->is_operator);
    ck_assert(!key->revoked);
    ck_assert(!key->priority);
    ck_assert(!key->expires_s);
    ck_assert(!key->limits.concurrency);
    key_file_fini(&file);
}
END_TEST

START_TEST(a_key_may_have_rules_for_pruning_and_drafts)
{
    struct key_file file = parse("a " HASH " t prune=quality-at-least:0.990 drafts=off\nb " OTHER " t\n");
    const struct client_rules *rules = &file.keys[0].rules;
    ck_assert_int_eq(rules->prune.kind, PRUNE_QUALITY);
    ck_assert_double_eq(rules->prune.bound, 0.99);
    ck_assert_int_eq(rules->drafts, DRAFT_RULE_OFF);
    ck_assert_int_eq(file.keys[1].rules.prune.kind, PRUNE_UNSET);
    ck_assert_int_eq(file.keys[1].rules.drafts, DRAFT_RULE_UNSET);
    key_file_fini(&file);
}
END_TEST

static const char *const broken[][2] = {
    {"a", "line 1: must be ID"},
    {"a " HASH, "line 1: must be ID"},
    {"# c\na/b " HASH " t", "line 2: id 'a/b'"},
    {"a " HASH " t\na " OTHER " t", "the id a is in two lines"},
    {"a " HASH " t\nb " HASH " t", "are the same key"},
    {"a sha256:0123 t", "the second word must be sha256:"},
    {"a fpk_0123456789012345678901234567890123456789012 t", "the second word must be sha256:"},
    {"a " HASH " t\x01", "tenant"},
    {"a " HASH " t admin", "'admin': must be NAME=VALUE, operator or revoked"},
    {"a " HASH " t operator operator", "operator is given twice"},
    {"a " HASH " t priority=1 priority=2", "priority is given twice"},
    {"a " HASH " t priority=1001", "must be a whole number from -1000 to 1000"},
    {"a " HASH " t concurrency=0", "from 1 to"},
    {"a " HASH " t concurrency= 1", "from 1 to"},
    {"a " HASH " t concurrency=+1", "from 1 to"},
    {"a " HASH " t tokens_per_day=99999999999999999999", "from 1 to"},
    {"a " HASH " t tokens_per_minute=1e3", "from 1 to"},
    {"a " HASH " t colour=1", "'colour': must be priority"},
    {"a " HASH " t prune=", "prune '': must be any, never,"},
    {"a " HASH " t prune=Never", "prune 'Never': must be any, never,"},
    {"a " HASH " t prune=0.5", "prune '0.5': must be any, never,"},
    {"a " HASH " t prune=keep-at-most:0.5", "prune 'keep-at-most:0.5': must be any, never,"},
    {"a " HASH " t prune=never:0.5", "prune 'never:0.5': must be any, never,"},
    {"a " HASH " t prune=keep-at-least", "prune 'keep-at-least': must be any, never,"},
    {"a " HASH " t prune=keep-at-least:", "prune 'keep-at-least:': the number must be over 0 and below 1"},
    {"a " HASH " t prune=keep-at-least:0", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=keep-at-least:1", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=keep-at-least:50%", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=quality-at-least:-0.9", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=quality-at-least:nan", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=quality-at-least:1e-1", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=quality-at-least:0.9.9", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=quality-at-least:0.99999999999999", "the number must be over 0 and below 1"},
    {"a " HASH " t prune=never prune=any", "prune is given twice"},
    {"a " HASH " t drafts=on", "drafts 'on': must be auto or off"},
    {"a " HASH " t drafts=off drafts=off", "drafts is given twice"},
    {"a " HASH " t expires=2027-02-30", "expires '2027-02-30'"},
    {"a " HASH " t expires=2027-01-31T24:00:00Z", "expires"},
    {"a " HASH " t expires=2027-01-31T12:00:00", "expires"},
    {"a " HASH " t expires=tomorrow", "expires"},
};

START_TEST(a_broken_line_is_named_and_no_hash_is_shown)
{
    struct key_file file;
    const char *text = broken[_i][0];
    ck_assert_int_eq(key_file_parse(text, strlen(text), &file), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), broken[_i][1]), "%s", status_message());
    ck_assert_ptr_null(strstr(status_message(), "0123456789"));
}
END_TEST

START_TEST(a_file_with_a_nul_is_refused)
{
    struct key_file file;
    ck_assert_int_eq(key_file_parse("a\0b", 3, &file), STATUS_INVALID);
}
END_TEST

START_TEST(times_are_read_with_and_without_a_zone)
{
    int64_t day, noon, zone;
    ck_assert_int_eq(key_time_parse("2026-03-01", &day), STATUS_OK);
    ck_assert_int_eq(key_time_parse("2026-03-01T12:00:00Z", &noon), STATUS_OK);
    ck_assert_int_eq(key_time_parse("2026-03-01T12:00:00-02:30", &zone), STATUS_OK);
    ck_assert_int_eq(noon - day, 43200);
    ck_assert_int_eq(zone - noon, 9000);
    char text[24];
    key_time_format(zone, text);
    ck_assert_str_eq(text, "2026-03-01T14:30:00Z");
}
END_TEST

START_TEST(keys_are_random_and_found_by_their_hash)
{
    char one[KEY_BYTES + 1], two[KEY_BYTES + 1];
    uint8_t hash[KEY_HASH_BYTES], again[KEY_HASH_BYTES];
    key_generate(two, again);
    key_generate(one, hash);
    ck_assert_str_ne(one, two);
    ck_assert_uint_eq(strlen(one), KEY_BYTES);
    ck_assert_int_eq(strncmp(one, "fpk_", 4), 0);
    key_hash(one, strlen(one), again);
    ck_assert_mem_eq(hash, again, sizeof hash);
}
END_TEST

static enum status add(const char *id, uint8_t first)
{
    struct api_key key = {.tenant = "acme", .hash = {first}, .limits = {.concurrency = 3}, .priority = 2};
    snprintf(key.id, sizeof key.id, "%s", id);
    int fd;
    TRY(key_file_lock(path, true, &fd));
    enum status status = key_file_add(path, fd, &key);
    key_file_unlock(fd);
    return status;
}

static enum status mark_revoked(const char *id)
{
    int fd;
    TRY(key_file_lock(path, false, &fd));
    enum status status = key_file_revoke(path, fd, id);
    key_file_unlock(fd);
    return status;
}

START_TEST(keys_are_added_and_revoked_and_other_lines_stay)
{
    ck_assert_int_eq(mark_revoked("a"), STATUS_NOT_FOUND); // no file
    file_write("# ours\n aa " HASH " t  # not a comment");
    ck_assert_int_eq(add("b", 1), STATUS_INVALID); // an edit checks the whole file
    file_write("# ours\n aa " HASH " t");
    ck_assert_msg(add("a", 1) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(add("a", 2), STATUS_INVALID);
    ck_assert_int_eq(add("b", 1), STATUS_INVALID);
    ck_assert_int_eq(mark_revoked("c"), STATUS_NOT_FOUND);
    ck_assert_int_eq(mark_revoked("aa"), STATUS_OK);
    ck_assert_int_eq(mark_revoked("aa"), STATUS_OK); // already revoked
    char *text = file_text();
    ck_assert_str_eq(text, "# ours\n aa " HASH " t revoked\n"
                           "a sha256:0100000000000000000000000000000000000000000000000000000000000000 acme priority=2 "
                           "concurrency=3\n");
    free(text);
    struct stat stat_now;
    ck_assert_int_eq(stat(path, &stat_now), 0);
    ck_assert_int_eq(stat_now.st_mode & 07777, 0600);
}
END_TEST

START_TEST(a_new_file_is_for_its_owner_alone)
{
    umask(0);
    ck_assert_msg(add("a", 1) == STATUS_OK, "%s", status_message());
    struct stat stat_now;
    ck_assert_int_eq(stat(path, &stat_now), 0);
    ck_assert_int_eq(stat_now.st_mode & 07777, 0600);
}
END_TEST

START_TEST(edits_of_several_processes_are_all_kept)
{
    enum { PROCESSES = 4, EACH = 8 };
    for (int p = 0; p < PROCESSES; p++) {
        if (fork()) continue;
        for (int i = 0; i < EACH; i++) {
            char id[16];
            snprintf(id, sizeof id, "key-%d", p * EACH + i);
            if (add(id, (uint8_t)(p * EACH + i))) _exit(1);
        }
        _exit(0);
    }
    for (int p = 0, result; p < PROCESSES; p++) {
        wait(&result);
        ck_assert_int_eq(result, 0);
    }
    struct key_file file;
    bool exposed = true;
    ck_assert_int_eq(key_file_read(path, &file, &exposed), STATUS_OK);
    ck_assert_int_eq(file.n, PROCESSES * EACH);
    ck_assert(!exposed);
    key_file_fini(&file);
}
END_TEST

START_TEST(unsafe_files_are_refused_or_reported)
{
    struct key_file file;
    bool exposed;
    ck_assert_int_eq(key_file_read(path, &file, &exposed), STATUS_NOT_FOUND);
    ck_assert_int_eq(key_file_read(folder, &file, &exposed), STATUS_INVALID);
    file_write("a " HASH " t\n");
    chmod(path, 0644);
    ck_assert_int_eq(key_file_read(path, &file, &exposed), STATUS_OK);
    ck_assert(exposed);
    key_file_fini(&file);
    chmod(path, 0620);
    ck_assert_int_eq(key_file_read(path, &file, &exposed), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), "chmod go-w"), "%s", status_message());
    chmod(path, 0600);
    // A link, such as a mounted secret, is read but never replaced.
    char target[80];
    snprintf(target, sizeof target, "%s.real", path);
    ck_assert_int_eq(rename(path, target), 0);
    ck_assert_int_eq(symlink(target, path), 0);
    ck_assert_int_eq(key_file_read(path, &file, &exposed), STATUS_OK);
    key_file_fini(&file);
    ck_assert_int_eq(add("b", 1), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), "symbolic link"), "%s", status_message());
}
END_TEST

SUITE("key_file")
{
    FIXTURE(setup, teardown);
    TEST(a_line_has_an_id_a_hash_a_tenant_and_limits);
    TEST(a_key_may_have_rules_for_pruning_and_drafts);
    EACH(a_broken_line_is_named_and_no_hash_is_shown, broken);
    TEST(a_file_with_a_nul_is_refused);
    TEST(times_are_read_with_and_without_a_zone);
    TEST(keys_are_random_and_found_by_their_hash);
    TEST(keys_are_added_and_revoked_and_other_lines_stay);
    TEST(a_new_file_is_for_its_owner_alone);
    TEST(edits_of_several_processes_are_all_kept);
    TEST(unsafe_files_are_refused_or_reported);
}
