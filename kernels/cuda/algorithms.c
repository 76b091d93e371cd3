// SPDX-License-Identifier: Apache-2.0
// See algorithms.h. The file is text: a header, a line for the GPU and library, then a line per choice with the numbers
// of the key and the words of the algorithm.
#include "kernels/cuda/algorithms.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"

#define FORMAT "forepack gemm 2"

enum { KEY_INTS = sizeof(struct gemm_key) / sizeof(int32_t) };
enum { ALGO_WORDS = sizeof((cublasLtMatmulAlgo_t *)NULL)->data / sizeof(uint64_t), CHOICES_MAX = 1 << 16 };

struct choice {
    struct gemm_key key;
    cublasLtMatmulAlgo_t algo;
};

struct algorithms {
    char *folder, *path; // NULL if choices are not saved
    char *made_for;      // second line of the file
    struct choice *choices;
    int n, capacity;
    bool changed;
};

// ---- reading --------------------------------------------------------------------------------------------------------

static bool choice_parse(const char *line, struct choice *choice)
{
    int32_t ints[KEY_INTS];
    for (int i = 0; i < KEY_INTS; i++) {
        char *end;
        long value = strtol(line, &end, 10);
        if (end == line || value < 0 || value > INT32_MAX) return false;
        ints[i] = (int32_t)value;
        line = end;
    }
    memcpy(&choice->key, ints, sizeof ints);
    for (int i = 0; i < (int)ALGO_WORDS; i++) {
        char *end;
        choice->algo.data[i] = strtoull(line, &end, 16);
        if (end == line) return false;
        line = end;
    }
    return line[strspn(line, " \n")] == 0;
}

// Removes the newline. Returns false if there is none, since the file ends within a line.
static bool line_chomp(char *line)
{
    size_t n = strlen(line);
    if (!n || line[n - 1] != '\n') return false;
    line[n - 1] = 0;
    return true;
}

// Reads all lines. Returns NULL, or the reason why the file is ignored.
static const char *choices_read(struct algorithms *a, FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    const char *wrong = NULL;
    for (int number = 1; !wrong && getline(&line, &room, file) > 0; number++) {
        struct choice choice;
        if (!line_chomp(line))
            wrong = "its last line is cut off";
        else if (number == 1)
            wrong = strcmp(line, FORMAT) == 0 ? NULL : "the format is not of this version";
        else if (number == 2)
            wrong = strcmp(line, a->made_for) == 0 ? NULL : "it was written for another GPU or library";
        else if (!choice_parse(line, &choice) || a->n == CHOICES_MAX)
            wrong = "a line cannot be parsed";
        else
            algorithms_put(a, &choice.key, &choice.algo);
    }
    if (!wrong && ferror(file)) wrong = "it cannot be read";
    free(line);
    return wrong;
}

static void choices_load(struct algorithms *a)
{
    const char *wrong;
    int fd = cache_file_open(a->path, false, &wrong);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (file) {
        wrong = choices_read(a, file);
        fclose(file);
    }
    a->changed = false;
    if (!wrong) return;
    log_event(LOG_WARN, "algorithms_ignored", LOG_FIELD("path", a->path), LOG_FIELD("reason", wrong));
    a->n = 0;
}

// ---- writing --------------------------------------------------------------------------------------------------------

static void choices_print(const struct algorithms *a, FILE *file)
{
    fprintf(file, "%s\n%s\n", FORMAT, a->made_for);
    for (int c = 0; c < a->n; c++) {
        int32_t ints[KEY_INTS];
        memcpy(ints, &a->choices[c].key, sizeof ints);
        for (int i = 0; i < KEY_INTS; i++)
            fprintf(file, "%s%" PRId32, i ? " " : "", ints[i]);
        for (int i = 0; i < (int)ALGO_WORDS; i++)
            fprintf(file, " %" PRIx64, a->choices[c].algo.data[i]);
        fprintf(file, "\n");
    }
}

static enum status choices_write(const struct algorithms *a, struct new_file *made)
{
    int fd = fcntl(made->fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file) choices_print(a, file);
    bool failed = !file || ferror(file);
    if (file && fclose(file) != 0) failed = true;
    if (!failed) return new_file_commit(made);
    enum status status = status_fail(STATUS_INVALID, "%s", strerror(errno));
    new_file_discard(made);
    return status;
}

// Creates the folder and its parent, since ~/.cache may not exist.
static bool folder_create(const char *folder)
{
    char *above = mem_string(folder);
    char *slash = strrchr(above, '/');
    if (slash) *slash = 0;
    mkdir(above, 0700);
    free(above);
    return mkdir(folder, 0700) == 0 || errno == EEXIST;
}

void algorithms_save(struct algorithms *a)
{
    if (!a->path || !a->changed) return;
    // Ranks write at the same time. Each writes its own file, and the last rename wins.
    struct new_file made;
    enum status status =
        folder_create(a->folder) ? new_file_open(&made, a->path) : status_fail(STATUS_INVALID, "%s", strerror(errno));
    if (status == STATUS_OK) status = choices_write(a, &made);
    if (status == STATUS_OK)
        a->changed = false;
    else
        log_event(LOG_WARN, "algorithms_not_saved", LOG_FIELD("path", a->path), LOG_REASON);
}

// ---- choices --------------------------------------------------------------------------------------------------------

static struct choice *choice_find(const struct algorithms *a, const struct gemm_key *key)
{
    for (int i = 0; i < a->n; i++)
        if (memcmp(&a->choices[i].key, key, sizeof *key) == 0) return &a->choices[i];
    return NULL;
}

bool algorithms_find(const struct algorithms *a, const struct gemm_key *key, cublasLtMatmulAlgo_t *algo_p)
{
    const struct choice *choice = choice_find(a, key);
    if (choice) *algo_p = choice->algo;
    return choice != NULL;
}

void algorithms_put(struct algorithms *a, const struct gemm_key *key, const cublasLtMatmulAlgo_t *algo)
{
    struct choice *choice = choice_find(a, key);
    if (!choice) {
        MEM_GROW(a->choices, a->n, a->capacity);
        choice = &a->choices[a->n++];
    }
    *choice = (struct choice){*key, *algo};
    a->changed = true;
}

// ---- opening --------------------------------------------------------------------------------------------------------

static char *folder_path(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) return mem_format("%s/forepack", cache);
    return home && *home ? mem_format("%s/.cache/forepack", home) : NULL;
}

struct algorithms *algorithms_open(const char *gpu, size_t library_version)
{
    struct algorithms *a = mem_alloc(sizeof *a);
    a->made_for = mem_format("%s, cuBLASLt %zu", gpu, library_version);
    a->folder = folder_path();
    if (!a->folder) return a;
    char *name = mem_string(a->made_for);
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '-';
    a->path = mem_format("%s/gemm-%s", a->folder, name);
    free(name);
    choices_load(a);
    return a;
}

void algorithms_close(struct algorithms *a)
{
    if (!a) return;
    free(a->folder);
    free(a->path);
    free(a->made_for);
    free(a->choices);
    free(a);
}
