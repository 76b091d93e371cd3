// SPDX-License-Identifier: Apache-2.0
// identity/: changes of the key file are logged without secrets, and replacing the whole file does not flood the log.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/identity/identity.h"
#include "lib/identity/key_file.h"
#include "tests/suite.h"

static char path[] = "/tmp/forepack-keys-XXXXXX", log_path[] = "/tmp/forepack-keys-log-XXXXXX";

// Writes `n` keys of a tenant. Each number `secret` gives different keys.
static void write_keys(int n, const char *tenant, int secret)
{
    FILE *file = fopen(path, "w");
    for (int i = 0; i < n; i++) // hashes spread by their first bytes
        fprintf(file, "k%d sha256:%08x%08x%048x %s priority=1\n", i, (unsigned)i * 2654435761u, secret, i, tenant);
    fclose(file);
    chmod(path, 0600);
}

// Reads the file again. Returns the log; the caller frees it.
static char *reload(struct identity *identity)
{
    int saved = dup(STDERR_FILENO), fd = mkstemp(log_path);
    dup2(fd, STDERR_FILENO);
    identity_reload(identity);
    log_flush();
    dup2(saved, STDERR_FILENO);
    close(saved);
    char *text = mem_alloc(1 << 16);
    ck_assert_int_ge(pread(fd, text, (1 << 16) - 1, 0), 0);
    close(fd);
    unlink(log_path);
    strcpy(log_path + strlen(log_path) - 6, "XXXXXX");
    return text;
}

static int count(const char *text, const char *words)
{
    int n = 0;
    while ((text = strstr(text, words))) {
        n++;
        text += strlen(words);
    }
    return n;
}

START_TEST(each_change_is_logged_once)
{
    struct identity *identity;
    close(mkstemp(path));
    write_keys(3, "acme", 0xabcdef);
    ck_assert_int_eq(identity_open(path, &identity), STATUS_OK);
    char *text = reload(identity);
    ck_assert_str_eq(text, "");
    free(text);
    write_keys(4, "acme", 0xabcdef);
    text = reload(identity);
    ck_assert_int_eq(count(text, "api_key_"), 1);
    ck_assert_int_eq(count(text, "api_key_added key=k3 old=\"\" new=\"acme priority=1\" secret_replaced=false"), 1);
    free(text);
    write_keys(2, "acme", 0x123456);
    text = reload(identity);
    ck_assert_int_eq(count(text, "api_key_removed key="), 2);
    ck_assert_int_eq(count(text, "old=\"acme priority=1\" new=\"acme priority=1\" secret_replaced=true"), 2);
    ck_assert_int_eq(count(text, "added=0 removed=2 changed=2"), 1);
    ck_assert_int_eq(count(text, "123456") + count(text, "abcdef"), 0);
    free(text);
    identity_close(identity);
    unlink(path);
}
END_TEST

START_TEST(many_changes_are_counted)
{
    struct identity *identity;
    close(mkstemp(path));
    write_keys(5000, "acme", 1);
    ck_assert_int_eq(identity_open(path, &identity), STATUS_OK);
    write_keys(5000, "globex", 1);
    char *text = reload(identity);
    ck_assert_int_eq(count(text, "api_key_changed key="), 100);
    ck_assert_int_eq(count(text, "added=0 removed=0 changed=5000"), 1);
    free(text);
    identity_close(identity);
    unlink(path);
}
END_TEST

SUITE("key_changes")
{
    TEST(each_change_is_logged_once);
    TEST(many_changes_are_counted);
}
