// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint, read-only and memory-mapped: model.safetensors, or the shards that
// model.safetensors.index.json names. Format: github.com/huggingface/safetensors.
//
// Everything a header claims is checked against its file before the first look-up: a view never reaches outside the
// mapping. As the format demands, the tensors of a file cover its data without gaps or overlaps. What cannot be caught
// is a file that is truncated while it is mapped (SIGBUS): replace checkpoints by renaming, never in place.
//
// Immutable once open, so any thread may look things up. Views live as long as the handle.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

struct safetensors;

struct safetensors_tensor {
    const char *name;
    const char *file;  // path of the file it lies in, for messages
    const char *dtype; // "F32", "BF16", ...; types unknown here are listed, too
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    const void *data; // not necessarily aligned
    uint64_t size_bytes;
};

// A folder with model.safetensors, or else with model.safetensors.index.json and its shards. STATUS_NOT_FOUND when
// there is neither, or a shard is missing; STATUS_DATA for a broken file, with the file, the tensor and what is wrong.
enum status safetensors_open(const char *dir, struct safetensors **st_p);
void safetensors_close(struct safetensors *st);

// NULL when there is no tensor of that name.
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);

// Hints to the kernel about bytes of a tensor, whatever the alignment. These will be read soon: `row_bytes` each of
// `rows` rows, `stride_bytes` from one to the next; whole pages between them will not.
void safetensors_fetch(const void *data, int64_t rows, size_t row_bytes, int64_t stride_bytes);
// These will not be read again for now: they leave this process's resident memory; reading them after all only takes
// longer.
void safetensors_release(const void *data, uint64_t size_bytes);

// Hash of the files' sizes and times of change, and of `seed`: another one, and what was made of the files must be made
// again.
uint64_t safetensors_stamp(const struct safetensors *st, uint64_t seed);

// All tensors, in the order of their names, one after another in memory; with an index, those it lists.
int safetensors_count(const struct safetensors *st);
const struct safetensors_tensor *safetensors_at(const struct safetensors *st, int i);

// "[4096, 128]" into `text`, which holds SAFETENSORS_SHAPE_TEXT bytes; returns `text`.
enum { SAFETENSORS_SHAPE_TEXT = 8 * 22 + 3 };
const char *safetensors_shape_text(const struct safetensors_tensor *tensor, char *text);
