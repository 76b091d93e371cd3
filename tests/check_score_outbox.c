// SPDX-License-Identifier: Apache-2.0
// speculator/messages: the memory that an outbox counts is at least the memory that the router needs for its results.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/messages/unpack.h"
#include "speculator/messages.h"
#include "tests/suite.h"

enum { MEMORY_MAX = 256 << 20 };

// Returns the memory of the results at the router.
static size_t unpacked_memory(const struct score_outbox *outbox)
{
    Forepack__Cluster__V1__ScoreResults results;
    score_outbox_message(outbox, &results);
    size_t size = forepack__cluster__v1__score_results__get_packed_size(&results), memory = 0;
    uint8_t *bytes = mem_alloc(size);
    forepack__cluster__v1__score_results__pack(&results, bytes);
    Forepack__Cluster__V1__ScoreResults *unpacked =
        proto_unpack(&forepack__cluster__v1__score_results__descriptor, bytes, size, MEMORY_MAX, &memory);
    free(bytes);
    ck_assert_msg(unpacked != NULL, "%s", status_message());
    forepack__cluster__v1__score_results__free_unpacked(unpacked, NULL);
    ck_assert_uint_le(size, outbox->memory);
    return memory;
}

static void add(struct score_outbox *outbox, int n_kept, bool with_importance)
{
    static const int32_t look_ahead[LOOK_AHEAD_MAX];
    int n = 2 * n_kept + 1;
    struct token_range *kept = mem_alloc_array((size_t)n_kept, sizeof *kept);
    float *importance = mem_alloc_array((size_t)n, sizeof *importance);
    for (int i = 0; i < n_kept; i++)
        kept[i].first = kept[i].last = 2 * i;
    score_outbox_add(outbox, &(struct score_result){.request = 7,
                                                    .kept = kept,
                                                    .n_kept = n_kept,
                                                    .importance = with_importance ? importance : NULL,
                                                    .n = n,
                                                    .steps = 1,
                                                    .look_ahead = look_ahead,
                                                    .n_look_ahead = LOOK_AHEAD_MAX,
                                                    .cached_tokens = 1,
                                                    .score_us = 1,
                                                    .keep_rate = 0.5,
                                                    .reason = RATE_UNSURE});
    free(importance);
    free(kept);
}

// protobuf-c uses the most memory per field just above 16 * (2^k - 1) fields.
static const int range_counts[] = {0, 1, 4, 9, 17, 41, 113, 1009, 65521};

START_TEST(an_outbox_counts_what_the_router_needs)
{
    struct score_outbox outbox = {0};
    for (int i = 0; i < 20; i++) {
        add(&outbox, range_counts[_i], i % 2);
        size_t memory = unpacked_memory(&outbox);
        ck_assert_msg(memory <= outbox.memory, "%d results take %zu bytes, %zu are counted", i + 1, memory,
                      outbox.memory);
        if (range_counts[_i] > 2000) break;
    }
    score_outbox_clear(&outbox);
    ck_assert_uint_eq(outbox.memory, 0);
}
END_TEST

START_TEST(the_sentence_of_an_error_counts)
{
    enum { LONG = 10000 };
    char error[LONG + 1];
    struct score_outbox outbox = {0};
    memset(error, 'x', LONG);
    error[LONG] = 0;
    score_outbox_add(&outbox, &(struct score_result){.request = 7, .error = error});
    ck_assert_uint_le(unpacked_memory(&outbox), outbox.memory);
    score_outbox_clear(&outbox);
}
END_TEST

SUITE("score_outbox")
{
    TIMEOUT(60);
    EACH(an_outbox_counts_what_the_router_needs, range_counts);
    TEST(the_sentence_of_an_error_counts);
}
