// SPDX-License-Identifier: Apache-2.0
// Finds the id of the eos_token of tokenizer_config.json. The router has a tokenizer, but worker groups do not.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

// Sets *id_p to the id that the files of folder `dir` give to this token, or to -1 if a file or the token is absent.
// Returns STATUS_DATA, with the file, if a file is broken.
enum status tokenizer_eos_find(const char *dir, int64_t *id_p);
