// SPDX-License-Identifier: Apache-2.0
// Reads the key file. key_edit.c writes it, and key_text.c parses the words of a line.
#include "lib/identity/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/identity/key_text.h"

void key_file_fini(struct key_file *file)
{
    free(file->keys);
    *file = (struct key_file){0};
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

// Returns the next word of the line, NUL-terminated, or NULL if none is left.
static char *word_next(char **at)
{
    while (is_blank(**at))
        ++*at;
    if (!**at) return NULL;
    char *word = *at;
    while (**at && !is_blank(**at))
        ++*at;
    if (**at) *(*at)++ = 0;
    return word;
}

static enum status flag_set(struct api_key *key, const char *word)
{
    bool *flag = strcmp(word, "operator") == 0  ? &key->is_operator
                 : strcmp(word, "revoked") == 0 ? &key->revoked
                                                : NULL;
    if (!flag) return status_fail(STATUS_INVALID, "'%.40s': must be NAME=VALUE, operator or revoked", word);
    if (*flag) return status_fail(STATUS_INVALID, "%s is given twice", word);
    *flag = true;
    return STATUS_OK;
}

static enum status key_parse(char *line, struct api_key *key)
{
    char *id = word_next(&line), *hash = word_next(&line), *tenant = word_next(&line);
    if (!tenant) return status_fail(STATUS_INVALID, "must be ID sha256:HASH TENANT [NAME=VALUE]...");
    *key = (struct api_key){0};
    TRY(api_key_name(key, id, tenant));
    TRY(key_hash_parse(hash, key->hash));
    unsigned given = 0;
    for (char *word; (word = word_next(&line));) {
        char *equals = strchr(word, '=');
        if (!equals) {
            TRY(flag_set(key, word));
            continue;
        }
        *equals = 0;
        TRY(api_key_set(key, word, equals + 1));
        unsigned bit = key_field_bit(word);
        if (given & bit) return status_fail(STATUS_INVALID, "%s is given twice", word);
        given |= bit;
    }
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    return strcmp((*(struct api_key *const *)a)->id, (*(struct api_key *const *)b)->id);
}

static int by_hash(const void *a, const void *b)
{
    return memcmp((*(struct api_key *const *)a)->hash, (*(struct api_key *const *)b)->hash, KEY_HASH_BYTES);
}

static enum status check_unique(const struct key_file *file)
{
    const struct api_key **order = mem_alloc_array((size_t)file->n, sizeof *order);
    for (int i = 0; i < file->n; i++)
        order[i] = &file->keys[i];
    enum status status = STATUS_OK;
    qsort(order, (size_t)file->n, sizeof *order, by_id);
    for (int i = 1; i < file->n && status == STATUS_OK; i++) {
        if (by_id(&order[i - 1], &order[i]) == 0)
            status = status_fail(STATUS_INVALID, "the id %s is in two lines: give each key its own id", order[i]->id);
    }
    qsort(order, (size_t)file->n, sizeof *order, by_hash);
    for (int i = 1; i < file->n && status == STATUS_OK; i++) {
        if (by_hash(&order[i - 1], &order[i]) == 0)
            status = status_fail(STATUS_INVALID, "%s and %s are the same key: delete one of the lines",
                                 order[i - 1]->id, order[i]->id);
    }
    free(order);
    return status;
}

static enum status keys_parse(char *text, size_t size, struct key_file *file)
{
    if (size > KEY_FILE_BYTES_MAX) return status_fail(STATUS_INVALID, "larger than %d MiB", KEY_FILE_BYTES_MAX >> 20);
    if (memchr(text, 0, size)) return status_fail(STATUS_INVALID, "has a NUL character: must be text");
    int capacity = 0, number = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        number++;
        while (is_blank(*line))
            line++;
        if (!*line || *line == '#') continue;
        if (file->n == KEY_FILE_KEYS_MAX) return status_fail(STATUS_INVALID, "has over %d keys", KEY_FILE_KEYS_MAX);
        MEM_GROW(file->keys, file->n, capacity);
        enum status status = key_parse(line, &file->keys[file->n++]);
        if (status != STATUS_OK) return status_context(status, "line %d", number);
    }
    return check_unique(file);
}

enum status key_file_parse(const char *text, size_t size, struct key_file *file_p)
{
    struct key_file file = {0};
    char *copy = mem_alloc(size + 1);
    if (size) memcpy(copy, text, size);
    enum status status = keys_parse(copy, size, &file);
    free(copy);
    if (status == STATUS_OK)
        *file_p = file;
    else
        key_file_fini(&file);
    return status;
}

// --- files

static enum status check_mode(const struct stat *stat, bool *exposed_p)
{
    if (!S_ISREG(stat->st_mode)) return status_fail(STATUS_INVALID, "not a regular file");
    if (stat->st_size > KEY_FILE_BYTES_MAX)
        return status_fail(STATUS_INVALID, "larger than %d MiB", KEY_FILE_BYTES_MAX >> 20);
    if (stat->st_mode & (S_IWGRP | S_IWOTH))
        return status_fail(STATUS_INVALID,
                           "users other than its owner can write it and so add keys: run chmod go-w on it");
    *exposed_p = stat->st_mode & (S_IRGRP | S_IROTH);
    return STATUS_OK;
}

enum status key_fd_read(int fd, char **text_p, size_t *size_p)
{
    size_t size = 0, capacity = 4096;
    char *text = mem_alloc(capacity + 1);
    for (ssize_t n = 1; n != 0 && size <= KEY_FILE_BYTES_MAX; size += n > 0 ? (size_t)n : 0) {
        if (size == capacity) text = mem_resize(text, (capacity *= 2) + 1, 1);
        n = pread(fd, text + size, capacity - size, (off_t)size);
        if (n >= 0 || errno == EINTR) continue;
        free(text);
        return status_fail(STATUS_INVALID, "%s", strerror(errno));
    }
    text[size] = 0;
    *text_p = text;
    *size_p = size;
    return STATUS_OK;
}

static enum status fd_parse(int fd, struct key_file *file_p, bool *exposed_p)
{
    struct stat stat;
    char *text;
    size_t size;
    if (fstat(fd, &stat)) return status_fail(STATUS_INVALID, "%s", strerror(errno));
    TRY(check_mode(&stat, exposed_p));
    TRY(key_fd_read(fd, &text, &size));
    enum status status = key_file_parse(text, size, file_p);
    free(text);
    return status;
}

enum status key_file_read(const char *path, struct key_file *file_p, bool *exposed_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a pipe must not block the start
    if (fd < 0) return status_fail(file_open_status(errno), "%s: %s", path, strerror(errno));
    enum status status = fd_parse(fd, file_p, exposed_p);
    close(fd);
    return status == STATUS_OK ? status : status_context(status, "%s", path);
}
