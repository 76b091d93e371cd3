// SPDX-License-Identifier: Apache-2.0
// A batch: its members as the API shows them, and its record batches/ID.json. The record is replaced in one step at
// each change of the state.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "router/batch/batch_line.h"
#include "router/batch/batch_usage.h"

enum { BATCH_ERRORS_MAX = 100, BATCH_METADATA_MAX = 16, BATCH_WINDOW_S = 24 * 3600 };

enum batch_state {
    BATCH_VALIDATING,
    BATCH_FAILED,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_COMPLETED,
    BATCH_EXPIRED,
    BATCH_CANCELLING,
    BATCH_CANCELLED,
    BATCH_STATES
};
const char *batch_state_name(enum batch_state state);

struct batch {
    char id[BATCH_ID_ROOM], input_id[BATCH_ID_ROOM];
    char result_ids[2][BATCH_ID_ROOM]; // ids of the output and error file, by enum batch_result
    bool has_result[2];                // the file will exist, and exists once the batch is final
    bool sealed;                       // the results are complete, and become files
    struct batch_usage usage;          // of all answers, once the batch is sealed
    char *tenant, *key_id;             // key_id "": no API keys were used
    char *endpoint;
    json_t *metadata;                // NULL: none
    int64_t result_expires_s;        // the results expire this long after their creation; 0: never
    int64_t created_us;              // Unix time
    int64_t expires_s;               // Unix time, as the next member
    int64_t reached_s[BATCH_STATES]; // when the batch reached the state; 0: not yet
    enum batch_state state;
    enum batch_state ending; // the final state that the batch goes to
    int total, completed, failed;
    struct batch_error *errors; // [n_errors]
    int n_errors;
};

void batch_free(struct batch *b); // NULL is allowed
bool batch_is_final(const struct batch *b);
// Changes the state and notes the time. The only writer of the state.
void batch_set_state(struct batch *b, enum batch_state state);
// Adds an error, unless there are BATCH_ERRORS_MAX already.
void batch_add_error(struct batch *b, const struct batch_error *error);

// Returns the object that the API shows; the caller owns it.
json_t *batch_to_json(const struct batch *b);
enum status batch_save(const struct batch *b, const char *path);
enum status batch_load(const char *path, struct batch **b_p);
