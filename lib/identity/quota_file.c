// SPDX-License-Identifier: Apache-2.0
#include "lib/identity/quota_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"

#define HEADER "forepack-quotas 1 "
#define HASH   "sha256:"

enum { HASH_LINE_BYTES = sizeof HASH - 1 + 2 * SHA256_DIGEST_LENGTH + 1 };

void quota_list_fini(struct quota_list *list)
{
    free(list->quotas);
    *list = (struct quota_list){0};
}

// Writes the last line of a file whose other lines are `text`.
static void hash_line(const char *text, size_t size, char line[HASH_LINE_BYTES + 1])
{
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)text, size, hash);
    strcpy(line, HASH);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        sprintf(line + sizeof HASH - 1 + 2 * i, "%02x", hash[i]);
    strcpy(line + HASH_LINE_BYTES - 1, "\n");
}

static enum status quota_parse(const char *line, struct quota *quota)
{
    struct api_key key;
    int end = -1;
    if (sscanf(line, "%64s %128s %lf%n", quota->id, quota->tenant, &quota->used, &end) != 3 || line[end])
        return status_fail(STATUS_INVALID, "must be ID TENANT TOKENS");
    if (!isfinite(quota->used) || quota->used < 0)
        return status_fail(STATUS_INVALID, "the number of tokens must be 0 or more");
    return api_key_name(&key, quota->id, quota->tenant);
}

static enum status header_parse(const char *line, int64_t *saved_ms_p)
{
    char *end = "";
    if (strncmp(line, HEADER, sizeof HEADER - 1) == 0) *saved_ms_p = strtoll(line + sizeof HEADER - 1, &end, 10);
    if (*end || *saved_ms_p <= 0) return status_fail(STATUS_INVALID, "must be '" HEADER "MILLISECONDS'");
    return STATUS_OK;
}

// Parses the lines before the hash, in place.
static enum status lines_parse(char *text, struct quota_list *list)
{
    size_t number = 0, capacity = 0;
    for (char *line; (line = strsep(&text, "\n")) && (text || *line);) {
        enum status status;
        if (!number++) {
            status = header_parse(line, &list->saved_ms);
        } else {
            MEM_GROW(list->quotas, list->n, capacity);
            status = quota_parse(line, &list->quotas[list->n]);
            list->n += status == STATUS_OK;
        }
        if (status != STATUS_OK) return status_context(status, "line %zu", number);
    }
    return number ? STATUS_OK : status_fail(STATUS_INVALID, "the file has no lines");
}

static enum status text_parse(char *text, size_t size, struct quota_list *list)
{
    char line[HASH_LINE_BYTES + 1];
    size_t n = size >= HASH_LINE_BYTES ? size - HASH_LINE_BYTES : 0;
    hash_line(text, n, line);
    if (size < HASH_LINE_BYTES || memcmp(text + n, line, HASH_LINE_BYTES) != 0)
        return status_fail(STATUS_INVALID, "its last line is not the hash of the lines before it");
    text[n] = 0;
    return strlen(text) == n ? lines_parse(text, list) : status_fail(STATUS_INVALID, "it has a zero byte");
}

enum status quota_file_read(const char *path, struct quota_list *list_p)
{
    char *text;
    size_t size;
    *list_p = (struct quota_list){0};
    enum status status = file_text_read(path, KEY_FILE_BYTES_MAX, &text, &size);
    if (status == STATUS_NOT_FOUND) return STATUS_OK;
    if (status != STATUS_OK) return status;
    status = text_parse(text, size, list_p);
    free(text);
    if (status == STATUS_OK) return STATUS_OK;
    quota_list_fini(list_p);
    return status_context(status, "%s is damaged (move it away to start with unused quotas)", path);
}

// Returns the file's text [*size_p]. The caller frees it.
static char *list_format(const struct quota_list *list, size_t *size_p)
{
    char *text, hash[HASH_LINE_BYTES + 1];
    FILE *out = open_memstream(&text, size_p);
    fprintf(out, HEADER "%" PRId64 "\n", list->saved_ms);
    for (size_t i = 0; i < list->n; i++)
        fprintf(out, "%s %s %.0f\n", list->quotas[i].id, list->quotas[i].tenant, list->quotas[i].used);
    fflush(out);
    hash_line(text, *size_p, hash);
    fputs(hash, out);
    fclose(out);
    return text;
}

static enum status text_write(int fd, const char *text, size_t size)
{
    while (size) {
        ssize_t n = write(fd, text, size);
        if (n < 0 && errno != EINTR) return status_fail(STATUS_INVALID, "%s", strerror(errno));
        if (n > 0) text += n, size -= (size_t)n;
    }
    return STATUS_OK;
}

enum status quota_file_write(const char *path, const struct quota_list *list)
{
    struct new_file file;
    size_t size = 0;
    enum status status = new_file_open(&file, path);
    if (status != STATUS_OK) return status_context(status, "%s", path);
    char *text = list_format(list, &size);
    status = text_write(file.fd, text, size);
    free(text);
    if (status != STATUS_OK) new_file_discard(&file);
    if (status == STATUS_OK) status = new_file_commit(&file);
    return status == STATUS_OK ? status : status_context(status, "%s", path);
}
