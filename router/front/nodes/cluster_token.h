// SPDX-License-Identifier: Apache-2.0
// The secret that nodes present when they attach. The file is read again when it changes; a file that cannot be used is
// logged, and the last secret stays. Only the SHA-256 of the secret is kept, and compared in constant time.
#pragma once

#include "lib/base/status.h"

struct cluster_token;

enum status cluster_token_open(const char *path, struct cluster_token **token_p);
void cluster_token_free(struct cluster_token *token); // NULL is allowed
// Looks at the file now and logs whether it has changed, which happens at each check otherwise. Any thread; NULL is
// allowed.
void cluster_token_reload(struct cluster_token *token);
// `authorization` is the value of that header, NULL: not sent. UNAUTHENTICATED unless it is "Bearer SECRET". Any
// thread.
enum status cluster_token_check(struct cluster_token *token, const char *authorization);
