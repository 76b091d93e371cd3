// SPDX-License-Identifier: Apache-2.0
// The packed weight cache: a file with the packed weights of one rank, written by the first start and mapped by later
// starts. A start that maps it packs nothing, allocates no memory for weights, and shares the pages with other
// processes of the host.
//
// The file is a header, a table of arrays, and the arrays, each on its own page, in the order in which the model
// creates its weights. The file is used only if all of these match: format version, packed layout of this backend, the
// caller's key (which identifies the checkpoint), hashes of header and table, and file length. The shape and array
// sizes of each weight must also match. Otherwise the weights are packed from the checkpoint. As in a checkpoint, the
// contents of the arrays have no hash. A file that another user may have written is not used (lib/base/new_file.h).
//
// The prefetch choice of one machine (stream_tuning.h), with its own hash, follows the header. If it is the choice of
// another machine, the start measures again and overwrites it in place. Only a start that maps the file measures: the
// start that writes the file reads other memory, in pages of another size.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"

struct packed_cache;
struct weight;

// One array of a weight.
struct packed_array {
    void *data;
    size_t bytes;
};

// Maps `path` if it matches. Logs why an existing file does not match. Never NULL.
struct packed_cache *packed_cache_open(const char *path, const char *layout, uint64_t key);
bool packed_cache_hit(const struct packed_cache *cache); // the file matched
void packed_cache_close(struct packed_cache *cache);     // unmaps the arrays; NULL is fine
// Returns the mapped file [*bytes_p], or NULL if there is none. NULL is fine.
void *packed_cache_map(const struct packed_cache *cache, size_t *bytes_p);

enum { PACKED_ARRAYS = 4 }; // largest number of arrays of a weight

// Returns the number of arrays of the next weight in the file, and their sizes. Returns 0 if the file lacks it.
int packed_cache_next(const struct packed_cache *cache, size_t bytes[PACKED_ARRAYS]);
// Sets the data pointers of the next weight's arrays, whose sizes the caller has set. Returns false if the file lacks
// this weight and all later weights.
bool packed_cache_lookup(struct packed_cache *cache, const struct weight *w, struct packed_array *arrays, int n);

// Uses no more weights of the file, whose contents are wrong.
void packed_cache_refuse(struct packed_cache *cache, const char *reason);

// Returns the prefetch that `machine` measured on this file, or false if the file has none.
bool packed_cache_prefetch(const struct packed_cache *cache, uint64_t machine, struct stream_prefetch *prefetch_p);
// Keeps the prefetch for later starts, if every weight so far came from the file and the file can be written.
void packed_cache_keep_prefetch(struct packed_cache *cache, uint64_t machine, const struct stream_prefetch *prefetch);

// Writes these weights as a new file and renames it into place. Logs success or failure. Does nothing if every weight
// came from the file.
struct packed_weight {
    const struct weight *weight;
    struct packed_array arrays[PACKED_ARRAYS];
    int n;
};
void packed_cache_write(struct packed_cache *cache, const struct packed_weight *weights, int n);
