// SPDX-License-Identifier: Apache-2.0
// A bound on the fields of a protobuf message, checked before it is unpacked.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

// Whether a message of this type has at most `limit` fields, including those of its sub-messages. Unpacking allocates
// memory for every field, and an empty sub-message takes two bytes: without a bound a message of 64 MiB costs gigabytes
// and seconds. Malformed bytes pass, since unpacking refuses them.
bool proto_fields_at_most(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, size_t limit);
