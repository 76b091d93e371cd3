// SPDX-License-Identifier: Apache-2.0
// Keeps the use of daily quotas in a folder, so that a restart does not reset them. A thread writes the file at most
// once a second while quotas change. One process uses a folder.
#pragma once

#include "lib/base/status.h"
#include "lib/identity/identity.h"

struct quota_keeper;

// Creates the folder if needed, reads its file into `identity` and starts the thread. Borrows `identity`. Returns
// INVALID, with the folder or file in the message, if another process uses the folder, or if it or its file cannot be
// used.
enum status quota_keeper_open(const char *folder, struct identity *identity, struct quota_keeper **keeper_p);
// Checks the file of the folder, if there is one, and changes nothing. Another process may use the folder.
enum status quota_keeper_check(const char *folder);
// Writes the file a last time. NULL is allowed. Close it before the identity.
void quota_keeper_close(struct quota_keeper *keeper);
