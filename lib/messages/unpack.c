// SPDX-License-Identifier: Apache-2.0
#include "lib/messages/unpack.h"

#include <stdbool.h>
#include <stdlib.h>

#include "lib/base/status.h"

enum { BLOCK_BYTES = 16 }; // memory that malloc adds to a block

struct budget {
    size_t left;
    bool exceeded;
};

static void *budget_alloc(void *user, size_t size)
{
    struct budget *budget = user;
    if (budget->exceeded || budget->left < BLOCK_BYTES || size > budget->left - BLOCK_BYTES) {
        budget->exceeded = true;
        return NULL;
    }
    budget->left -= size + BLOCK_BYTES;
    return malloc(size);
}

static void budget_free(void *user, void *pointer)
{
    free(pointer);
}

void *proto_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, size_t memory_max,
                   size_t *memory_p)
{
    struct budget budget = {.left = memory_max};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    void *message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    if (message && memory_p) *memory_p = memory_max - budget.left;
    if (!message && budget.exceeded)
        status_fail(STATUS_INVALID,
                    "the message takes over %zu MiB of memory when unpacked: send fewer fields in one message",
                    memory_max >> 20);
    else if (!message)
        status_fail(STATUS_INVALID, "the message is not a valid %s", type->short_name);
    return message;
}
