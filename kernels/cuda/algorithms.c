// SPDX-License-Identifier: Apache-2.0
// The file is text: what it was made for, then a line for each choice: the key's numbers and the algorithm's words.
#include "kernels/cuda/algorithms.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define FORMAT "forepack products 1"

enum { KEY_INTS = sizeof(struct product_key) / sizeof(int32_t) };
enum { ALGO_WORDS = sizeof((cublasLtMatmulAlgo_t *)NULL)->data / sizeof(uint64_t), MOST_CHOICES = 1 << 16 };

struct choice {
    struct product_key key;
    cublasLtMatmulAlgo_t algo;
};

struct algorithms {
    char *folder, *path; // NULL: nowhere
    char *made_for;      // the file's second line
    struct choice *choices;
    int n, capacity;
    bool changed;
};

// ---- reading --------------------------------------------------------------------------------------------------------

static bool parse(const char *line, struct choice *choice)
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

// Drops the line's end; false if it had none: the file ends within a line.
static bool chomp(char *line)
{
    size_t n = strlen(line);
    if (!n || line[n - 1] != '\n') return false;
    line[n - 1] = 0;
    return true;
}

// All lines, or NULL and why not.
static const char *read_choices(struct algorithms *a, FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    const char *wrong = NULL;
    for (int number = 1; !wrong && getline(&line, &room, file) > 0; number++) {
        struct choice choice;
        if (!chomp(line))
            wrong = "its last line is cut off";
        else if (number == 1)
            wrong = strcmp(line, FORMAT) == 0 ? NULL : "it is no list of algorithms that this version knows";
        else if (number == 2)
            wrong = strcmp(line, a->made_for) == 0 ? NULL : "it was made for another GPU or library";
        else if (!parse(line, &choice) || a->n == MOST_CHOICES)
            wrong = "a line of it is no choice of an algorithm";
        else
            algorithms_put(a, &choice.key, &choice.algo);
    }
    if (!wrong && ferror(file)) wrong = "it cannot be read";
    free(line);
    return wrong;
}

static void load(struct algorithms *a)
{
    FILE *file = fopen(a->path, "r");
    if (!file) {
        if (errno != ENOENT) log_warn("algorithms_ignored path=%s reason=\"%s\"", a->path, strerror(errno));
        return;
    }
    const char *wrong = read_choices(a, file);
    fclose(file);
    a->changed = false;
    if (!wrong) return;
    log_warn("algorithms_ignored path=%s reason=\"%s\"", a->path, wrong);
    a->n = 0;
}

// ---- writing --------------------------------------------------------------------------------------------------------

static bool write_choices(const struct algorithms *a, FILE *file)
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
    return fflush(file) == 0 && !ferror(file);
}

// Makes the folder and the one it lies in: ~/.cache may not be there yet.
static bool make_folder(const char *folder)
{
    char *above = mem_string(folder);
    char *slash = strrchr(above, '/');
    if (slash) *slash = 0;
    mkdir(above, 0755);
    free(above);
    return mkdir(folder, 0755) == 0 || errno == EEXIST;
}

void algorithms_save(struct algorithms *a)
{
    if (!a->path || !a->changed) return;
    // Ranks write at the same time: each a file of its own, the last to be renamed stays.
    char *made = mem_format("%s.%ld", a->path, (long)getpid());
    FILE *file = make_folder(a->folder) ? fopen(made, "w") : NULL;
    bool written = file && write_choices(a, file);
    if (file && fclose(file) != 0) written = false;
    if (written && rename(made, a->path) == 0) {
        a->changed = false;
    } else {
        log_warn("algorithms_not_saved path=%s reason=\"%s\"", a->path, strerror(errno));
        if (file) unlink(made);
    }
    free(made);
}

// ---- choices --------------------------------------------------------------------------------------------------------

static struct choice *find(const struct algorithms *a, const struct product_key *key)
{
    for (int i = 0; i < a->n; i++)
        if (memcmp(&a->choices[i].key, key, sizeof *key) == 0) return &a->choices[i];
    return NULL;
}

bool algorithms_find(const struct algorithms *a, const struct product_key *key, cublasLtMatmulAlgo_t *algo_p)
{
    const struct choice *choice = find(a, key);
    if (choice) *algo_p = choice->algo;
    return choice != NULL;
}

void algorithms_put(struct algorithms *a, const struct product_key *key, const cublasLtMatmulAlgo_t *algo)
{
    struct choice *choice = find(a, key);
    if (!choice) {
        MEM_GROW(a->choices, a->n, a->capacity);
        choice = &a->choices[a->n++];
    }
    *choice = (struct choice){*key, *algo};
    a->changed = true;
}

// ---- opening --------------------------------------------------------------------------------------------------------

static char *cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) return mem_format("%s/forepack", cache);
    return home && *home ? mem_format("%s/.cache/forepack", home) : NULL;
}

struct algorithms *algorithms_open(const char *gpu, size_t library_version)
{
    struct algorithms *a = mem_alloc(sizeof *a);
    a->made_for = mem_format("%s, cuBLASLt %zu", gpu, library_version);
    a->folder = cache_folder();
    if (!a->folder) return a;
    char *name = mem_string(a->made_for);
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '-';
    a->path = mem_format("%s/products-%s", a->folder, name);
    free(name);
    load(a);
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
