// SPDX-License-Identifier: Apache-2.0
// A radix tree of chains. An edge (struct prefix_run) is split where chains diverge or end, so a request holds whole
// edges. A member stores how many blocks of one edge one record has. A record lists its members that no request holds,
// by age.
//
// Within a record, the member of an edge is older than the member of the parent edge. So eviction starts at the end of
// a chain. If a member has lost blocks, the record has no member in the edges after it. An edge is as long as its
// longest member.
#include "router/sched/prefix_index.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"

struct prefix_run {
    struct prefix_run *parent;      // NULL: the edge starts a chain
    struct prefix_run *bucket_next; // next edge in the hash table's bucket
    uint32_t *marks;                // [end - begin] low 32 bits of the hash of each block; owned
    int begin, end;                 // the edge has the blocks from `begin` to `end` - 1 of its chains
    struct member **members;        // [n_members] ordered by the number of their records; owned
    int n_members, members_capacity;
    int n_holding; // number of members that requests hold
};

struct member {
    struct prefix_record *record;
    struct prefix_run *edge;
    int blocks;                     // number of leading blocks of the edge that the record has
    int holds;                      // number of requests that hold the member
    struct member *older, *younger; // links in the record's list; valid while holds is 0
};

struct prefix_record {
    struct prefix_index *index;
    struct sched_node *node;
    uint64_t number;
    int capacity;
    int64_t blocks, held_blocks; // blocks of all members; blocks of the members that requests hold
    int64_t bytes, held_bytes;   // memory of all members; memory of the held members
    struct member *oldest, *youngest;
};

struct prefix_index {
    struct prefix_run **buckets; // [n_buckets] a power of two
    uint32_t n_buckets, n_edges;
    uint64_t last_record;
};

// MEMBER_BYTES: memory of a member and of an edge that only this member has. This is both structs, two pointers in
// arrays that may be half empty, and the overhead of four allocations.
enum { BUCKETS_MIN = 64, ALLOCATION = 16, MARK_BYTES = sizeof(uint32_t) };
#define MEMBER_BYTES                                                                                                   \
    ((int64_t)(sizeof(struct prefix_run) + sizeof(struct member) + 4 * sizeof(void *) + 4 * ALLOCATION))

struct prefix_index *prefix_index_create(void)
{
    struct prefix_index *index = mem_alloc(sizeof *index);
    index->n_buckets = BUCKETS_MIN;
    index->buckets = mem_alloc_array(index->n_buckets, sizeof(struct prefix_run *));
    return index;
}

void prefix_index_free(struct prefix_index *index)
{
    if (!index) return;
    INVARIANT(index->n_edges == 0, "%u runs are left", index->n_edges);
    free(index->buckets);
    free(index);
}

// --- edges

static int edge_blocks(const struct prefix_run *edge)
{
    return edge->end - edge->begin;
}

static struct prefix_run **edge_bucket(const struct prefix_index *index, uint32_t mark)
{
    return &index->buckets[mark & (index->n_buckets - 1)];
}

static void edge_link(struct prefix_index *index, struct prefix_run *edge)
{
    struct prefix_run **bucket = edge_bucket(index, edge->marks[0]);
    edge->bucket_next = *bucket;
    *bucket = edge;
}

static void edge_unlink(struct prefix_index *index, struct prefix_run *edge)
{
    struct prefix_run **link = edge_bucket(index, edge->marks[0]);
    while (*link != edge)
        link = &(*link)->bucket_next;
    *link = edge->bucket_next;
}

static void table_grow(struct prefix_index *index)
{
    struct prefix_run **old = index->buckets;
    uint32_t n_old = index->n_buckets;
    index->n_buckets *= 2;
    index->buckets = mem_alloc_array(index->n_buckets, sizeof(struct prefix_run *));
    for (uint32_t b = 0; b < n_old; b++) {
        for (struct prefix_run *edge = old[b], *next; edge; edge = next) {
            next = edge->bucket_next;
            edge_link(index, edge);
        }
    }
    free(old);
}

// Makes an edge. The caller fills in the marks and links it.
static struct prefix_run *edge_create(struct prefix_index *index, struct prefix_run *parent, int begin, int end)
{
    if (index->n_edges == index->n_buckets) table_grow(index);
    index->n_edges++;
    struct prefix_run *edge = mem_alloc(sizeof *edge);
    *edge = (struct prefix_run){.parent = parent, .begin = begin, .end = end};
    edge->marks = mem_alloc_array((size_t)edge_blocks(edge), sizeof *edge->marks);
    return edge;
}

static void edge_free(struct prefix_index *index, struct prefix_run *edge)
{
    edge_unlink(index, edge);
    index->n_edges--;
    free(edge->marks);
    free(edge->members);
    free(edge);
}

static struct prefix_run *edge_child(const struct prefix_index *index, const struct prefix_run *parent, uint64_t hash)
{
    uint32_t mark = (uint32_t)hash;
    struct prefix_run *edge = *edge_bucket(index, mark);
    while (edge && (edge->marks[0] != mark || edge->parent != parent))
        edge = edge->bucket_next;
    return edge;
}

// Returns the number of leading blocks of the edge that the chain has from edge->begin on.
static int edge_common(const struct prefix_run *edge, const uint64_t *chain, int n)
{
    int most = (n < edge->end ? n : edge->end) - edge->begin, common = 0;
    while (common < most && edge->marks[common] == (uint32_t)chain[edge->begin + common])
        common++;
    return common;
}

// --- members

static int member_place(const struct prefix_run *edge, const struct prefix_record *record)
{
    int low = 0, high = edge->n_members;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (edge->members[middle]->record->number < record->number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct member *member_find(const struct prefix_run *edge, const struct prefix_record *record)
{
    int at = member_place(edge, record);
    return at < edge->n_members && edge->members[at]->record == record ? edge->members[at] : NULL;
}

static struct member *member_add(struct prefix_run *edge, struct prefix_record *record)
{
    int at = member_place(edge, record);
    if (edge->n_members == edge->members_capacity) { // grows from one, because most edges have one member
        edge->members_capacity += edge->members_capacity + !edge->members_capacity;
        edge->members = mem_resize(edge->members, (size_t)edge->members_capacity, sizeof(struct member *));
    }
    memmove(edge->members + at + 1, edge->members + at, (size_t)(edge->n_members++ - at) * sizeof *edge->members);
    struct member *m = edge->members[at] = mem_alloc(sizeof *m);
    *m = (struct member){.record = record, .edge = edge};
    record->bytes += MEMBER_BYTES;
    return m;
}

static void list_remove(struct prefix_record *record, struct member *m)
{
    *(record->oldest == m ? &record->oldest : &m->older->younger) = m->younger;
    *(record->youngest == m ? &record->youngest : &m->younger->older) = m->older;
}

static void list_insert(struct member *m, struct member *older)
{
    struct prefix_record *record = m->record;
    m->older = older;
    m->younger = older ? older->younger : record->oldest;
    *(m->older ? &m->older->younger : &record->oldest) = m;
    *(m->younger ? &m->younger->older : &record->youngest) = m;
}

static void member_resize(struct member *m, int blocks)
{
    m->record->blocks += blocks - m->blocks;
    m->record->bytes += (int64_t)MARK_BYTES * (blocks - m->blocks);
    m->blocks = blocks;
}

// Shrinks the edge to its longest member after a member has lost blocks. An edge that gets shorter has no children: a
// member of a child edge requires a member with every block of this edge.
static void edge_shrink(struct prefix_index *index, struct prefix_run *edge)
{
    int longest = 0;
    for (int i = 0; i < edge->n_members && longest < edge_blocks(edge); i++)
        if (edge->members[i]->blocks > longest) longest = edge->members[i]->blocks;
    if (longest == 0) {
        edge_free(index, edge);
    } else if (longest < edge_blocks(edge)) {
        edge->end = edge->begin + longest;
        edge->marks = mem_resize(edge->marks, (size_t)longest, sizeof *edge->marks);
    }
}

// Removes the member from its edge. Removes the edge too if this was its last member.
static void member_remove(struct prefix_record *record, struct member *m)
{
    struct prefix_run *edge = m->edge;
    int at = member_place(edge, record);
    memmove(edge->members + at, edge->members + at + 1, (size_t)(--edge->n_members - at) * sizeof *edge->members);
    member_resize(m, 0);
    record->bytes -= MEMBER_BYTES;
    list_remove(record, m);
    edge_shrink(record->index, edge);
    free(m);
}

// --- room

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// Evicts blocks until the record is within its limits, or until requests hold every block that is left.
static void record_trim(struct prefix_record *record)
{
    for (struct member *m; (m = record->oldest);) {
        int64_t over_bytes = record->bytes - PREFIX_RECORD_BYTES;
        int64_t over = larger(record->blocks - record->capacity, (over_bytes + MARK_BYTES - 1) / MARK_BYTES);
        if (over <= 0) return;
        if (over >= m->blocks) {
            member_remove(record, m);
        } else {
            member_resize(m, m->blocks - (int)over);
            edge_shrink(record->index, m->edge);
        }
    }
}

// Returns the length in blocks of the longest run that would fit if every unheld block were evicted.
static int64_t record_room(const struct prefix_record *record)
{
    int64_t bytes = PREFIX_RECORD_BYTES - record->held_bytes - MEMBER_BYTES,
            blocks = record->capacity - record->held_blocks;
    return bytes / MARK_BYTES < blocks ? bytes / MARK_BYTES : blocks;
}

// --- splitting

// Splits a member whose edge is cut after `at` blocks. Returns false if the member has no block after the cut.
static bool member_split(struct member *m, struct prefix_run *upper, int at)
{
    if (m->blocks <= at) {
        m->edge = upper;
        upper->members[upper->n_members++] = m;
        return false;
    }
    struct member *front = upper->members[upper->n_members++] = mem_alloc(sizeof *front);
    *front = (struct member){.record = m->record, .edge = upper, .blocks = at, .holds = m->holds};
    m->blocks -= at;
    m->record->bytes += MEMBER_BYTES;
    if (m->holds) {
        m->record->held_bytes += MEMBER_BYTES;
    } else {
        list_insert(front, m);
    }
    return true;
}

// Cuts the edge after `at` of its blocks. Returns a new edge, which gets the first part. `edge` keeps the second part,
// so that children and holding requests still refer to it.
static struct prefix_run *edge_split(struct prefix_index *index, struct prefix_run *edge, int at)
{
    struct prefix_run *upper = edge_create(index, edge->parent, edge->begin, edge->begin + at);
    edge_unlink(index, edge);
    memcpy(upper->marks, edge->marks, (size_t)at * sizeof *edge->marks);
    memmove(edge->marks, edge->marks + at, (size_t)(edge_blocks(edge) - at) * sizeof *edge->marks);
    edge->parent = upper;
    edge->begin = upper->end;
    edge->marks = mem_resize(edge->marks, (size_t)edge_blocks(edge), sizeof *edge->marks);
    edge_link(index, edge);
    edge_link(index, upper);
    upper->members = mem_alloc_array((size_t)edge->n_members, sizeof *upper->members);
    upper->members_capacity = edge->n_members;
    upper->n_holding = edge->n_holding;
    int n = 0;
    for (int i = 0; i < edge->n_members; i++) {
        struct member *m = edge->members[i];
        if (member_split(m, upper, at)) edge->members[n++] = m;
    }
    edge->n_members = n;
    return upper;
}

// --- holding

static void member_hold(struct member *m)
{
    struct prefix_record *record = m->record;
    if (m->holds++) return;
    if (m->blocks) list_remove(m->record, m); // the member was in the list of members that no request holds
    member_resize(m, edge_blocks(m->edge));
    m->edge->n_holding++;
    record->held_blocks += m->blocks;
    record->held_bytes += MEMBER_BYTES + (int64_t)MARK_BYTES * m->blocks;
}

static void member_release(struct member *m)
{
    struct prefix_record *record = m->record;
    if (--m->holds) return;
    m->edge->n_holding--;
    record->held_blocks -= m->blocks;
    record->held_bytes -= MEMBER_BYTES + (int64_t)MARK_BYTES * m->blocks;
    list_insert(m, record->youngest);
}

static struct prefix_run *edge_grow(struct prefix_index *index, struct prefix_run *parent, const uint64_t *chain,
                                    int begin, int end)
{
    struct prefix_run *edge = edge_create(index, parent, begin, end);
    for (int i = begin; i < end; i++)
        edge->marks[i - begin] = (uint32_t)chain[i];
    edge_link(index, edge);
    return edge;
}

// Holds the next edge of the chain after `run`. Creates the edge if there is none. Cuts the edge where the chain
// diverges from it, or where the room ends. Returns NULL if there is no room.
static struct prefix_run *hold_next(struct prefix_record *record, struct prefix_run *run, const uint64_t *chain, int n)
{
    struct prefix_index *index = record->index;
    int begin = run ? run->end : 0;
    struct prefix_run *edge = edge_child(index, run, chain[begin]);
    const struct member *m = edge ? member_find(edge, record) : NULL;
    int64_t blocks = edge ? edge_common(edge, chain, n) : n - begin;
    if ((!m || !m->holds) && blocks > record_room(record)) blocks = record_room(record);
    if (blocks <= 0) return NULL;
    bool split = edge && blocks < edge_blocks(edge);
    if (!edge) edge = edge_grow(index, run, chain, begin, begin + (int)blocks);
    if (split) edge = edge_split(index, edge, (int)blocks);
    struct member *mine = member_find(edge, record);
    member_hold(mine ? mine : member_add(edge, record));
    // A split needs memory in all records of the edge. Each record can evict only its own member, so the loop runs
    // downwards.
    for (int i = edge->n_members - 1; split && i >= 0; i--)
        record_trim(edge->members[i]->record);
    record_trim(record);
    return edge;
}

const struct prefix_run *prefix_record_hold(struct prefix_record *record, const uint64_t *chain, int n)
{
    struct prefix_run *run = NULL, *next;
    if (n > PREFIX_BLOCKS_MAX) n = PREFIX_BLOCKS_MAX;
    while ((run ? run->end : 0) < n && (next = hold_next(record, run, chain, n)))
        run = next;
    return run;
}

void prefix_record_release(struct prefix_record *record, const struct prefix_run *run)
{
    for (; run; run = run->parent) { // from the end, which is evicted first
        struct member *m = member_find(run, record);
        INVARIANT(m && m->holds, "blocks %d to %d are released without a hold", run->begin, run->end);
        member_release(m);
    }
}

int prefix_record_held_alone(const struct prefix_record *record, const struct prefix_run *run)
{
    int blocks = 0;
    for (; run; run = run->parent) {
        const struct member *m = member_find(run, record);
        if (m->holds > 1) break; // whoever holds an edge holds its parents
        blocks += m->blocks;
    }
    return blocks;
}

int prefix_run_blocks(const struct prefix_run *run)
{
    return run ? run->end : 0;
}

// --- records

struct prefix_record *prefix_record_open(struct prefix_index *index, struct sched_node *node, int blocks)
{
    struct prefix_record *record = mem_alloc(sizeof *record);
    *record = (struct prefix_record){.index = index, .node = node, .number = ++index->last_record, .capacity = blocks};
    return record;
}

void prefix_record_close(struct prefix_record *record)
{
    if (!record) return;
    INVARIANT(record->held_blocks == 0, "%lld blocks are still held", (long long)record->held_blocks);
    while (record->oldest)
        member_remove(record, record->oldest);
    free(record);
}

// Returns the number of leading blocks of the chain that the record has. If `held` is true, only blocks that requests
// hold count.
static int record_match(const struct prefix_record *record, const uint64_t *chain, int n, bool held)
{
    const struct prefix_run *edge = NULL;
    int at = 0;
    while (at < n && (edge = edge_child(record->index, edge, chain[at]))) {
        const struct member *m = member_find(edge, record);
        if (!m || (held && !m->holds)) break;
        int common = edge_common(edge, chain, n);
        at += common < m->blocks ? common : m->blocks;
        if (at < edge->end) break;
    }
    return at;
}

int prefix_record_match(const struct prefix_record *record, const uint64_t *chain, int n)
{
    return record_match(record, chain, n, false);
}

int prefix_record_held(const struct prefix_record *record, const uint64_t *chain, int n)
{
    return record_match(record, chain, n, true);
}

int64_t prefix_record_blocks_held(const struct prefix_record *record)
{
    return record->held_blocks;
}

// --- all nodes

// Returns the last edge that shares blocks with the chain. *blocks_p is the total number of shared leading blocks. If
// `held` is true, only edges that requests hold count.
static const struct prefix_run *index_walk(const struct prefix_index *index, const uint64_t *chain, int n, bool held,
                                           int *blocks_p)
{
    const struct prefix_run *last = NULL, *edge;
    int at = 0;
    while (at < n && (edge = edge_child(index, last, chain[at])) && (!held || edge->n_holding)) {
        last = edge;
        at += edge_common(edge, chain, n);
        if (at < edge->end) break;
    }
    *blocks_p = at;
    return last;
}

static bool hits_have(const struct prefix_hit *hits, int n, const struct sched_node *node)
{
    while (n && hits[n - 1].node != node)
        n--;
    return n;
}

// Inserts a hit after all hits with as many blocks. Adds nothing to a full array.
static void hits_add(struct prefix_hit *hits, int *n_p, int max, struct prefix_hit hit)
{
    if (*n_p == max) return;
    int at = (*n_p)++;
    for (; at && hits[at - 1].blocks < hit.blocks; at--)
        hits[at] = hits[at - 1];
    hits[at] = hit;
}

int prefix_index_lookup(const struct prefix_index *index, const uint64_t *chain, int n, struct prefix_hit *hits,
                        int max)
{
    int blocks, n_hits = 0;
    for (const struct prefix_run *edge = index_walk(index, chain, n, false, &blocks); edge; edge = edge->parent) {
        for (int i = 0; i < edge->n_members && n_hits < max; i++) {
            const struct member *m = edge->members[i];
            int there = edge->begin + m->blocks;
            if (hits_have(hits, n_hits, m->record->node)) continue;
            hits_add(hits, &n_hits, max, (struct prefix_hit){m->record->node, there < blocks ? there : blocks});
        }
    }
    return n_hits;
}

int prefix_index_most(const struct prefix_index *index, const uint64_t *chain, int n)
{
    int blocks;
    index_walk(index, chain, n, false, &blocks);
    return blocks;
}

int prefix_index_held(const struct prefix_index *index, const uint64_t *chain, int n)
{
    int blocks;
    index_walk(index, chain, n, true, &blocks);
    return blocks;
}
