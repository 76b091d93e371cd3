// SPDX-License-Identifier: Apache-2.0
// The input of `forepack batch`: any text as JSON Lines. An accepted row becomes a message that a router can unpack.
#include "cli/request_rows.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

static void check_row(const struct request_spec *spec)
{
    struct rpc_bytes bytes = request_spec_pack(spec);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    FUZZ_CHECK(m && (m->n_token_ids > 0) + (m->n_messages > 0) + (spec->text != NULL) == 1);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[128];
    struct request_spec defaults = {0};
    struct request_row *rows;
    int n;
    if (!*path) {
        snprintf(path, sizeof path, "%s/rows", fuzz_folder());
        stderr = fopen("/dev/null", "w"); // hides warnings of unknown keys
    }
    sampling_defaults(&defaults.sampling);
    prefill_defaults(&defaults.prefill);
    fuzz_folder_put("rows", data, size);
    if (request_rows_read(path, &defaults, &rows, &n) != STATUS_OK) {
        FUZZ_CHECK(*status_message());
        return 0;
    }
    FUZZ_CHECK(n >= 1);
    for (int i = 0; i < n; i++)
        check_row(&rows[i].spec);
    request_rows_free(rows, n);
    return 0;
}
