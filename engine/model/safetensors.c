// SPDX-License-Identifier: Apache-2.0
// The safetensors format has 8 bytes of header length (little-endian), then a JSON header with the dtype, shape and
// byte range of every tensor, then the data.
#include "engine/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/fnv.h"
#include "lib/base/mem.h"
#include "lib/text/json_file.h"

enum { MAX_HEADER_BYTES = 100 * 1000 * 1000, MAX_INDEX_BYTES = 100 * 1000 * 1000, MAX_SHARDS = 10000 };

struct file {
    char *path;
    char *name; // name in the index
    void *map;
    size_t map_bytes;
    struct timespec changed;
    json_t *header;                     // owns names and dtypes of the tensors
    struct safetensors_tensor *tensors; // sorted by name
    int n_tensors;
};

struct safetensors {
    struct file *files;
    int n_files;
    json_t *index;                      // NULL for a single file
    struct safetensors_tensor *tensors; // sorted by name
    int n_tensors;
};

// ---- one tensor's entry ----

// Returns the bits of one element, or 0 for unknown types. The sizes of unknown types cannot be checked, so the loader
// refuses such tensors.
static int dtype_bits(const char *dtype)
{
    static const struct {
        const char *name;
        int bits;
    } known[] = {{"F64", 64}, {"F32", 32}, {"F16", 16},    {"BF16", 16},  {"I64", 64}, {"I32", 32},
                 {"I16", 16}, {"I8", 8},   {"U64", 64},    {"U32", 32},   {"U16", 16}, {"U8", 8},
                 {"BOOL", 8}, {"C64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(dtype, known[i].name) == 0) return known[i].bits;
    return 0;
}

const char *safetensors_shape_text(const struct safetensors_tensor *tensor, char *text)
{
    char *end = text;
    *end++ = '[';
    for (int d = 0; d < tensor->n_dims; d++)
        end += sprintf(end, "%s%lld", d ? ", " : "", (long long)tensor->shape[d]);
    strcpy(end, "]");
    return text;
}

static enum status parse_shape(const json_t *shape, struct safetensors_tensor *t)
{
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return status_fail(STATUS_DATA, "%s: tensor %s: shape must be an array of at most %d numbers", t->file, t->name,
                           SAFETENSORS_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    for (int d = 0; d < t->n_dims; d++) {
        const json_t *value = json_array_get(shape, (size_t)d);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return status_fail(STATUS_DATA, "%s: tensor %s: shape must hold whole numbers, 0 or more", t->file,
                               t->name);
        t->shape[d] = json_integer_value(value);
    }
    return STATUS_OK;
}

static enum status check_size(const struct safetensors_tensor *t)
{
    uint64_t bits = (uint64_t)dtype_bits(t->dtype);
    char text[SAFETENSORS_SHAPE_TEXT];
    if (bits == 0) return STATUS_OK;
    bool overflow = false, empty = false;
    for (int d = 0; d < t->n_dims; d++) {
        empty |= t->shape[d] == 0;
        overflow |= __builtin_mul_overflow(bits, (uint64_t)t->shape[d], &bits);
    }
    if (empty)
        bits = 0;
    else if (overflow)
        return status_fail(STATUS_DATA, "%s: tensor %s: shape %s is too large", t->file, t->name,
                           safetensors_shape_text(t, text));
    if (bits / 8 != t->size_bytes)
        return status_fail(STATUS_DATA, "%s: tensor %s: shape %s of %s takes %llu bytes, but its offsets span %llu",
                           t->file, t->name, safetensors_shape_text(t, text), t->dtype, (unsigned long long)bits / 8,
                           (unsigned long long)t->size_bytes);
    return STATUS_OK;
}

static enum status parse_tensor(const json_t *entry, const char *data, uint64_t data_bytes,
                                struct safetensors_tensor *t)
{
    if (!json_is_object(entry))
        return status_fail(STATUS_DATA, "%s: tensor %s is %s: must be an object with dtype, shape and data_offsets",
                           t->file, t->name, json_type_name(entry));
    t->dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!t->dtype) return status_fail(STATUS_DATA, "%s: tensor %s: dtype must be a string", t->file, t->name);
    TRY(parse_shape(json_object_get(entry, "shape"), t));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return status_fail(STATUS_DATA, "%s: tensor %s: data_offsets must be an array of two whole numbers", t->file,
                           t->name);
    json_int_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || first > last)
        return status_fail(STATUS_DATA, "%s: tensor %s: data_offsets [%lld, %lld] must ascend from 0 or more", t->file,
                           t->name, (long long)first, (long long)last);
    if ((uint64_t)last > data_bytes)
        return status_fail(STATUS_DATA,
                           "%s: tensor %s: data_offsets [%lld, %lld] reach past the file's %llu bytes of data: the "
                           "file is truncated or its header is wrong",
                           t->file, t->name, (long long)first, (long long)last, (unsigned long long)data_bytes);
    t->data = data + first;
    t->size_bytes = (uint64_t)(last - first);
    return check_size(t);
}

// ---- reading ahead ----

static uintptr_t page_bytes(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

static void pages_advise(uintptr_t first, uintptr_t end, int advice)
{
    // a failure is harmless, because this is only advice
    if (first < end) madvise((void *)first, end - first, advice);
}

// Joins rows into ranges of pages. A row that starts on the last page of the range, or on the page after it, extends
// the range.
void safetensors_prefetch(const void *data, int64_t rows, size_t row_bytes, int64_t stride_bytes)
{
    const uintptr_t page = page_bytes(), at = (uintptr_t)data;
    uintptr_t first = at / page * page, end = first;
    for (int64_t r = 0; r < rows; r++) {
        uintptr_t row = at + (uintptr_t)(r * stride_bytes), row_first = row / page * page;
        if (row_first > end) {
            pages_advise(first, end, MADV_WILLNEED);
            first = row_first;
        }
        end = (row + row_bytes + page - 1) / page * page;
    }
    pages_advise(first, end, MADV_WILLNEED);
}

void safetensors_release(const void *data, uint64_t size_bytes)
{
    const uintptr_t page = page_bytes(), at = (uintptr_t)data;
    // Release only whole pages: other tensors share the first and the last page.
    pages_advise((at + page - 1) / page * page, (at + size_bytes) / page * page, MADV_DONTNEED);
}

// ---- one file ----

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

static int compare_addresses(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes; // empty tensors first
}

// Checks that every byte of the data belongs to exactly one tensor.
static enum status check_cover(struct file *file, const char *data, uint64_t data_bytes)
{
    uint64_t covered = 0;
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, compare_addresses);
    for (int i = 0; i < file->n_tensors; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];
        uint64_t begin = (uint64_t)((const char *)t->data - data);
        if (begin < covered)
            return status_fail(STATUS_DATA, "%s: tensors %s and %s overlap", file->path, file->tensors[i - 1].name,
                               t->name);
        if (begin > covered)
            return status_fail(STATUS_DATA, "%s: %llu bytes before tensor %s belong to no tensor", file->path,
                               (unsigned long long)(begin - covered), t->name);
        covered += t->size_bytes;
    }
    if (covered < data_bytes)
        return status_fail(STATUS_DATA, "%s: %llu bytes at the end belong to no tensor: the file is overlong",
                           file->path, (unsigned long long)(data_bytes - covered));
    return STATUS_OK;
}

static enum status parse_header(struct file *file)
{
    const char *bytes = file->map;
    uint64_t header_bytes = 0;
    safetensors_prefetch(bytes, 1, 8, 0); // otherwise the kernel would read megabytes around the header
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | (unsigned char)bytes[i];
    if (header_bytes > MAX_HEADER_BYTES)
        return status_fail(STATUS_DATA, "%s: header of %llu bytes: must be at most %d; this is not a safetensors file",
                           file->path, (unsigned long long)header_bytes, MAX_HEADER_BYTES);
    if (header_bytes > file->map_bytes - 8)
        return status_fail(STATUS_DATA, "%s: header of %llu bytes, but the file has only %zu: it is truncated",
                           file->path, (unsigned long long)header_bytes, file->map_bytes);
    safetensors_prefetch(bytes + 8, 1, header_bytes, 0);
    TRY(json_text_read(file->path, bytes + 8, header_bytes, &file->header));

    const char *data = bytes + 8 + header_bytes, *name;
    uint64_t data_bytes = file->map_bytes - 8 - header_bytes;
    json_t *entry;
    file->tensors = mem_alloc_array(json_object_size(file->header) + 1, sizeof *file->tensors);
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct safetensors_tensor *t = &file->tensors[file->n_tensors++];
        t->name = name;
        t->file = file->path;
        TRY(parse_tensor(entry, data, data_bytes, t));
    }
    TRY(check_cover(file, data, data_bytes));
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, compare_names);
    return STATUS_OK;
}

static enum status map_file(struct file *file)
{
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a pipe must not block
    if (fd < 0) return status_fail(file_open_status(errno), "%s: %s", file->path, strerror(errno));
    enum status status = STATUS_OK;
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = status_fail(STATUS_DATA, "%s: not a regular file", file->path);
    } else if (info.st_size < 8) {
        status = status_fail(STATUS_DATA, "%s: %lld bytes: a safetensors file begins with 8 bytes of header length",
                             file->path, (long long)info.st_size);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = status_fail(STATUS_INTERNAL, "%s: mmap: %s", file->path, strerror(errno));
        else
            file->map = map;
        file->map_bytes = (size_t)info.st_size;
        file->changed = info.st_mtim;
    }
    close(fd);
    return status;
}

static enum status open_file(const char *dir, const char *name, struct file *file)
{
    file->path = mem_format("%s/%s", dir, name);
    file->name = mem_string(name);
    enum status status = map_file(file);
    return status == STATUS_OK ? parse_header(file) : status;
}

static const struct safetensors_tensor *tensor_search(const struct safetensors_tensor *tensors, int n, const char *name)
{
    struct safetensors_tensor key = {.name = name};
    return n ? bsearch(&key, tensors, (size_t)n, sizeof *tensors, compare_names) : NULL;
}

// ---- shards ----

// Accepts only plain file names, so that an index cannot name files outside its folder.
static enum status check_shard_name(const char *index_path, const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name)
        return status_fail(STATUS_DATA, "%s: weight_map: %s is %s: must be the name of a file", index_path, tensor,
                           json_type_name(value));
    if (!*name || strlen(name) > 255 || *name == '.' || strchr(name, '/'))
        return status_fail(STATUS_DATA,
                           "%s: weight_map: %s is in \"%.80s\": must be the plain name of a file next to the index",
                           index_path, tensor, name);
    return STATUS_OK;
}

static enum status shard_of(struct safetensors *st, const char *dir, const char *name, int *capacity, int *shard_p)
{
    for (int i = 0; i < st->n_files; i++) {
        if (strcmp(st->files[i].name, name) == 0) {
            *shard_p = i;
            return STATUS_OK;
        }
    }
    if (st->n_files == MAX_SHARDS)
        return status_fail(STATUS_DATA, "%s/model.safetensors.index.json: names more than %d shards", dir, MAX_SHARDS);
    MEM_GROW(st->files, st->n_files, *capacity);
    *shard_p = st->n_files;
    memset(&st->files[st->n_files], 0, sizeof st->files[0]);
    return open_file(dir, name, &st->files[st->n_files++]);
}

static enum status open_shards(struct safetensors *st, const char *dir, const char *index_path)
{
    TRY(json_file_read(index_path, MAX_INDEX_BYTES, &st->index));
    json_t *map = json_object_get(st->index, "weight_map"), *value;
    const char *name;
    int capacity = 0;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return status_fail(STATUS_DATA, "%s: weight_map must be an object of tensor names and file names", index_path);
    st->tensors = mem_alloc_array(json_object_size(map), sizeof *st->tensors);
    json_object_foreach(map, name, value)
    {
        int shard = 0;
        TRY(check_shard_name(index_path, name, value));
        enum status status = shard_of(st, dir, json_string_value(value), &capacity, &shard);
        if (status != STATUS_OK)
            return status == STATUS_NOT_FOUND ? status_context(status, "%s names a missing shard", index_path) : status;
        const struct file *file = &st->files[shard];
        const struct safetensors_tensor *t = tensor_search(file->tensors, file->n_tensors, name);
        if (!t) return status_fail(STATUS_DATA, "%s: weight_map: tensor %s is not in %s", index_path, name, file->name);
        st->tensors[st->n_tensors++] = *t;
    }
    qsort(st->tensors, (size_t)st->n_tensors, sizeof *st->tensors, compare_names);
    return STATUS_OK;
}

static enum status open_single(struct safetensors *st, const char *dir)
{
    st->files = mem_alloc(sizeof *st->files);
    st->n_files = 1;
    TRY(open_file(dir, "model.safetensors", &st->files[0]));
    st->n_tensors = st->files[0].n_tensors;
    st->tensors = mem_copy(st->files[0].tensors, ((size_t)st->n_tensors + 1) * sizeof *st->tensors);
    return STATUS_OK;
}

// ---- public ----

enum status safetensors_open(const char *dir, struct safetensors **st_p)
{
    char *single = mem_format("%s/model.safetensors", dir);
    char *index = mem_format("%s/model.safetensors.index.json", dir);
    struct safetensors *st = mem_alloc(sizeof *st);
    enum status status;
    if (access(single, F_OK) == 0)
        status = open_single(st, dir);
    else if (access(index, F_OK) == 0)
        status = open_shards(st, dir, index);
    else
        status = status_fail(STATUS_NOT_FOUND, "%s: neither model.safetensors nor model.safetensors.index.json", dir);
    free(single);
    free(index);
    if (status != STATUS_OK) {
        safetensors_close(st);
        return status;
    }
    *st_p = st;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *st)
{
    if (!st) return;
    for (int i = 0; i < st->n_files; i++) {
        struct file *file = &st->files[i];
        if (file->map) munmap(file->map, file->map_bytes);
        json_decref(file->header);
        free(file->tensors);
        free(file->path);
        free(file->name);
    }
    json_decref(st->index);
    free(st->files);
    free(st->tensors);
    free(st);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    return tensor_search(st->tensors, st->n_tensors, name);
}

void safetensors_read_exactly(const struct safetensors *st)
{
    for (int i = 0; i < st->n_files; i++)
        madvise(st->files[i].map, st->files[i].map_bytes, MADV_RANDOM); // a failure is harmless
}

const char *safetensors_file_at(const struct safetensors *st, const void *address)
{
    for (int i = 0; i < st->n_files; i++) {
        const struct file *file = &st->files[i];
        if ((uintptr_t)address - (uintptr_t)file->map < file->map_bytes) return file->path;
    }
    return NULL;
}

uint64_t safetensors_stamp(const struct safetensors *st, uint64_t seed)
{
    uint64_t state = fnv1a(FNV_START, &seed, sizeof seed);
    for (int i = 0; i < st->n_files; i++) {
        const struct file *file = &st->files[i];
        const uint64_t words[3] = {file->map_bytes, (uint64_t)file->changed.tv_sec, (uint64_t)file->changed.tv_nsec};
        state = fnv1a(state, words, sizeof words);
    }
    return state;
}

int safetensors_count(const struct safetensors *st)
{
    return st->n_tensors;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *st, int i)
{
    return &st->tensors[i];
}
