// SPDX-License-Identifier: Apache-2.0
#include "router/listen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/descriptors.h"
#include "lib/base/forwarded.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/peer_budget.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/http/http_call.h"
#include "router/front/http/http_service.h"

// Maximum age of a connection. It makes peers show their certificates again. A running call ends first.
#define CONNECTION_AGE_MS (60 * 60 * 1000)

// A node has one call on its connection, and `forepack up` asks for the cluster's state on another one.
enum { NODE_CONNECTIONS_MAX = 4096, NODE_CALLS_MAX = 64, NODE_MESSAGE_BYTES_MAX = 16 << 20 };

static char *client_address(const struct listen_options *o)
{
    return mem_format("%s:%lld", o->host, (long long)o->port);
}

static char *http_address(const struct listen_options *o)
{
    return mem_format("%s:%lld", o->host, (long long)o->http_port);
}

static char *node_address(const struct listen_options *o)
{
    return o->node_listen ? mem_string(o->node_listen) : mem_format("%s:50052", o->host);
}

// --- the rule of exposure

static enum status client_rule_check(const char *address, const struct listen_options *o)
{
    if (o->tls_cert) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--host %s: other machines could connect to %s without TLS: give --tls-cert and --tls-key, or "
                       "--insecure on a network that you trust",
                       o->host, address);
}

static enum status node_rule_check(const char *address, const struct listen_options *o)
{
    if (!o->node_tls_cert)
        return status_fail(STATUS_INVALID,
                           "--node-listen %s: other machines could connect without TLS: give --node-tls-cert and "
                           "--node-tls-key, or a loopback address if all nodes run on this machine, or --insecure on "
                           "a network that you trust",
                           address);
    if (!o->node_tls_ca && !o->cluster_token_file)
        return status_fail(STATUS_INVALID,
                           "--node-listen %s: any machine could attach as a node: give --node-tls-ca or "
                           "--cluster-token-file, or --insecure",
                           address);
    return STATUS_OK;
}

// Frees `address`.
static enum status rule_check(char *address, const struct listen_options *o,
                              enum status (*rule)(const char *address, const struct listen_options *o))
{
    bool loopback = true;
    enum status status = address_is_loopback(address, &loopback);
    if (status == STATUS_OK && !loopback) status = rule(address, o);
    if (status != STATUS_OK && o->insecure && !loopback) {
        log_event(LOG_WARN, "listening_insecurely", LOG_FIELD("address", address), LOG_REASON);
        status = STATUS_OK;
    }
    free(address);
    return status;
}

static enum status pair_check(const char *prefix, const char *cert, const char *key, const char *ca,
                              const char *ca_name)
{
    if (!cert != !key)
        return status_fail(STATUS_INVALID, "--%s-cert and --%s-key: must be given together", prefix, prefix);
    if (ca && !cert) return status_fail(STATUS_INVALID, "--%s: needs --%s-cert and --%s-key", ca_name, prefix, prefix);
    return STATUS_OK;
}

// Refuses options that give one address to two ports. Otherwise the second socket would report a port in use,
// as if another process had it.
static enum status ports_check(const struct listen_options *o)
{
    char *grpc = client_address(o), *http = http_address(o), *nodes = node_address(o);
    const struct port {
        const char *option, *address;
        bool fixed;
    } ports[] = {{"port", grpc, o->port > 0},
                 {"http-port", http, o->http_port > 0},
                 {"node-listen", nodes, strcmp(strrchr(nodes, ':') ?: "", ":0") != 0}};
    enum status status = STATUS_OK;
    for (size_t i = 1; i < 3 && status == STATUS_OK; i++)
        for (size_t k = 0; k < i && status == STATUS_OK; k++)
            if (ports[i].fixed && ports[k].fixed && strcmp(ports[i].address, ports[k].address) == 0)
                status = status_fail(STATUS_INVALID, "--%s and --%s: both are %s: choose two ports", ports[k].option,
                                     ports[i].option, ports[i].address);
    free(grpc);
    free(http);
    free(nodes);
    return status;
}

static enum status memory_check(const struct listen_options *o)
{
    if (!o->max_peers_mb || o->max_peers_mb >= 2 * o->max_message_mb) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--max-peers-mb %lld: must be at least twice --max-message-mb, or 0",
                       (long long)o->max_peers_mb);
}

// Files that cannot be read are reported when they are loaded.
static void authorities_check(const struct listen_options *o)
{
    char *clients = NULL, *nodes = NULL;
    if (!o->tls_client_ca || !o->node_tls_ca || o->cluster_token_file) return;
    if (file_read_small(o->tls_client_ca, false, &clients) == STATUS_OK &&
        file_read_small(o->node_tls_ca, false, &nodes) == STATUS_OK && strcmp(clients, nodes) == 0)
        log_event(LOG_WARN, "authority_shared", LOG_FIELD("tls_client_ca", o->tls_client_ca),
                  LOG_FIELD("node_tls_ca", o->node_tls_ca),
                  LOG_FIELD("effect", "clients can attach as nodes: give nodes another authority or a cluster token"));
    free(clients);
    free(nodes);
}

static enum status option_check(const char *name, enum status status)
{
    return status == STATUS_OK ? status : status_context(status, "--%s", name);
}

static enum status site_check(const struct listen_options *o)
{
    struct networks networks;
    TRY(option_check("allowed-hosts", http_hosts_check(o->allowed_hosts)));
    TRY(option_check("cors-origin", http_origins_check(o->cors_origin)));
    return option_check("trusted-proxies", networks_parse(o->trusted_proxies, &networks));
}

enum status listen_check(const struct listen_options *o)
{
    TRY(site_check(o));
    TRY(pair_check("tls", o->tls_cert, o->tls_key, o->tls_client_ca, "tls-client-ca"));
    TRY(pair_check("node-tls", o->node_tls_cert, o->node_tls_key, o->node_tls_ca, "node-tls-ca"));
    TRY(ports_check(o));
    TRY(memory_check(o));
    authorities_check(o);
    TRY(rule_check(client_address(o), o, client_rule_check));
    return rule_check(node_address(o), o, node_rule_check);
}

static enum status tls_files_check(const char *cert, const char *key, const char *ca)
{
    struct tls_pem pem;
    TRY(tls_pem_read(cert, key, ca, &pem));
    tls_pem_free(&pem);
    return STATUS_OK;
}

static enum status batch_dir_check(const char *dir)
{
    struct stat is;
    if (!dir || stat(dir, &is) != 0) return STATUS_OK; // it is created at start
    if (!S_ISDIR(is.st_mode)) return status_fail(STATUS_INVALID, "--batch-dir %s: is not a folder", dir);
    if (access(dir, R_OK | W_OK | X_OK) == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--batch-dir %s: this user cannot write to it: %s", dir, strerror(errno));
}

enum status listen_check_files(const struct listen_options *o)
{
    struct cluster_token *token = NULL;
    TRY(tls_files_check(o->tls_cert, o->tls_key, o->tls_client_ca));
    TRY(tls_files_check(o->node_tls_cert, o->node_tls_key, o->node_tls_ca));
    if (o->cluster_token_file) TRY(cluster_token_open(o->cluster_token_file, &token));
    cluster_token_free(token);
    return batch_dir_check(o->batch.dir);
}

// --- opening

static enum status clients_open(const struct listen_options *o, struct front *front, const struct rpc_method *methods,
                                struct rpc_server **server_p)
{
    const struct rpc_tls tls = {o->tls_cert, o->tls_key, o->tls_client_ca};
    char *address = client_address(o);
    enum status status =
        rpc_server_open(&(struct rpc_server_options){.address = address,
                                                     .methods = methods,
                                                     .context = front,
                                                     .authorise = front_authorise,
                                                     .proof = front->identity != NULL,
                                                     .tls = tls.cert ? &tls : NULL,
                                                     .max_connection_age_ms = CONNECTION_AGE_MS,
                                                     .max_connections_per_address = (int)o->connections_per_address,
                                                     .trusted_proxies = o->trusted_proxies,
                                                     .max_message_bytes = (size_t)o->max_message_mb << 20},
                        server_p);
    free(address);
    return status;
}

static enum status nodes_open(const struct listen_options *o, struct front *front, struct listeners *l)
{
    const struct rpc_tls tls = {o->node_tls_cert, o->node_tls_key, o->node_tls_ca};
    char *address = node_address(o);
    l->node_methods[0] = front_attach;
    l->node_methods[1] = front_cluster_info; // forepack up calls it to learn whether its nodes are attached
    enum status status =
        rpc_server_open(&(struct rpc_server_options){.address = address,
                                                     .methods = l->node_methods,
                                                     .context = front,
                                                     .authorise = front_authorise_node,
                                                     .proof = front->cluster_token != NULL,
                                                     .tls = tls.cert ? &tls : NULL,
                                                     .max_connection_age_ms = CONNECTION_AGE_MS,
                                                     .max_message_bytes = NODE_MESSAGE_BYTES_MAX,
                                                     .max_connections = descriptors_share(2, NODE_CONNECTIONS_MAX),
                                                     .max_calls = NODE_CALLS_MAX,
                                                     .threads = 1},
                        &l->nodes);
    free(address);
    if (status == STATUS_OK) rpc_server_set_serving(l->nodes, "", true);
    return status;
}

// Returns the host names of the HTTP port: --allowed-hosts, and --host if that is a name. The caller frees them.
static char *site_hosts(const struct listen_options *o)
{
    bool is_name = *o->host && http_hosts_check(o->host) == STATUS_OK;
    if (!is_name) return mem_string(o->allowed_hosts);
    return o->allowed_hosts ? mem_format("%s,%s", o->host, o->allowed_hosts) : mem_string(o->host);
}

// Decides which web pages may use the port. If there are no keys, a page needs only the port's address. So Origin must
// be allowed, and on loopback Host must be a name of this machine.
static struct http_site site_make(const struct listen_options *o, const struct front *front, const char *hosts)
{
    bool keyless = !front->identity, loopback = false;
    char *address = http_address(o);
    if (address_is_loopback(address, &loopback) != STATUS_OK) loopback = false; // opening reports the reason
    free(address);
    return (struct http_site){.check_host = o->allowed_hosts || (keyless && loopback),
                              .hosts = hosts,
                              .check_origin = keyless,
                              .origins = o->cors_origin,
                              .exposed = http_exposed_headers};
}

static struct http_batching_options batching_options(const struct batch_options *o)
{
    return (struct http_batching_options){.window = (int)o->window,
                                          .store = {.folder = o->dir,
                                                    .file_bytes = (uint64_t)o->file_mb << 20,
                                                    .tenant_bytes = (uint64_t)o->tenant_mb << 20,
                                                    .total_bytes = (uint64_t)o->total_mb << 20,
                                                    .tenant_files = (int)o->tenant_files,
                                                    .total_files = (int)o->total_files}};
}

static enum status http_open(const struct listen_options *o, struct front *front, struct listeners *l)
{
    if (o->http_port < 0) return STATUS_OK;
    const struct http_tls_files tls = {o->tls_cert, o->tls_key, o->tls_client_ca};
    l->hosts = site_hosts(o);
    const struct http_service_options options = {.host = o->host,
                                                 .port = (int)o->http_port,
                                                 .tls = tls.cert ? &tls : NULL,
                                                 .max_connections_per_address = (int)o->connections_per_address,
                                                 .trusted_proxies = o->trusted_proxies,
                                                 .site = site_make(o, front, l->hosts),
                                                 .proof = front->identity != NULL,
                                                 .max_connection_age_ms = CONNECTION_AGE_MS,
                                                 .batching = batching_options(&o->batch),
                                                 .max_body_bytes = (size_t)o->max_message_mb << 20,
                                                 .max_bodies_bytes = (size_t)o->max_bodies_mb << 20};
    return http_service_open(front, &options, &l->http);
}

static size_t peers_bytes(const struct listen_options *o)
{
    return (size_t)(o->max_peers_mb ? o->max_peers_mb : LISTEN_PEERS_MESSAGES * o->max_message_mb) << 20;
}

// Lists the configured files with certificates, for their expiry in metrics.
static void certificates_list(const struct listen_options *o, struct front *front, struct listeners *l)
{
    const struct certificate_time files[] = {{.option = "tls-cert", .path = o->tls_cert},
                                             {.option = "tls-client-ca", .path = o->tls_client_ca},
                                             {.option = "node-tls-cert", .path = o->node_tls_cert},
                                             {.option = "node-tls-ca", .path = o->node_tls_ca}};
    front->certificates = l->certificates;
    front->n_certificates = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].path) l->certificates[front->n_certificates++] = files[i];
}

enum status listeners_open(const struct listen_options *options, struct front *front, const struct rpc_method *methods,
                           struct listeners *listeners)
{
    *listeners = (struct listeners){0};
    certificates_list(options, front, listeners);
    peer_budgets_set((size_t)options->max_keyless_mb << 20, peers_bytes(options));
    front->whole.max_bytes = (size_t)options->max_answers_mb << 20;
    if (options->cluster_token_file) TRY(cluster_token_open(options->cluster_token_file, &front->cluster_token));
    enum status status = clients_open(options, front, methods, &listeners->clients);
    if (status == STATUS_OK) status = http_open(options, front, listeners);
    if (status == STATUS_OK)
        status = nodes_open(options, front, listeners); // last, because attached nodes show that clients can connect
    if (status != STATUS_OK) listeners_close(listeners, 0);
    return status;
}

enum status listeners_reload(const struct listeners *listeners, const struct front *front)
{
    enum status status = rpc_server_reload(listeners->clients);
    status = status_either(status, rpc_server_reload(listeners->nodes));
    status = status_either(status, http_service_reload(listeners->http));
    return status_either(status, cluster_token_reload(front->cluster_token));
}

void listeners_close(struct listeners *listeners, int grace_ms)
{
    http_service_close(listeners->http, grace_ms);
    rpc_server_close(listeners->clients, grace_ms);
    rpc_server_close(listeners->nodes, grace_ms);
    free(listeners->hosts);
    listeners->hosts = NULL;
}
