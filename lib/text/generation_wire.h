// SPDX-License-Identifier: Apache-2.0
// Sampling and prefill fields to and from protobuf messages, of the public and of the cluster protocol alike: a field
// of generation_fields.h and the member of a message that has its name are the same field. Stop strings, the logit
// bias and the prefill mode differ between the protocols and are not mapped here. Any thread.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/text/generation.h"

// Of the fields of a table: bit i says that the client gave row i.
typedef uint64_t generation_given;
#define GENERATION_ALL_GIVEN UINT64_MAX
generation_given generation_field_bit(const struct generation_field *fields, const char *name); // 0: no such row

// Into an initialised message: forepack.v1.SamplingOptions or forepack.cluster.v1.Sampling, forepack.v1.PrefillOptions
// or forepack.cluster.v1.ScoreItem. Members with presence (oneof) are set, except switches that are off and OPTIONAL
// fields without a value. Fields that are not `given` are left out. The message borrows the stop token ids from `s`.
void sampling_to_message(const struct sampling *s, generation_given given, ProtobufCMessage *m);
void prefill_to_message(const struct prefill *p, generation_given given, ProtobufCMessage *m);

// From a message. A member with presence that is not set leaves the struct's value, so start from the defaults. Whole
// numbers above INT_MAX become INT_MAX. STATUS_INVALID when an OPTIONAL field is set to a value outside its range or
// there are more than STOP_IDS_MAX stop token ids; everything else is left to sampling_check() and prefill_check().
enum status sampling_from_message(const ProtobufCMessage *m, struct sampling *s);
enum status prefill_from_message(const ProtobufCMessage *m, struct prefill *p);
