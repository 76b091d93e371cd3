// SPDX-License-Identifier: Apache-2.0
// Indexes the FileDescriptorSet of our .proto files (proto/descriptors.h): finds the file that defines a symbol. An
// index is immutable once created. Private to net/.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_file {
    char *name;           // "forepack/v1/inference.proto"
    const uint8_t *bytes; // its FileDescriptorProto, static
    size_t size;
};

struct net_symbols;
struct net_symbols *net_symbols_create(void);
void net_symbols_free(struct net_symbols *symbols);

// Returns the file of this name, or NULL.
const struct net_file *net_symbols_file(const struct net_symbols *symbols, const char *name);
// Returns the file of a message, enum, service, field, enum value or method, by full name, or NULL.
const struct net_file *net_symbols_find(const struct net_symbols *symbols, const char *symbol);
bool net_symbols_is_message(const struct net_symbols *symbols, const char *symbol);
