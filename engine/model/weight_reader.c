// SPDX-License-Identifier: Apache-2.0
#include "engine/model/weight_reader.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/model/int4_tensors.h"
#include "engine/model/safetensors.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

// The kernel reads at most a few MiB for one request (force_page_cache_readahead() in mm/readahead.c). Two threads keep
// requests queued while one of them waits for room in the disk's queue.
enum { CHUNK_BYTES = 1 << 20, READERS = 2 };

struct weight_parts {
    struct matrix_view *parts; // [n]
    int n;
    bool pairs;
    int64_t rows;       // rows of all parts
    size_t row_bytes;   // bytes of a row in the file
    uint64_t end_bytes; // bytes of this weight and all earlier ones
};

struct weight_reader {
    const struct weight_list *list;
    int shares;
    pthread_t threads[READERS];
    int n_threads;
    pthread_mutex_t mutex; // guards the members below
    pthread_cond_t changed;
    int begun; // the weight that the loader creates now; -1: none yet
    // The next chunk: share `share` of weight `weight`, from row `row` of the share.
    int weight, share;
    int64_t row;
    bool stop;
};

// --- the list

// Returns the view as it is stored. Codes of 4 bits are stored as rows of bytes that are not the matrix's rows.
static struct matrix_view stored_view(const struct matrix_view *view)
{
    if (view->dtype != DTYPE_INT4_G128) return *view;
    const struct int4_extent e = int4_view_extent(view);
    return (struct matrix_view){
        .data = e.start, .dtype = DTYPE_INT8, .rows = e.n, .columns = (int64_t)e.bytes, .row_stride_bytes = e.stride};
}

void weight_list_add(struct weight_list *list, const struct matrix_view *parts, int n, bool pairs)
{
    MEM_GROW(list->items, list->n, list->capacity);
    struct weight_parts *w = &list->items[list->n];
    *w = (struct weight_parts){.parts = mem_alloc_array((size_t)n, sizeof *parts), .n = n, .pairs = pairs};
    for (int i = 0; i < n; i++) {
        w->parts[i] = stored_view(&parts[i]);
        w->rows += w->parts[i].rows;
    }
    w->row_bytes = (size_t)w->parts[0].columns * dtype_size_bytes(w->parts[0].dtype);
    w->end_bytes = (list->n ? w[-1].end_bytes : 0) + (uint64_t)w->rows * w->row_bytes;
    list->n++;
}

void weight_list_fini(struct weight_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->items[i].parts);
    free(list->items);
    *list = (struct weight_list){0};
}

// --- the threads

static void view_prefetch(const struct matrix_view *view, int64_t first, int64_t end)
{
    if (end > view->rows) end = view->rows;
    if (!view->data || first >= end) return;
    safetensors_prefetch((const char *)view->data + first * view->row_stride_bytes, end - first,
                         (size_t)view->columns * dtype_size_bytes(view->dtype), view->row_stride_bytes);
}

// Prefetches rows [first, end) of a weight.
static void rows_prefetch(const struct weight_parts *w, int64_t first, int64_t end)
{
    for (int i = 0; i < w->n; i++) {
        if (w->pairs) {
            view_prefetch(&w->parts[i], first / 2, (end + 1) / 2);
            continue;
        }
        const int64_t rows = w->parts[i].rows;
        if (end > 0 && first < rows) view_prefetch(&w->parts[i], first > 0 ? first : 0, end);
        first -= rows;
        end -= rows;
    }
}

static int64_t chunk_rows(const struct weight_parts *w)
{
    const int64_t rows = w->row_bytes ? CHUNK_BYTES / (int64_t)w->row_bytes : w->rows;
    return rows > 1 ? rows : 1;
}

// Returns the first row of a share. The share ends where the next one begins.
static int64_t share_row(const struct weight_parts *w, int share, int shares)
{
    return w->rows * share / shares;
}

static bool is_far_ahead(const struct weight_reader *r)
{
    const int now = r->begun < 0 ? 0 : r->begun;
    const struct weight_parts *w = &r->list->items[r->weight];
    const uint64_t start = r->weight ? w[-1].end_bytes : 0;
    return start + (uint64_t)r->row * (uint64_t)r->shares * w->row_bytes >
           r->list->items[now].end_bytes + WEIGHT_READER_AHEAD_BYTES;
}

// Moves to the next chunk: the same rows of the next share, else the next rows of the first share.
static void chunk_advance(struct weight_reader *r)
{
    const struct weight_parts *w = &r->list->items[r->weight];
    if (++r->share < r->shares) return;
    r->share = 0;
    r->row += chunk_rows(w);
    if (r->row * r->shares < w->rows + r->shares) return;
    r->row = 0;
    r->weight++;
}

// Waits for the next chunk and takes it. Returns NULL at the end.
static const struct weight_parts *chunk_take(struct weight_reader *r, int64_t *first_p, int64_t *end_p)
{
    const struct weight_parts *w = NULL;
    pthread_mutex_lock(&r->mutex);
    while (!r->stop && r->weight < r->list->n && is_far_ahead(r))
        pthread_cond_wait(&r->changed, &r->mutex);
    if (!r->stop && r->weight < r->list->n) {
        w = &r->list->items[r->weight];
        const int64_t end = share_row(w, r->share + 1, r->shares);
        *first_p = share_row(w, r->share, r->shares) + r->row;
        *end_p = *first_p + chunk_rows(w) < end ? *first_p + chunk_rows(w) : end;
        chunk_advance(r);
    }
    pthread_mutex_unlock(&r->mutex);
    return w;
}

static void *reader_main(void *arg)
{
    struct weight_reader *r = arg;
    const struct weight_parts *w;
    int64_t first, end;
    while ((w = chunk_take(r, &first, &end)))
        if (first < end) rows_prefetch(w, first, end);
    return NULL;
}

// --- public

struct weight_reader *weight_reader_start(const struct weight_list *list, int shares)
{
    struct weight_reader *r = mem_alloc(sizeof *r);
    *r = (struct weight_reader){.list = list, .shares = shares, .begun = -1};
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    while (r->n_threads < READERS && thread_create(&r->threads[r->n_threads], reader_main, r) == 0)
        r->n_threads++;
    if (r->n_threads) return r;
    weight_reader_stop(r);
    return NULL;
}

void weight_reader_next(struct weight_reader *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->mutex);
    r->begun++;
    if (r->weight < r->begun) { // the loader reads these pages itself
        r->weight = r->begun;
        r->share = 0;
        r->row = 0;
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

void weight_reader_stop(struct weight_reader *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}
