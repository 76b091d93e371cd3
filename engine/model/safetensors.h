// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint, read-only and memory-mapped: model.safetensors, or the shards that
// model.safetensors.index.json names. Format: github.com/huggingface/safetensors.
//
// Opening checks every header against its file. A tensor never reaches outside the mapping, and the tensors of a file
// cover its data without gaps or overlaps, as the format demands. If a mapped file is truncated, reading it raises
// SIGBUS, which ends the process (file_fault.h). So replace checkpoints by renaming, never in place.
//
// Immutable once open; any thread may look up tensors. Tensors are valid as long as the handle.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

struct safetensors;

struct safetensors_tensor {
    const char *name;
    const char *file;  // path, for messages
    const char *dtype; // "F32", "BF16", ...; unknown types are listed too
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    const void *data; // not necessarily aligned
    uint64_t size_bytes;
};

// Opens model.safetensors in the folder or, if it does not exist, model.safetensors.index.json and its shards. Returns
// STATUS_NOT_FOUND if neither file exists or a shard is missing. Returns STATUS_DATA if a file is broken;
// status_message() names the file, the tensor and the defect.
enum status safetensors_open(const char *dir, struct safetensors **st_p);
void safetensors_close(struct safetensors *st);

// Returns the tensor, or NULL if there is no tensor of this name.
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);

// Advises the kernel that `rows` rows of `row_bytes` bytes, `stride_bytes` apart, will be read soon. Pages without a
// byte of these rows are not prefetched. Any alignment is allowed.
void safetensors_prefetch(const void *data, int64_t rows, size_t row_bytes, int64_t stride_bytes);
// Tells the kernel to read no pages but those that are accessed or prefetched. Prefetch everything that is accessed.
void safetensors_read_exactly(const struct safetensors *st);
// Removes the pages from this process's resident memory. They can still be read, but more slowly.
void safetensors_release(const void *data, uint64_t size_bytes);

// Returns the path of the file that is mapped at this address, or NULL. May be called in a signal handler.
const char *safetensors_file_at(const struct safetensors *st, const void *address);

// Returns a hash of the files' sizes and modification times, and of `seed`. If the hash changes, anything derived from
// the files (the packed weight cache) is out of date.
uint64_t safetensors_stamp(const struct safetensors *st, uint64_t seed);

// Return the number of tensors, and one of them. Tensors are sorted by name and consecutive in memory. With an index,
// only tensors that it lists are counted.
int safetensors_count(const struct safetensors *st);
const struct safetensors_tensor *safetensors_at(const struct safetensors *st, int i);

// Writes "[4096, 128]" into `text` [SAFETENSORS_SHAPE_TEXT] and returns it.
enum { SAFETENSORS_SHAPE_TEXT = 8 * 22 + 3 };
const char *safetensors_shape_text(const struct safetensors_tensor *tensor, char *text);
