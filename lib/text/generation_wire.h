// SPDX-License-Identifier: Apache-2.0
// Converts sampling and prefill fields to and from messages of the public protocol and of the cluster protocol. A field
// of generation_fields.h and the message member of the same name are the same field. Stop strings, the logit bias and
// the prefill mode differ between the protocols and are not converted here. Any thread may call.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/text/generation.h"

// Set of fields of a table: bit i means that the client gave row i.
typedef uint64_t generation_given;
#define GENERATION_ALL_GIVEN UINT64_MAX
// Returns 0 if no row has this name.
generation_given generation_field_bit(const struct generation_field *fields, const char *name);

// Fill an initialised message: forepack.v1.SamplingOptions or forepack.cluster.v1.Sampling, forepack.v1.PrefillOptions
// or forepack.cluster.v1.ScoreItem. Members with presence (oneof) are set, except switches that are off and OPTIONAL
// fields without a value. Fields that are not `given` are left out. max_tokens 0 means sampling.no_output. The message
// borrows the stop token ids from `s`.
void sampling_to_message(const struct sampling *s, generation_given given, ProtobufCMessage *m);
void prefill_to_message(const struct prefill *p, generation_given given, ProtobufCMessage *m);

// Read a message. A member with presence that is not set leaves the struct's value, so start from the defaults. Whole
// numbers above INT_MAX become INT_MAX. Return STATUS_INVALID if an OPTIONAL field has a value outside its range or
// there are more than STOP_IDS_MAX stop token ids. Other checks are left to sampling_check() and prefill_check().
enum status sampling_from_message(const ProtobufCMessage *m, struct sampling *s);
enum status prefill_from_message(const ProtobufCMessage *m, struct prefill *p);
