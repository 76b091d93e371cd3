// SPDX-License-Identifier: Apache-2.0
#include "router/front/nodes/cluster_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"

enum { SECRET_BYTES_MIN = 16, KEY_ITERATIONS = 100000 };

struct cluster_token {
    char *path;
    pthread_mutex_t mutex; // guards all members below
    struct file_stamp stamp;
    bool refused; // the file of this stamp cannot be used
    unsigned char digest[SHA256_DIGEST_LENGTH];
    struct hash_key key; // made from the secret; the digest cannot be computed from it
};

static void digest_compute(const char *secret, unsigned char *digest)
{
    SHA256((const unsigned char *)secret, strlen(secret), digest);
}

// Clients see seeds that are made with the key. The iterations make it slow to find a weak secret by trying secrets.
static struct hash_key key_compute(const char *secret)
{
    static const unsigned char salt[] = "forepack cluster token key";
    struct hash_key key;
    if (!PKCS5_PBKDF2_HMAC(secret, (int)strlen(secret), salt, sizeof salt - 1, KEY_ITERATIONS, EVP_sha256(), sizeof key,
                           (unsigned char *)&key))
        abort(); // only without memory
    return key;
}

static enum status token_read(struct cluster_token *token)
{
    char *secret;
    TRY(secret_file_read(token->path, &secret));
    size_t size = strlen(secret);
    if (size >= SECRET_BYTES_MIN) {
        digest_compute(secret, token->digest);
        token->key = key_compute(secret);
    }
    explicit_bzero(secret, size);
    free(secret);
    if (size >= SECRET_BYTES_MIN) return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s: the secret has %zu characters: must have at least %d", token->path, size,
                       SECRET_BYTES_MIN);
}

// Reads the file again if it has changed; on failure the last token stays in use. The caller holds the mutex.
static enum status token_refresh(struct cluster_token *token)
{
    if (!file_stamp_update(&token->stamp, token->path)) return STATUS_OK;
    unsigned char before[SHA256_DIGEST_LENGTH];
    memcpy(before, token->digest, sizeof before);
    enum status status = token_read(token);
    token->refused = status != STATUS_OK;
    if (status == STATUS_OK)
        log_event(LOG_INFO, "cluster_token_loaded", LOG_FIELD("file", token->path),
                  LOG_FIELD("changed", (bool)(CRYPTO_memcmp(before, token->digest, sizeof before) != 0)));
    else
        log_event(LOG_ERROR, "cluster_token_refused", LOG_REASON, LOG_FIELD("effect", "the last token stays in use"));
    return status;
}

enum status cluster_token_open(const char *path, struct cluster_token **token_p)
{
    struct cluster_token *token = mem_alloc(sizeof *token);
    token->path = mem_string(path);
    pthread_mutex_init(&token->mutex, NULL);
    file_stamp_update(&token->stamp, path);
    enum status status = token_read(token);
    if (status == STATUS_OK)
        *token_p = token;
    else
        cluster_token_free(token);
    return status;
}

void cluster_token_free(struct cluster_token *token)
{
    if (!token) return;
    pthread_mutex_destroy(&token->mutex);
    free(token->path);
    free(token);
}

enum status cluster_token_reload(struct cluster_token *token)
{
    if (!token) return STATUS_OK;
    pthread_mutex_lock(&token->mutex);
    if (token->refused) token->stamp = (struct file_stamp){0}; // reads it again
    enum status status = token_refresh(token);
    pthread_mutex_unlock(&token->mutex);
    return status;
}

enum status cluster_token_check(struct cluster_token *token, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncmp(authorization, scheme, sizeof scheme - 1) != 0)
        return status_fail(STATUS_UNAUTHENTICATED, "this router asks for a cluster token: start the node with "
                                                   "--cluster-token-file");
    unsigned char digest[SHA256_DIGEST_LENGTH];
    digest_compute(authorization + sizeof scheme - 1, digest);
    pthread_mutex_lock(&token->mutex);
    token_refresh(token);
    bool equal = CRYPTO_memcmp(digest, token->digest, sizeof digest) == 0;
    pthread_mutex_unlock(&token->mutex);
    return equal ? STATUS_OK
                 : status_fail(STATUS_UNAUTHENTICATED,
                               "the cluster token is not this router's: give both the same --cluster-token-file");
}

struct hash_key cluster_token_key(struct cluster_token *token)
{
    struct hash_key key = {1, 1};
    if (!token) return key;
    pthread_mutex_lock(&token->mutex);
    key = token->key;
    pthread_mutex_unlock(&token->mutex);
    return key;
}
