// SPDX-License-Identifier: Apache-2.0
// Ids of files and batches: a prefix and 32 random hexadecimal digits. Ids are names of files in the folder, so an id
// of a client is checked before it is part of a path.
#pragma once

#include <stdbool.h>

#define FILE_ID_PREFIX  "file-"
#define BATCH_ID_PREFIX "batch_"
enum { BATCH_ID_DIGITS = 32, BATCH_ID_ROOM = 48 };

void batch_id_make(const char *prefix, char id[BATCH_ID_ROOM]);
bool batch_id_valid(const char *prefix, const char *id);
