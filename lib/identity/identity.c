// SPDX-License-Identifier: Apache-2.0
// See identity.h. A ring holds the keys of the file as last read: a table of principals by the hash of their key. When
// the file is read again, a principal with the same id and tenant moves to the new ring and keeps the use of its
// limits.
#include "lib/identity/identity.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/priority.h"
#include "lib/base/secret_file.h"
#include "lib/identity/key_changes.h"
#include "lib/identity/key_file.h"
#include "lib/identity/limits.h"

#define RELOAD_US 1000000

struct principal {
    atomic_int refs;
    // Guards the members below. The id and tenant of the key are constant, and its hash belongs to the ring.
    pthread_mutex_t mutex;
    struct api_key key; // as read last; marked revoked once the file no longer has it
    struct limits_use use;
};

struct ring {
    // [n_slots] by the first bytes of the hash. n_slots is a power of two, and over half of the slots are NULL
    struct principal **slots;
    size_t n_slots;
};

struct identity {
    char *path;
    pthread_mutex_t mutex; // guards the members below, and the hashes of all principals
    struct ring ring;
    bool reading;            // a thread is checking the file
    int64_t looked_us;       // time of the last check
    struct file_stamp stamp; // version of the file that was read last, usable or not
    bool refused;            // that version cannot be used
};

static atomic_ullong charges; // see identity_count_charges()

// --- principals

static struct principal *principal_create(const struct api_key *key)
{
    struct principal *p = mem_alloc(sizeof *p);
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->mutex, NULL);
    p->key = *key;
    return p;
}

struct principal *principal_ref(struct principal *p)
{
    // Relaxed is enough: the caller already has a reference.
    if (p) atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void principal_unref(struct principal *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

const char *principal_key_id(const struct principal *p)
{
    return p->key.id;
}

const char *principal_tenant(const struct principal *p)
{
    return p->key.tenant;
}

static void principal_update(struct principal *p, const struct api_key *key)
{
    pthread_mutex_lock(&p->mutex);
    memcpy(p->key.hash, key->hash, sizeof key->hash);
    p->key.limits = key->limits;
    p->key.rules = key->rules;
    p->key.priority = key->priority;
    p->key.expires_s = key->expires_s;
    p->key.is_operator = key->is_operator;
    p->key.revoked = key->revoked;
    pthread_mutex_unlock(&p->mutex);
}

static struct api_key principal_key(struct principal *p)
{
    pthread_mutex_lock(&p->mutex);
    struct api_key key = p->key;
    pthread_mutex_unlock(&p->mutex);
    return key;
}

bool principal_is_operator(struct principal *p)
{
    return principal_key(p).is_operator;
}

struct client_rules principal_rules(struct principal *p)
{
    return principal_key(p).rules;
}

static enum status check_valid(const struct api_key *key)
{
    if (key->revoked)
        return status_fail(STATUS_UNAUTHENTICATED, "the API key %s was revoked: ask for a new one", key->id);
    if (!key->expires_s || time(NULL) < key->expires_s) return STATUS_OK;
    char when[24];
    key_time_format(key->expires_s, when);
    return status_fail(STATUS_UNAUTHENTICATED, "the API key %s expired at %s: ask for a new one", key->id, when);
}

enum status principal_check_operator(struct principal *p)
{
    const struct api_key key = principal_key(p);
    TRY(check_valid(&key));
    return key.is_operator ? STATUS_OK : status_fail(STATUS_DENIED, "the API key %s is not an operator's", key.id);
}

enum status principal_check(struct principal *p, const char *tenant, int32_t priority)
{
    const struct api_key key = principal_key(p);
    if (*tenant && strcmp(tenant, key.tenant) != 0)
        return status_fail(STATUS_DENIED, "tenant: the API key %s is of tenant %s: leave the tenant empty or name it",
                           key.id, key.tenant);
    if (priority_clamp(priority) <= priority_clamp(key.priority)) return STATUS_OK;
    return status_fail(STATUS_DENIED, "priority %d: requests with the API key %s may have at most %lld", (int)priority,
                       key.id, (long long)key.priority);
}

typedef enum status start_fn(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                             int64_t *retry_us_p);

static enum status start(struct principal *p, start_fn *limits, int64_t *retry_us_p)
{
    *retry_us_p = 0;
    pthread_mutex_lock(&p->mutex);
    enum status status = check_valid(&p->key);
    if (status == STATUS_OK) status = limits(&p->use, &p->key.limits, clock_now_us(), retry_us_p);
    pthread_mutex_unlock(&p->mutex);
    return status;
}

enum status identity_admit(struct principal *p, int64_t *retry_us_p)
{
    return start(p, limits_start, retry_us_p);
}

enum status identity_admit_call(struct principal *p, int64_t *retry_us_p)
{
    return start(p, limits_count_call, retry_us_p);
}

enum status identity_reserve(struct principal *p, const struct limits_need *need, int64_t *retry_us_p)
{
    pthread_mutex_lock(&p->mutex);
    enum status status = limits_reserve(&p->use, &p->key.limits, need, clock_now_us(), retry_us_p);
    if (p->key.limits.tokens_per_day) charges++;
    pthread_mutex_unlock(&p->mutex);
    return status;
}

void identity_end(struct principal *p, double reserved, double tokens)
{
    pthread_mutex_lock(&p->mutex);
    limits_end(&p->use, &p->key.limits, reserved, tokens, clock_now_us());
    if (p->key.limits.tokens_per_day) charges++;
    pthread_mutex_unlock(&p->mutex);
}

uint64_t identity_prefix_salt(const char *tenant, const char *cache_salt)
{
    unsigned char hash[SHA256_DIGEST_LENGTH];
    uint64_t salt;
    char *both = mem_format("%s%c%s", tenant, '\0', cache_salt); // the zero byte ends the tenant's name
    SHA256((const unsigned char *)both, strlen(tenant) + 1 + strlen(cache_salt), hash);
    free(both);
    memcpy(&salt, hash, sizeof salt);
    return salt ? salt : 1;
}

// --- rings

// Returns the slot of a hash. Keys are random, so any bytes of their hash are uniform.
static struct principal **ring_slot(const struct ring *ring, const uint8_t *hash)
{
    uint64_t at;
    memcpy(&at, hash, sizeof at);
    for (at &= ring->n_slots - 1;; at = (at + 1) & (ring->n_slots - 1)) {
        struct principal **slot = &ring->slots[at];
        if (!*slot || CRYPTO_memcmp((*slot)->key.hash, hash, KEY_HASH_BYTES) == 0) return slot;
    }
}

static int by_name(const void *a, const void *b)
{
    const struct api_key *x = &(*(struct principal *const *)a)->key, *y = &(*(struct principal *const *)b)->key;
    int order = strcmp(x->id, y->id);
    return order ? order : strcmp(x->tenant, y->tenant);
}

// Returns the principals of the ring [*n_p], sorted by id and tenant. The caller frees the list.
static struct principal **ring_list(const struct ring *ring, size_t *n_p)
{
    struct principal **list = mem_alloc_array(ring->n_slots + 1, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; i < ring->n_slots; i++)
        if (ring->slots[i]) list[n++] = ring->slots[i];
    qsort(list, n, sizeof *list, by_name);
    *n_p = n;
    return list;
}

static void ring_fini(struct ring *ring)
{
    for (size_t i = 0; i < ring->n_slots; i++)
        principal_unref(ring->slots[i]);
    free(ring->slots);
}

// Returns the principal that had this id and tenant before, or a new one, with a reference for the ring.
static struct principal *principal_of(struct principal **before, size_t n, const struct api_key *key)
{
    struct principal named = {.key = *key}, *name = &named;
    struct principal **found = bsearch(&name, before, n, sizeof *before, by_name);
    if (!found) return principal_create(key);
    principal_ref(*found);
    return *found;
}

// Revokes keys that are no longer in the file: calls that still run with them may start no further requests.
static void revoke_missing(struct principal **before, size_t n, const struct ring *now)
{
    for (size_t i = 0; i < n; i++) {
        struct api_key gone = before[i]->key;
        gone.revoked = true;
        if (*ring_slot(now, gone.hash) != before[i]) principal_update(before[i], &gone);
    }
}

static void ring_build(const struct key_file *file, const struct ring *before, struct ring *ring)
{
    size_t n_before;
    struct principal **list = ring_list(before, &n_before);
    *ring = (struct ring){.n_slots = 2};
    while (ring->n_slots < 2 * (size_t)file->n + 1)
        ring->n_slots *= 2;
    ring->slots = mem_alloc_array(ring->n_slots, sizeof(struct principal *));
    struct principal **now = mem_alloc_array((size_t)file->n + 1, sizeof *now);
    for (int i = 0; i < file->n; i++) { // update all hashes before looking up any
        now[i] = principal_of(list, n_before, &file->keys[i]);
        principal_update(now[i], &file->keys[i]);
    }
    for (int i = 0; i < file->n; i++)
        *ring_slot(ring, now[i]->key.hash) = now[i];
    revoke_missing(list, n_before, ring);
    free(now);
    free(list);
}

// --- the file

static enum status file_read(const char *path, struct key_file *file_p)
{
    bool exposed;
    TRY(key_file_read(path, file_p, &exposed));
    log_event(LOG_INFO, "api_keys_read", LOG_FIELD("file", path), LOG_FIELD("keys", file_p->n));
    if (exposed)
        log_event(LOG_WARN, "api_keys_exposed", LOG_FIELD("file", path),
                  LOG_FIELD("reason", "users other than its owner can read it: chmod go-r it"));
    return STATUS_OK;
}

// Called with the identity's mutex held.
static void ring_replace(struct identity *identity, const struct key_file *file)
{
    struct ring before = identity->ring;
    ring_build(file, &before, &identity->ring);
    ring_fini(&before);
}

// Logs changes of keys. Only the thread that checks the file changes the ring, so this thread may read the ring without
// the mutex.
static void log_changes(const struct identity *identity, const struct key_file *file)
{
    size_t n = 0;
    const struct api_key **before = mem_alloc_array(identity->ring.n_slots + 1, sizeof *before);
    const struct api_key **after = mem_alloc_array((size_t)file->n + 1, sizeof *after);
    for (size_t i = 0; i < identity->ring.n_slots; i++)
        if (identity->ring.slots[i]) before[n++] = &identity->ring.slots[i]->key;
    for (int i = 0; i < file->n; i++)
        after[i] = &file->keys[i];
    key_changes_log(identity->path, before, n, after, (size_t)file->n);
    free(after);
    free(before);
}

// Returns true if the calling thread must check the file now. It checks without the mutex, and other threads continue
// with the old keys. An interval of 0 also tries a file again that could not be used.
static bool look_begin(struct identity *identity, int64_t interval_us, struct file_stamp *stamp_p)
{
    pthread_mutex_lock(&identity->mutex);
    int64_t now_us = clock_now_us();
    bool due = !identity->reading && now_us - identity->looked_us >= interval_us;
    if (due) {
        identity->reading = true;
        identity->looked_us = now_us;
        *stamp_p = identity->stamp;
        if (interval_us == 0 && identity->refused) memset(stamp_p, 0, sizeof *stamp_p);
    }
    pthread_mutex_unlock(&identity->mutex);
    return due;
}

static void look_end(struct identity *identity, const struct file_stamp *stamp, const struct key_file *file,
                     enum status status)
{
    pthread_mutex_lock(&identity->mutex);
    if (file) ring_replace(identity, file);
    if (file || status != STATUS_OK) identity->refused = status != STATUS_OK;
    identity->stamp = *stamp;
    identity->reading = false;
    pthread_mutex_unlock(&identity->mutex);
}

static enum status reload_if_changed(struct identity *identity, int64_t interval_us)
{
    struct file_stamp stamp;
    struct key_file file = {0};
    if (!look_begin(identity, interval_us, &stamp)) return STATUS_OK;
    bool changed = file_stamp_update(&stamp, identity->path); // before reading: a later change is seen next time
    enum status status = changed ? file_read(identity->path, &file) : STATUS_OK;
    bool usable = changed && status == STATUS_OK;
    if (status != STATUS_OK)
        log_event(LOG_ERROR, "api_keys_unusable", LOG_REASON, LOG_FIELD("effect", "the keys read before stay in use"));
    if (usable) log_changes(identity, &file);
    look_end(identity, &stamp, usable ? &file : NULL, status);
    key_file_fini(&file);
    return status;
}

enum status identity_reload(struct identity *identity)
{
    return identity ? reload_if_changed(identity, 0) : STATUS_OK;
}

enum status identity_open(const char *path, struct identity **identity_p)
{
    struct key_file file;
    struct file_stamp stamp = file_stamp_get(path);
    TRY(file_read(path, &file));
    struct identity *identity = mem_alloc(sizeof *identity);
    identity->path = mem_string(path);
    pthread_mutex_init(&identity->mutex, NULL);
    identity->stamp = stamp;
    identity->looked_us = clock_now_us();
    ring_build(&file, &(struct ring){0}, &identity->ring);
    key_file_fini(&file);
    *identity_p = identity;
    return STATUS_OK;
}

void identity_close(struct identity *identity)
{
    if (!identity) return;
    ring_fini(&identity->ring);
    pthread_mutex_destroy(&identity->mutex);
    free(identity->path);
    free(identity);
}

// --- daily quotas

uint64_t identity_count_charges(void)
{
    return charges;
}

// Returns the tokens that the key has used of its daily quota, or 0 if it has no quota.
static double day_used(struct principal *p)
{
    pthread_mutex_lock(&p->mutex);
    double used = p->key.limits.tokens_per_day ? limits_day_used(&p->use, &p->key.limits, clock_now_us()) : 0;
    pthread_mutex_unlock(&p->mutex);
    return used;
}

void identity_get_quotas(struct identity *identity, struct quota_list *list)
{
    size_t capacity = 0;
    pthread_mutex_lock(&identity->mutex);
    for (size_t i = 0; i < identity->ring.n_slots; i++) {
        struct principal *p = identity->ring.slots[i];
        double used = p ? day_used(p) : 0;
        if (used < 1) continue;
        MEM_GROW(list->quotas, list->n, capacity);
        struct quota *quota = &list->quotas[list->n++];
        quota->used = used;
        strcpy(quota->id, p->key.id);
        strcpy(quota->tenant, p->key.tenant);
    }
    pthread_mutex_unlock(&identity->mutex);
}

static void day_restore(struct principal *p, double used, int64_t age_ms)
{
    pthread_mutex_lock(&p->mutex);
    limits_day_restore(&p->use, used, age_ms * 1000, clock_now_us());
    pthread_mutex_unlock(&p->mutex);
}

void identity_set_quotas(struct identity *identity, const struct quota_list *list, int64_t age_ms)
{
    size_t n;
    pthread_mutex_lock(&identity->mutex);
    struct principal **all = ring_list(&identity->ring, &n);
    for (size_t i = 0; i < list->n; i++) {
        struct principal named = {0}, *name = &named;
        strcpy(named.key.id, list->quotas[i].id);
        strcpy(named.key.tenant, list->quotas[i].tenant);
        struct principal **found = bsearch(&name, all, n, sizeof *all, by_name);
        if (found) day_restore(*found, list->quotas[i].used, age_ms);
    }
    pthread_mutex_unlock(&identity->mutex);
    free(all);
}

// --- authentication

enum { KEY_BYTES_MAX = 256 }; // also limits keys that this program did not make

// Returns the principal of a key with a reference, or NULL if the key is unknown.
static struct principal *find(struct identity *identity, const char *key, size_t size)
{
    uint8_t hash[KEY_HASH_BYTES];
    key_hash(key, size, hash);
    pthread_mutex_lock(&identity->mutex);
    struct principal *p = *ring_slot(&identity->ring, hash);
    if (p) principal_ref(p);
    pthread_mutex_unlock(&identity->mutex);
    return p;
}

enum status identity_find(struct identity *identity, const char *key_id, const char *tenant,
                          struct principal **principal_p)
{
    struct principal *found = NULL;
    reload_if_changed(identity, RELOAD_US);
    pthread_mutex_lock(&identity->mutex);
    for (size_t i = 0; i < identity->ring.n_slots && !found; i++) {
        struct principal *p = identity->ring.slots[i];
        if (p && strcmp(p->key.id, key_id) == 0 && strcmp(p->key.tenant, tenant) == 0) found = principal_ref(p);
    }
    pthread_mutex_unlock(&identity->mutex);
    if (!found) return status_fail(STATUS_UNAUTHENTICATED, "the API key '%.64s' no longer exists", key_id);
    *principal_p = found;
    return STATUS_OK;
}

enum status identity_authenticate_key(struct identity *identity, const char *key, struct principal **principal_p)
{
    size_t size = key ? strlen(key) : 0;
    if (!size)
        return status_fail(STATUS_UNAUTHENTICATED, "an API key is required: send it as 'authorization: Bearer KEY'");
    reload_if_changed(identity, RELOAD_US);
    struct principal *p = size <= KEY_BYTES_MAX ? find(identity, key, size) : NULL;
    if (!p) return status_fail(STATUS_UNAUTHENTICATED, "the API key is unknown: check that it was copied whole");
    const struct api_key now = principal_key(p);
    enum status status = check_valid(&now);
    if (status == STATUS_OK)
        *principal_p = p;
    else
        principal_unref(p);
    return status;
}

enum status identity_authenticate(struct identity *identity, const char *authorization, struct principal **principal_p)
{
    static const char scheme[] = "Bearer ";
    if (!authorization) return identity_authenticate_key(identity, NULL, principal_p);
    if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return status_fail(STATUS_UNAUTHENTICATED, "authorization: must be 'Bearer KEY'");
    const char *key = authorization + sizeof scheme - 1;
    return identity_authenticate_key(identity, key + strspn(key, " "), principal_p);
}
