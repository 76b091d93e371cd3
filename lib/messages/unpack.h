// SPDX-License-Identifier: Apache-2.0
// Unpacks the messages of peers with a bound on memory. No other file unpacks messages. An empty sub-message has two
// bytes on the wire and over a hundred once unpacked, so without a bound a message of 64 MiB can take gigabytes of
// memory and seconds of CPU time.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

// Memory limit for answers of a server that the user has chosen.
enum { PROTO_ANSWER_MEMORY_MAX = 256 << 20 };

// Unpacks a message with at most `memory_max` bytes of heap memory, temporary memory included. Returns NULL and records
// the reason with status_fail(), always as INVALID, if the message is malformed or needs more memory. *memory_p is the
// memory that was used; memory_p may be NULL. Free the message with the free_unpacked function of its type.
void *proto_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, size_t memory_max,
                   size_t *memory_p);
