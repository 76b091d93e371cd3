// SPDX-License-Identifier: Apache-2.0
#include "bench/certificate.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { VALID_S = 86400 };

static bool extension_add(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    bool added = extension && X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
    return added;
}

// Signs the certificate with its own key: clients trust it as an authority.
static bool certificate_sign(X509 *cert, EVP_PKEY *key)
{
    X509_NAME *name = X509_get_subject_name(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), VALID_S);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_set_pubkey(cert, key);
    return extension_add(cert, NID_basic_constraints, "critical,CA:TRUE") &&
           extension_add(cert, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1") &&
           X509_sign(cert, key, EVP_sha256()) > 0;
}

// Creates a file that only its owner can read: the router refuses a key that every user can read.
static FILE *file_create(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd >= 0 ? fdopen(fd, "w") : NULL;
}

static bool cert_write(const char *path, X509 *cert)
{
    FILE *file = file_create(path);
    bool written = file && PEM_write_X509(file, cert);
    return file && fclose(file) == 0 && written;
}

static bool key_write(const char *path, EVP_PKEY *key)
{
    FILE *file = file_create(path);
    bool written = file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    return file && fclose(file) == 0 && written;
}

enum status certificate_files_create(struct certificate_files *files)
{
    char folder[] = "/tmp/forepack-bench.XXXXXX";
    if (!mkdtemp(folder)) return status_fail(STATUS_INTERNAL, "/tmp: cannot make a folder for a certificate");
    *files = (struct certificate_files){mem_string(folder), mem_format("%s/cert.pem", folder),
                                        mem_format("%s/key.pem", folder)};
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    bool written =
        key && cert && certificate_sign(cert, key) && cert_write(files->cert, cert) && key_write(files->key, key);
    X509_free(cert);
    EVP_PKEY_free(key);
    if (written) return STATUS_OK;
    enum status status = status_fail(STATUS_INTERNAL, "%s: cannot write a certificate", folder);
    certificate_files_remove(files);
    return status;
}

void certificate_files_remove(struct certificate_files *files)
{
    if (!files->folder) return;
    unlink(files->cert);
    unlink(files->key);
    rmdir(files->folder);
    free(files->cert);
    free(files->key);
    free(files->folder);
    *files = (struct certificate_files){0};
}
