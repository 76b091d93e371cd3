// SPDX-License-Identifier: Apache-2.0
// A folder for targets whose subject reads files: in memory if the system has /dev/shm, removed when the process ends.
// A process has one folder.
#pragma once

#include <stddef.h>
#include <stdint.h>

const char *fuzz_folder(void);
void fuzz_folder_make(const char *name);                                // makes a folder in it, which may exist
void fuzz_folder_put(const char *name, const uint8_t *bytes, size_t n); // creates or replaces a file
void fuzz_folder_drop(const char *name);                                // the file need not exist
