// SPDX-License-Identifier: Apache-2.0
// The one place where bytes of a peer become a message: unpacking with a bound on its memory. An empty sub-message has
// two bytes on the wire and takes over a hundred once it is unpacked: without a bound a message of 64 MiB costs
// gigabytes and seconds.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

// For answers of a server that the user has chosen.
enum { PROTO_ANSWER_MEMORY_MAX = 256 << 20 };

// Unpacks a message with at most `memory_max` bytes of heap memory, including what is needed meanwhile. NULL with the
// reason, always INVALID: it is malformed or takes more. *memory_p (may be NULL): what it has taken. Free it with the
// free_unpacked function of its type.
void *proto_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, size_t memory_max,
                   size_t *memory_p);
