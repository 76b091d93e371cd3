// SPDX-License-Identifier: Apache-2.0
// All our .proto files as one serialized google.protobuf.FileDescriptorSet, made by protoc at build time.
#pragma once

#include <stddef.h>

extern const unsigned char proto_descriptor_set[];
extern const size_t proto_descriptor_set_size;
