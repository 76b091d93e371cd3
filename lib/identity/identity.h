// SPDX-License-Identifier: Apache-2.0
// Identifies callers by the API keys of a file (key_file.h), which is read again when it changes, and applies the
// limits of each key (limits.h). Knows nothing of protocols.
//
// Any thread. Nothing here blocks, except that the thread that notices a changed file reads it. No key is ever logged
// or part of a sentence.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/identity/limits.h"

struct identity;
struct principal; // a key and the use of its limits; reference-counted, also after the key is removed

// INVALID or NOT_FOUND when the file cannot be used.
enum status identity_open(const char *path, struct identity **identity_p);
void identity_close(struct identity *identity); // principals may live on; NULL is allowed

// Reads the file now if it has changed; NULL is allowed.
void identity_reload(struct identity *identity);

// The principal of "Bearer KEY", the value of an authorization header, or of the key alone, with a reference for the
// caller. NULL: not sent. UNAUTHENTICATED. When the file has changed (checked at most once a second) it is read first;
// a file with an error is logged once, and the keys read before stay in use.
enum status identity_authenticate(struct identity *identity, const char *authorization, struct principal **principal_p);
enum status identity_authenticate_key(struct identity *identity, const char *key, struct principal **principal_p);

struct principal *principal_ref(struct principal *p); // returns it; NULL is allowed, as for the next one
void principal_unref(struct principal *p);
const char *principal_key_id(const struct principal *p); // valid while the principal is referenced
const char *principal_tenant(const struct principal *p);
bool principal_is_operator(struct principal *p);

// For an operator's call that lasts: UNAUTHENTICATED if the key has expired or was revoked meanwhile, DENIED if it is
// no operator's any more.
enum status principal_check_operator(struct principal *p);

// DENIED if a request names another tenant than the key's (empty: it names none) or a higher priority than the key may.
enum status principal_check(struct principal *p, const char *tenant, int32_t priority);

// A request starts. UNAUTHENTICATED if the key has expired or was revoked after the call was authenticated, which may
// be long ago. KEY_LIMIT: a limit is used up; *retry_us_p is the time after which it is not, 0: unknown.
enum status identity_admit(struct principal *p, int64_t *retry_us_p);
// The same for a call without a model's work, such as tokenising: it counts as a request only, and needs no release.
enum status identity_admit_call(struct principal *p, int64_t *retry_us_p);
// Once a message that was admitted as one request is read: reserves for all its requests, see limits_reserve().
// KEY_LIMIT or DENIED.
enum status identity_reserve(struct principal *p, const struct limits_need *need, int64_t *retry_us_p);
// Called once for each admitted request, see limits_end().
void identity_end(struct principal *p, double reserved, double tokens);

// The salt of a tenant's prefix caches, the same in every process; never 0, which stands for no salt. It is no secret:
// the names of tenants are in the key file.
uint64_t identity_prefix_salt(const char *tenant);
