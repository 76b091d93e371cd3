// SPDX-License-Identifier: Apache-2.0
// A look at a protobuf message before it is unpacked.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

// Whether a message of this kind has at most that many fields, those of its sub-messages included. Unpacking allocates
// for each of them, and two bytes make an empty one: a message of 64 MiB can ask for gigabytes, and for seconds. Bytes
// that are no such message pass as far as they can be read: unpacking refuses them.
bool proto_fields_at_most(const ProtobufCMessageDescriptor *kind, const uint8_t *bytes, size_t size, size_t most);
