// SPDX-License-Identifier: Apache-2.0
// Identifies callers by the API keys of a file (key_file.h) and applies the limits of each key (limits.h). Reads the
// file again when it changes. Does not depend on a protocol.
//
// Any thread may call. Calls do not block, except that the thread that notices a changed file reads it. No log line and
// no error message contains a key.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/identity/limits.h"
#include "lib/identity/quota_file.h"

struct identity;
struct principal; // a key and the use of its limits; reference-counted, so it can outlive the removal of its key

// Returns INVALID or NOT_FOUND if the file cannot be used.
enum status identity_open(const char *path, struct identity **identity_p);
void identity_close(struct identity *identity); // principals may live on; NULL is allowed

// Reads the file now if it has changed, or if it could not be used. Returns immediately if another thread reads it. On
// failure the old keys stay in use. NULL is allowed.
enum status identity_reload(struct identity *identity);

// Find the principal of a key, with a reference for the caller. identity_authenticate() takes the value of an
// authorization header, "Bearer KEY", and identity_authenticate_key() takes KEY. NULL means that the client sent no
// key. Return UNAUTHENTICATED for a missing or wrong key. At most once a second, one call checks the
// file and reads a changed file before it looks up its key; calls at the same time use the old keys. A file with an
// error is logged once, and the old keys stay in use.
enum status identity_authenticate(struct identity *identity, const char *authorization, struct principal **principal_p);
enum status identity_authenticate_key(struct identity *identity, const char *key, struct principal **principal_p);

// Finds the principal of the key with this id and tenant, for work that outlives the client's connection. Returns
// UNAUTHENTICATED if the file no longer has the key.
enum status identity_find(struct identity *identity, const char *key_id, const char *tenant,
                          struct principal **principal_p);

struct principal *principal_ref(struct principal *p); // returns `p`; NULL is allowed here and in the next function
void principal_unref(struct principal *p);
const char *principal_key_id(const struct principal *p); // valid while the principal is referenced
const char *principal_tenant(const struct principal *p);
bool principal_is_operator(struct principal *p);
struct client_rules principal_rules(struct principal *p); // as the file has them now

// Checks the key again during a long call of an operator. Returns UNAUTHENTICATED if the key has expired or was revoked
// meanwhile, DENIED if it is no longer an operator's key.
enum status principal_check_operator(struct principal *p);

// Returns DENIED if a request names a tenant that is not the key's (an empty name is allowed), or a priority above the
// key's limit.
enum status principal_check(struct principal *p, const char *tenant, int32_t priority);

// Admits a request. UNAUTHENTICATED: the key has expired or was revoked after the call was authenticated, which may be
// long ago. KEY_LIMIT: a limit is used up; *retry_us_p is the time until a request may start again, or 0 if unknown.
enum status identity_admit(struct principal *p, int64_t *retry_us_p);
// Admits a call that runs no model, such as tokenising. The call counts as a request, but identity_end() is not called
// for it.
enum status identity_admit_call(struct principal *p, int64_t *retry_us_p);
// Call it after reading a message that identity_admit() admitted as one request: admits its other requests, charges the
// tokens of all prompts and reserves the tokens of all answers. See limits_reserve(). Returns KEY_LIMIT or DENIED.
enum status identity_reserve(struct principal *p, const struct limits_need *need, int64_t *retry_us_p);
// Ends an admitted request. Call it once for each. See limits_end().
void identity_end(struct principal *p, double reserved, double tokens);

// Copy the use of daily quotas (tokens_per_day) to and from a list, for quota_keeper.h. identity_set_quotas() ignores
// keys that the file no longer has; the list was made `age_ms` ago.
void identity_get_quotas(struct identity *identity, struct quota_list *list);
void identity_set_quotas(struct identity *identity, const struct quota_list *list, int64_t age_ms);
// Returns a number that grows whenever the use of a daily quota changes, in any identity of the process.
uint64_t identity_count_charges(void);

// Returns the salt of prefix caches for a tenant and the client's own salt ("": none), the same in every process. Never
// 0, because a salt of 0 means no salt. Whoever knows both strings can compute it.
uint64_t identity_prefix_salt(const char *tenant, const char *cache_salt);
