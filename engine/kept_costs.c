// SPDX-License-Identifier: Apache-2.0
#include "engine/kept_costs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/fnv.h"
#include "lib/base/log.h"
#include "lib/base/new_file.h"

enum { FILE_BYTES_MAX = 1024 };

static const char first_line[] = "forepack costs 1\n";

// Writes the contents of a file and returns their length, or 0 if they are too long.
static size_t costs_format(const char *node, const struct start_costs *costs, char text[FILE_BYTES_MAX])
{
    int n = snprintf(text, FILE_BYTES_MAX, "%s%s\n", first_line, node);
    for (int i = 0; i < costs->n && n < FILE_BYTES_MAX; i++) {
        const struct start_pass *pass = &costs->passes[i];
        n += snprintf(text + n, (size_t)(FILE_BYTES_MAX - n), "%d %" PRId64 " %" PRId64 "\n", pass->rows, pass->pairs,
                      pass->us);
    }
    if (n >= FILE_BYTES_MAX) return 0;
    const uint64_t hash = fnv1a(FNV_START, text, (size_t)n);
    n += snprintf(text + n, (size_t)(FILE_BYTES_MAX - n), "hash %016" PRIx64 "\n", hash);
    return n < FILE_BYTES_MAX ? (size_t)n : 0;
}

// Reads the lines of the passes. Leaves errors in the text to the comparison in costs_parse().
static struct start_costs passes_parse(const char *text)
{
    struct start_costs costs = {0};
    struct start_pass pass;
    int n;
    while (costs.n < START_PASSES_MAX &&
           sscanf(text, "%9d %18" SCNd64 " %18" SCNd64 "%n", &pass.rows, &pass.pairs, &pass.us, &n) == 3 &&
           pass.rows > 0 && pass.pairs >= pass.rows && pass.us > 0) {
        costs.passes[costs.n++] = pass;
        text += n;
    }
    return costs;
}

// Returns NULL, or the reason why the file's text is not used.
static const char *costs_parse(const char *text, const char *node, struct start_costs *costs_p)
{
    char same[FILE_BYTES_MAX];
    const size_t first = strlen(first_line), second = strlen(node);
    if (strncmp(text, first_line, first) != 0) return "it has another format";
    if (strncmp(text + first, node, second) != 0 || text[first + second] != '\n')
        return "another machine, version or configuration wrote it";
    const struct start_costs costs = passes_parse(text + first + second + 1);
    if (!costs.n || !costs_format(node, &costs, same) || strcmp(text, same) != 0) return "it is damaged";
    *costs_p = costs;
    return NULL;
}

static const char *file_parse(int fd, const char *node, struct start_costs *costs_p)
{
    char text[FILE_BYTES_MAX + 1] = "";
    const ssize_t n = read(fd, text, FILE_BYTES_MAX);
    if (n < 0) return strerror(errno);
    return strlen(text) == (size_t)n ? costs_parse(text, node, costs_p) : "it is damaged";
}

bool kept_costs_read(const char *path, const char *node, struct start_costs *costs_p)
{
    const char *wrong;
    const int fd = cache_file_open(path, true, &wrong);
    if (fd < 0 && !wrong) return false;
    if (fd >= 0) {
        wrong = file_parse(fd, node, costs_p);
        close(fd);
    }
    if (wrong) log_event(LOG_INFO, "costs_ignored", LOG_FIELD("path", path), LOG_FIELD("reason", wrong));
    return !wrong;
}

void kept_costs_write(const char *path, const char *node, const struct start_costs *costs)
{
    char text[FILE_BYTES_MAX];
    const size_t n = costs_format(node, costs, text);
    struct new_file file;
    enum status status = new_file_open(&file, path);
    if (status == STATUS_OK && n && write(file.fd, text, n) == (ssize_t)n) {
        new_file_share(&file); // threads that create files start after the costs are known
        status = new_file_commit(&file);
    } else if (status == STATUS_OK) {
        status = status_fail(STATUS_INVALID, "%s", n ? strerror(errno) : "the description of the node is too long");
        new_file_discard(&file);
    }
    if (status != STATUS_OK) log_event(LOG_INFO, "costs_write_failed", LOG_FIELD("path", path), LOG_REASON);
}
