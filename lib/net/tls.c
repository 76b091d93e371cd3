// SPDX-License-Identifier: Apache-2.0
#include "lib/net/tls.h"

#include "lib/base/tls_files.h"

enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p)
{
    struct tls_pem pem;
    if (!files->ca)
        return status_fail(STATUS_INVALID, "TLS needs the authorities that signed the server's certificate");
    if (!files->cert != !files->key)
        return status_fail(STATUS_INVALID, "a client's certificate and its private key must be given together");
    TRY(tls_pem_read(files->cert, files->key, files->ca, &pem));
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pem.key, .cert_chain = pem.cert};
    *credentials_p = grpc_ssl_credentials_create_ex(pem.ca, pem.cert ? &pair : NULL, NULL, NULL);
    tls_pem_free(&pem);
    return STATUS_OK;
}
