// SPDX-License-Identifier: Apache-2.0
// identity/key_file: any bytes as a file of API keys. An accepted file is written and read again, with the same keys.
#include <string.h>

#include "lib/base/mem.h"
#include "lib/identity/key_text.h"
#include "tests/fuzz/fuzz.h"

// Returns the file with one line for each key. The caller frees it.
static char *format(const struct key_file *file)
{
    char *text = mem_string("");
    for (int i = 0; i < file->n; i++) {
        char *line = api_key_format(&file->keys[i]), *longer = mem_format("%s%s\n", text, line);
        free(line);
        free(text);
        text = longer;
    }
    return text;
}

static bool same_key(const struct api_key *a, const struct api_key *b)
{
    return strcmp(a->id, b->id) == 0 && strcmp(a->tenant, b->tenant) == 0 &&
           memcmp(a->hash, b->hash, sizeof a->hash) == 0 && memcmp(&a->limits, &b->limits, sizeof a->limits) == 0 &&
           a->priority == b->priority && a->expires_s == b->expires_s && a->is_operator == b->is_operator &&
           a->revoked == b->revoked && a->rules.prune.kind == b->rules.prune.kind &&
           a->rules.prune.bound == b->rules.prune.bound && a->rules.drafts == b->rules.drafts;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct key_file file, again;
    if (key_file_parse((const char *)data, size, &file) != STATUS_OK) {
        FUZZ_CHECK(*status_message());
        return 0;
    }
    char *text = format(&file);
    FUZZ_CHECK(key_file_parse(text, strlen(text), &again) == STATUS_OK && again.n == file.n);
    for (int i = 0; i < file.n; i++)
        FUZZ_CHECK(same_key(&file.keys[i], &again.keys[i]));
    free(text);
    key_file_fini(&file);
    key_file_fini(&again);
    return 0;
}
