// SPDX-License-Identifier: Apache-2.0
// forepack keys: the file of API keys that a router reads (lib/identity/key_file.h).
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/program.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/base/priority.h"
#include "lib/identity/key_file.h"

static struct {
    char *file, *id, *tenant, *expires, *prune, *drafts;
    int64_t priority, requests_per_minute, tokens_per_minute, tokens_per_day, concurrency;
    bool operator_key, json;
} o;

// clang-format off
#define FILE_ROW                                                                                                       \
    {.name = "file", .type = OPTION_STRING, .value = &o.file, .placeholder = "FILE",                                   \
     .help = "file of the API keys (required), the same as --api-keys of the router"}

static const struct option add_options[] = {
    FILE_ROW,
    {.name = "tenant", .type = OPTION_STRING, .value = &o.tenant, .placeholder = "NAME",
     .help = "tenant of the requests with this key (required)"},
    {.name = "id", .type = OPTION_STRING, .value = &o.id, .placeholder = "ID",
     .help = "name of the key in the file, in logs and in messages; default: TENANT-1, TENANT-2, ..."},
    {.name = "expires", .type = OPTION_STRING, .value = &o.expires, .placeholder = "TIME",
     .help = "time from which on the key is refused: 2027-01-31 or 2027-01-31T12:00:00Z; default: never"},
    {.name = "priority", .type = OPTION_INT, .value = &o.priority, .default_text = "0", .min = -PRIORITY_MAX,
     .max = PRIORITY_MAX, .help = "highest priority that requests with this key may have"},
    {.name = "requests-per-minute", .type = OPTION_INT, .value = &o.requests_per_minute, .default_text = "0",
     .max = 1e9, .unit = "requests", .help = "limit of requests and tokenise calls; 0: no limit"},
    {.name = "tokens-per-minute", .type = OPTION_INT, .value = &o.tokens_per_minute, .default_text = "0", .max = 1e12,
     .unit = "tokens", .help = "limit of tokens of prompts and answers; 0: no limit"},
    {.name = "tokens-per-day", .type = OPTION_INT, .value = &o.tokens_per_day, .default_text = "0", .max = 1e15,
     .unit = "tokens", .help = "limit of tokens of prompts and answers in 24 hours; 0: no limit"},
    {.name = "concurrency", .type = OPTION_INT, .value = &o.concurrency, .default_text = "0", .max = 1e6,
     .unit = "requests", .help = "requests that may run or wait at the same time; 0: no limit"},
    {.name = "prune", .type = OPTION_STRING, .value = &o.prune, .placeholder = "RULE",
     .help = "limit of pruning for requests with this key: any; never; quality-at-least:Q, with a least quality; "
             "keep-at-least:R, with a least keep rate; required. Default: the router's --prune-rule"},
    {.name = "drafts", .type = OPTION_STRING, .value = &o.drafts, .placeholder = "auto|off",
     .help = "off: no answer to a request with this key uses draft tokens. Default: the router's --drafts-rule"},
    {.name = "operator", .type = OPTION_BOOL, .value = &o.operator_key, .default_text = "false",
     .help = "the key may see nodes, queue and metrics, drain nodes, and abort requests of every tenant"},
    {0},
};
static const struct option list_options[] = {
    FILE_ROW,
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
static const struct option revoke_options[] = {FILE_ROW, {0}};
// clang-format on

static enum status require(const char *flag, const char *value)
{
    return value ? STATUS_OK : status_fail(STATUS_INVALID, "--%s: required", flag);
}

static int finish(const struct option *options, enum status status)
{
    int code = status == STATUS_OK ? 0 : report_failure(status);
    options_free(options);
    return code;
}

// --- add

// Returns the first of TENANT-1, TENANT-2, ... that is not in the file.
static char *id_choose(const struct key_file *file, const char *tenant)
{
    for (int number = 1;; number++) {
        char *id = mem_format("%.*s-%d", KEY_ID_BYTES - 11, tenant, number);
        int i = 0;
        while (i < file->n && strcmp(file->keys[i].id, id) != 0)
            i++;
        if (i == file->n) return id;
        free(id);
    }
}

static enum status key_from_flags(const struct key_file *file, struct api_key *key)
{
    char *chosen = o.id ? NULL : id_choose(file, o.tenant);
    enum status status = api_key_name(key, o.id ? o.id : chosen, o.tenant);
    free(chosen);
    TRY(status);
    if (o.expires) TRY(api_key_set(key, "expires", o.expires));
    if (o.prune) TRY(api_key_set(key, "prune", o.prune));
    if (o.drafts) TRY(api_key_set(key, "drafts", o.drafts));
    key->limits = (struct key_limits){o.requests_per_minute, o.tokens_per_minute, o.tokens_per_day, o.concurrency};
    key->priority = o.priority;
    key->is_operator = o.operator_key;
    return STATUS_OK;
}

// Adds the key to the locked file. Prints the key only after its hash is in the file, so that every printed key works.
static enum status add_to(int fd)
{
    struct key_file file;
    struct api_key key = {0};
    char secret[KEY_BYTES + 1];
    bool exposed;
    TRY(key_file_read(o.file, &file, &exposed));
    enum status status = key_from_flags(&file, &key);
    key_file_fini(&file);
    TRY(status);
    key_generate(secret, key.hash);
    TRY(key_file_add(o.file, fd, &key));
    fprintf(stderr, "The key %s of tenant %s, which is shown only now:\n", key.id, key.tenant);
    printf("%s\n", secret);
    return STATUS_OK;
}

static int keys_add(int argc, char **argv)
{
    options_main(add_options,
                 "Usage: forepack keys add --file FILE --tenant NAME [options]\n"
                 "Makes an API key, adds its hash to the file and prints the key, which is stored nowhere.",
                 argc, argv, NULL);
    enum status status = require("file", o.file);
    const struct key_file none = {0};
    struct api_key key = {0};
    int fd;
    if (status == STATUS_OK) status = require("tenant", o.tenant);
    if (status == STATUS_OK) status = key_from_flags(&none, &key); // a refused flag must not leave an empty file
    if (status == STATUS_OK) status = key_file_lock(o.file, true, &fd);
    if (status == STATUS_OK) {
        status = add_to(fd);
        key_file_unlock(fd);
    }
    return finish(add_options, status);
}

// --- list

static const char *state_of(const struct api_key *key)
{
    return key->revoked ? "revoked" : key->expires_s && time(NULL) >= key->expires_s ? "expired" : "valid";
}

static void print_json(const struct key_file *file)
{
    json_t *list = json_array();
    for (int i = 0; i < file->n; i++) {
        const struct api_key *key = &file->keys[i];
        char expires[24] = "", prune[PRUNE_RULE_ROOM];
        const char *drafts = draft_rule_name(key->rules.drafts);
        if (key->expires_s) key_time_format(key->expires_s, expires);
        prune_rule_format(&key->rules.prune, prune);
        json_array_append_new(
            list,
            json_pack("{s:s,s:s,s:s,s:s*,s:s*,s:s*,s:b,s:I,s:I,s:I,s:I,s:I}", "id", key->id, "tenant", key->tenant,
                      "state", state_of(key), "expires", *expires ? expires : NULL, "prune", *prune ? prune : NULL,
                      "drafts", *drafts ? drafts : NULL, "operator", (int)key->is_operator, "priority",
                      (json_int_t)key->priority, "requests_per_minute", (json_int_t)key->limits.requests_per_minute,
                      "tokens_per_minute", (json_int_t)key->limits.tokens_per_minute, "tokens_per_day",
                      (json_int_t)key->limits.tokens_per_day, "concurrency", (json_int_t)key->limits.concurrency));
    }
    json_dumpf(list, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(list);
}

static void print_limit(int64_t limit)
{
    if (limit)
        printf("  %12lld", (long long)limit);
    else
        printf("  %12s", "-");
}

static void print_rules(const struct client_rules *rules)
{
    char prune[PRUNE_RULE_ROOM];
    prune_rule_format(&rules->prune, prune);
    printf("  %-21s  %-6s", *prune ? prune : "-", rules->drafts ? draft_rule_name(rules->drafts) : "-");
}

static void print_table(const struct key_file *file)
{
    printf("%-20s  %-20s  %-8s  %-20s  %8s  %12s  %12s  %12s  %12s  %-21s  %s\n", "id", "tenant", "state", "expires",
           "priority", "requests/min", "tokens/min", "tokens/day", "concurrency", "prune", "drafts");
    for (int i = 0; i < file->n; i++) {
        const struct api_key *key = &file->keys[i];
        char expires[24] = "never";
        if (key->expires_s) key_time_format(key->expires_s, expires);
        printf("%-20s  %-20s  %-8s  %-20s  %8lld", key->id, key->tenant, state_of(key), expires,
               (long long)key->priority);
        print_limit(key->limits.requests_per_minute);
        print_limit(key->limits.tokens_per_minute);
        print_limit(key->limits.tokens_per_day);
        print_limit(key->limits.concurrency);
        print_rules(&key->rules);
        printf("%s\n", key->is_operator ? "  operator" : "");
    }
}

static int keys_list(int argc, char **argv)
{
    options_main(list_options,
                 "Usage: forepack keys list --file FILE [--json]\nShows the keys of the file, without their hashes.",
                 argc, argv, NULL);
    struct key_file file;
    bool exposed;
    enum status status = require("file", o.file);
    if (status == STATUS_OK) status = key_file_read(o.file, &file, &exposed);
    if (status == STATUS_OK) {
        (o.json ? print_json : print_table)(&file);
        key_file_fini(&file);
    }
    return finish(list_options, status);
}

// --- revoke

static int keys_revoke(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest =
        options_main(revoke_options,
                     "Usage: forepack keys revoke --file FILE ID\n"
                     "Marks a key as revoked: routers refuse it within a second. Requests that run end normally.",
                     argc, argv, rest);
    enum status status = require("file", o.file);
    int fd;
    if (status == STATUS_OK && n_rest != 1) status = status_fail(STATUS_INVALID, "give the id of one key");
    if (status == STATUS_OK) status = key_file_lock(o.file, false, &fd);
    if (status == STATUS_OK) {
        status = key_file_revoke(o.file, fd, rest[0]);
        key_file_unlock(fd);
    }
    if (status == STATUS_OK) fprintf(stderr, "%s is revoked\n", rest[0]);
    free(rest);
    return finish(revoke_options, status);
}

int command_keys(int argc, char **argv)
{
    static const struct program_command commands[] = {
        {"add", keys_add, "make a key, and print it once"},
        {"list", keys_list, "show the keys of the file"},
        {"revoke", keys_revoke, "revoke a key: routers then refuse it"},
    };
    static const struct program program = {
        .name = "forepack",
        .invoked = "forepack keys",
        .noun = "command",
        .argument = "COMMAND",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0],
    };
    return program_main(&program, argc, argv);
}
