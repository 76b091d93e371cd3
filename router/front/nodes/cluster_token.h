// SPDX-License-Identifier: Apache-2.0
// The secret that nodes present when they attach. The file is read again when it changes. If the changed file cannot be
// used, an error is logged and the last secret stays in use. Only the SHA-256 of the secret, which is compared in
// constant time, and a key made from the secret are kept.
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
// Returns a secret key that all routers with the same token have. NULL: returns the key of routers without a token,
// which is not secret. Any thread may call.
struct hash_key cluster_token_key(struct cluster_token *token);
