// SPDX-License-Identifier: Apache-2.0
// Reads the wire format of the descriptor set: only names and nesting of google/protobuf/descriptor.proto matter here.
#include "lib/net/symbols.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "proto/descriptors.h"

struct symbol {
    char *name; // full, without the leading dot
    int file;
    bool message;
};

struct net_symbols {
    int n_files, files_capacity;
    struct net_file *files;
    int n_symbols, symbols_capacity;
    struct symbol *symbols;
};

// For each kind of descriptor: field number -> kind of the descriptors in that field. Every name is in field 1.
enum kind { KIND_NONE, KIND_FILE, KIND_MESSAGE, KIND_ENUM, KIND_SERVICE, KIND_LEAF };
enum { MAX_FIELD = 10 };

static const enum kind contains[][MAX_FIELD] = {
    [KIND_FILE] = {[4] = KIND_MESSAGE, [5] = KIND_ENUM, [6] = KIND_SERVICE, [7] = KIND_LEAF},
    [KIND_MESSAGE] = {[2] = KIND_LEAF, [3] = KIND_MESSAGE, [4] = KIND_ENUM, [6] = KIND_LEAF, [8] = KIND_LEAF},
    [KIND_ENUM] = {[2] = KIND_LEAF},
    [KIND_SERVICE] = {[2] = KIND_LEAF},
    [KIND_LEAF] = {0},
};

struct field {
    uint64_t number;
    const uint8_t *bytes; // of a length-delimited field, else NULL
    size_t size;
};

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value_p)
{
    uint64_t value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value_p = value;
            return true;
        }
    }
    return false;
}

// Reads one field and advances `at`. Returns false at the end, and at groups, which descriptors do not contain.
static bool field_next(const uint8_t **at, const uint8_t *end, struct field *field_p)
{
    uint64_t key, size;
    if (!read_varint(at, end, &key)) return false;
    *field_p = (struct field){.number = key >> 3};
    switch (key & 7) {
    case 0: return read_varint(at, end, &size);
    case 1: size = 8; break;
    case 5: size = 4; break;
    case 2:
        if (!read_varint(at, end, &size)) return false;
        field_p->bytes = *at;
        field_p->size = (size_t)size;
        break;
    default: return false;
    }
    if (size > (uint64_t)(end - *at)) return false;
    *at += size;
    return true;
}

// Returns the text in a field, or "" if the field is absent. The caller frees it.
static char *field_read_text(const uint8_t *bytes, size_t size, uint64_t number)
{
    struct field field;
    for (const uint8_t *at = bytes; field_next(&at, bytes + size, &field);) {
        if (field.number == number && field.bytes)
            return mem_format("%.*s", (int)field.size, (const char *)field.bytes);
    }
    return mem_string("");
}

static char *name_join(const char *scope, const char *name)
{
    return *scope ? mem_format("%s.%s", scope, name) : mem_string(name);
}

static void symbols_add_children(struct net_symbols *symbols, enum kind kind, const char *scope, const char *outer,
                                 const uint8_t *bytes, size_t size);

static void symbols_add(struct net_symbols *symbols, enum kind kind, const char *scope, const uint8_t *bytes,
                        size_t size)
{
    char *name = field_read_text(bytes, size, 1), *full = name_join(scope, name);
    free(name);
    MEM_GROW(symbols->symbols, symbols->n_symbols, symbols->symbols_capacity);
    symbols->symbols[symbols->n_symbols++] =
        (struct symbol){.name = full, .file = symbols->n_files - 1, .message = kind == KIND_MESSAGE};
    symbols_add_children(symbols, kind, full, scope, bytes, size);
}

static void symbols_add_children(struct net_symbols *symbols, enum kind kind, const char *scope, const char *outer,
                                 const uint8_t *bytes, size_t size)
{
    struct field field;
    for (const uint8_t *at = bytes; field_next(&at, bytes + size, &field);) {
        enum kind child = field.number < MAX_FIELD ? contains[kind][field.number] : KIND_NONE;
        // An enum's values belong to the scope that contains the enum, as in C.
        if (child && field.bytes)
            symbols_add(symbols, child, kind == KIND_ENUM ? outer : scope, field.bytes, field.size);
    }
}

static int symbol_compare(const void *a, const void *b)
{
    return strcmp(((const struct symbol *)a)->name, ((const struct symbol *)b)->name);
}

struct net_symbols *net_symbols_create(void)
{
    struct net_symbols *symbols = mem_alloc(sizeof *symbols);
    struct field field;
    const uint8_t *end = proto_descriptor_set + proto_descriptor_set_size;
    for (const uint8_t *at = proto_descriptor_set; field_next(&at, end, &field);) {
        if (field.number != 1 || !field.bytes) continue; // FileDescriptorSet.file
        MEM_GROW(symbols->files, symbols->n_files, symbols->files_capacity);
        symbols->files[symbols->n_files++] = (struct net_file){
            .name = field_read_text(field.bytes, field.size, 1), .bytes = field.bytes, .size = field.size};
        char *package = field_read_text(field.bytes, field.size, 2);
        symbols_add_children(symbols, KIND_FILE, package, "", field.bytes, field.size);
        free(package);
    }
    qsort(symbols->symbols, (size_t)symbols->n_symbols, sizeof *symbols->symbols, symbol_compare);
    return symbols;
}

void net_symbols_free(struct net_symbols *symbols)
{
    for (int i = 0; i < symbols->n_files; i++)
        free(symbols->files[i].name);
    for (int i = 0; i < symbols->n_symbols; i++)
        free(symbols->symbols[i].name);
    free(symbols->files);
    free(symbols->symbols);
    free(symbols);
}

const struct net_file *net_symbols_file(const struct net_symbols *symbols, const char *name)
{
    for (int i = 0; i < symbols->n_files; i++) {
        if (strcmp(symbols->files[i].name, name) == 0) return &symbols->files[i];
    }
    return NULL;
}

static const struct symbol *symbol_find(const struct net_symbols *symbols, const char *name)
{
    struct symbol key = {.name = (char *)name};
    return bsearch(&key, symbols->symbols, (size_t)symbols->n_symbols, sizeof key, symbol_compare);
}

const struct net_file *net_symbols_find(const struct net_symbols *symbols, const char *name)
{
    const struct symbol *symbol = symbol_find(symbols, name);
    return symbol ? &symbols->files[symbol->file] : NULL;
}

bool net_symbols_is_message(const struct net_symbols *symbols, const char *name)
{
    const struct symbol *symbol = symbol_find(symbols, name);
    return symbol && symbol->message;
}
