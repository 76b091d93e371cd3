// SPDX-License-Identifier: Apache-2.0
// The secret that nodes present when they attach. The file is read again when it changes. If the
// changed file cannot be used, an error is logged and the last secret stays in use. Only the SHA-256 of the secret is
// kept, and it is compared in constant time.
#pragma once

#include "lib/base/hash.h"
#include "lib/base/status.h"

struct cluster_token;

enum status cluster_token_open(const char *path, struct cluster_token **token_p);
void cluster_token_free(struct cluster_token *token); // NULL is allowed
// Reads the file now if it has changed, or if it could not be used, instead of at the next check. On failure the last
// token stays in use. Any thread; NULL is allowed.
enum status cluster_token_reload(struct cluster_token *token);
// Checks the value of the header `authorization` (NULL: not sent). Returns UNAUTHENTICATED unless it is "Bearer
// SECRET". Any thread may call.
enum status cluster_token_check(struct cluster_token *token, const char *authorization);
// Returns a key that all routers with the same token have. Any thread; NULL gives the key of routers without a token.
struct hash_key cluster_token_key(struct cluster_token *token);
