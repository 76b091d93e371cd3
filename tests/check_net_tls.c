// SPDX-License-Identifier: Apache-2.0
// net/: TLS of servers and channels: whose certificates are accepted, and files that change while calls run.
// deploy/certificates.sh makes the certificates.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "tests/suite.h"

// The folder of the certificates. The authority `ca` signed server, client, elsewhere (another host), old (expired) and
// second (like server). `foreign/ca` signed foreign/server and foreign/client.
static char folder[] = "/tmp/forepack-tls-XXXXXX";

static char paths[8][200]; // results of file()
static int n_paths;

// Returns the path of a file in the folder. The text is valid during the next seven calls.
static const char *file(const char *name)
{
    char *path = paths[n_paths++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

// Runs a command in the folder of the certificates.
static void run(const char *command)
{
    char *all = mem_format("cd %s && %s", folder, command);
    if (system(all)) {
        fprintf(stderr, "failed: %s\n", all);
        abort();
    }
    free(all);
}

static struct rpc_server *server;
static struct rpc_channel *channel;

static void answer_name(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const char *name = rpc_call_peer_name(call);
    rpc_call_send(call, (const uint8_t *)(name ? name : "nobody"), strlen(name ? name : "nobody"));
}

static void answer_address(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, (const uint8_t *)rpc_call_peer(call), strlen(rpc_call_peer(call)));
}

static void finish(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, NULL);
}

static const struct rpc_method methods[] = {
    {"/test.S/Name", .on_message = answer_name, .on_half_close = finish},
    {"/test.S/Address", .on_message = answer_address, .on_half_close = finish},
    {0},
};

static void setup(void)
{
    rpc_init();
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    channel = NULL;
    server = NULL;
    ck_assert_int_eq(rpc_live_objects(), 0);
    rpc_shutdown();
}

static enum status server_open(const char *name, const char *ca, int64_t age_ms)
{
    char cert[200], key[200];
    snprintf(cert, sizeof cert, "%s/%s.pem", folder, name);
    snprintf(key, sizeof key, "%s/%s.key", folder, name);
    const struct rpc_tls tls = {cert, key, ca};
    return rpc_server_open(
        &(struct rpc_server_options){
            .address = "127.0.0.1:0", .methods = methods, .tls = &tls, .max_connection_age_ms = age_ms},
        &server);
}

static void target_format(char *target, size_t size)
{
    snprintf(target, size, "127.0.0.1:%d", rpc_server_port(server));
}

// Replaces the channel. It has no certificate if `name` is NULL, and uses plain text if `ca` is NULL.
static enum status channel_open(const char *name, const char *ca)
{
    char target[64], cert[200], key[200];
    target_format(target, sizeof target);
    snprintf(cert, sizeof cert, "%s/%s.pem", folder, name ? name : "");
    snprintf(key, sizeof key, "%s/%s.key", folder, name ? name : "");
    rpc_channel_close(channel);
    channel = NULL;
    return rpc_channel_open_tls(target, ca ? &(struct rpc_tls){name ? cert : NULL, name ? key : NULL, ca} : NULL,
                                &channel);
}

static enum status call(const char *method, char *text, size_t size)
{
    struct rpc_bytes answer;
    TRY(rpc_unary(channel, method, (const uint8_t *)"x", 1, 20000, &answer));
    snprintf(text, size, "%s", (const char *)answer.data);
    rpc_bytes_free(&answer);
    return STATUS_OK;
}

static void expect_name(const char *wanted)
{
    char name[100];
    ck_assert_msg(call("/test.S/Name", name, sizeof name) == STATUS_OK, "%s", status_message());
    ck_assert_str_eq(name, wanted);
}

static void expect_refused(const char *part)
{
    char name[100];
    ck_assert_int_eq(call("/test.S/Name", name, sizeof name), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), part) != NULL, "%s", status_message());
}

START_TEST(a_client_knows_its_server)
{
    ck_assert_msg(server_open("server", NULL, 0) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    expect_name("nobody");
    ck_assert_int_eq(channel_open(NULL, file("foreign/ca.pem")), STATUS_OK);
    expect_refused("certificate verify failed");
    ck_assert_int_eq(channel_open(NULL, NULL), STATUS_OK);
    expect_refused("does it want TLS");
}
END_TEST

START_TEST(a_certificate_for_another_host_is_refused)
{
    ck_assert_int_eq(server_open("elsewhere", NULL, 0), STATUS_OK);
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    expect_refused("is not in peer certificate");
}
END_TEST

START_TEST(a_plain_server_is_refused_by_a_client_with_tls)
{
    ck_assert_int_eq(
        rpc_server_open(&(struct rpc_server_options){.address = "127.0.0.1:0", .methods = methods}, &server),
        STATUS_OK);
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    expect_refused("it does not use TLS");
}
END_TEST

START_TEST(a_server_with_authorities_knows_its_clients)
{
    ck_assert_int_eq(server_open("server", file("ca.pem"), 0), STATUS_OK);
    ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
    expect_name("client");
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    expect_refused("another client certificate");
    ck_assert_int_eq(channel_open("foreign/client", file("ca.pem")), STATUS_OK);
    expect_refused("another client certificate");
    ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
    expect_name("client");
}
END_TEST

static void expect_open_fails(const char *cert, const char *key, const char *ca, const char *part)
{
    struct rpc_server *none;
    const struct rpc_tls tls = {cert, key, ca};
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = methods, .tls = &tls};
    ck_assert_int_ne(rpc_server_open(&options, &none), STATUS_OK);
    ck_assert_msg(strstr(status_message(), part) != NULL, "%s", status_message());
}

START_TEST(files_that_cannot_serve_are_refused_with_a_sentence)
{
    run("echo garbage > garbage && chmod 600 garbage && cp server.key open.key && chmod 644 open.key");
    expect_open_fails(file("server.pem"), NULL, NULL, "TLS needs a certificate and its private key");
    expect_open_fails(file("none.pem"), file("server.key"), NULL, "none.pem: No such file");
    expect_open_fails(file("garbage"), file("server.key"), NULL, "garbage: must have a certificate in PEM");
    expect_open_fails(file("server.pem"), file("garbage"), NULL, "must have a private key in PEM");
    expect_open_fails(file("server.pem"), file("client.key"), NULL, "client.key is not the private key of");
    expect_open_fails(file("server.pem"), file("open.key"), NULL, "every user can read this secret");
    expect_open_fails(file("old.pem"), file("old.key"), NULL, "old.pem: the certificate has expired");
    expect_open_fails(file("server.pem"), file("server.key"), file("garbage"), "garbage: must have certificates");
    ck_assert_int_eq(server_open("server", NULL, 0), STATUS_OK);
    ck_assert_int_eq(channel_open("old", file("ca.pem")), STATUS_INVALID);
    ck_assert_int_eq(channel_open(NULL, file("garbage")), STATUS_INVALID);
}
END_TEST

static struct rpc_stream *stream_open(const char *method)
{
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, method, 0, false, &stream), STATUS_OK);
    return stream;
}

static void stream_answer(struct rpc_stream *stream, char *text, size_t size)
{
    struct rpc_bytes bytes;
    rpc_stream_send(stream, (const uint8_t *)"x", 1);
    ck_assert_msg(rpc_stream_read(stream, &bytes) == STATUS_OK, "%s", status_message());
    ck_assert_ptr_nonnull(bytes.data);
    snprintf(text, size, "%s", (const char *)bytes.data);
    rpc_bytes_free(&bytes);
}

static int lines_with(const char *path, const char *part)
{
    char line[2000];
    int n = 0;
    FILE *log = fopen(path, "r");
    while (fgets(line, sizeof line, log))
        n += strstr(line, part) != NULL;
    fclose(log);
    return n;
}

START_TEST(changed_files_serve_new_connections_while_streams_run)
{
    char text[100], *log = mem_string(file("log"));
    run("cp second.pem used.pem && cp second.key used.key && cp ca.pem used-ca.pem");
    ck_assert_int_eq(server_open("used", file("used-ca.pem"), 0), STATUS_OK);
    ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
    struct rpc_channel *first = channel;
    struct rpc_stream *stream = stream_open("/test.S/Name");
    stream_answer(stream, text, sizeof text);

    // With unusable files the old certificate stays, and the log says so once.
    int old_stderr = dup(STDERR_FILENO);
    ck_assert_ptr_nonnull(freopen(log, "w", stderr));
    run("echo garbage > used.pem");
    for (int i = 0; i < 2; i++) {
        channel = NULL;
        ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
        expect_name("client");
        rpc_channel_close(channel);
    }
    run("cp old.pem used.pem && cp old.key used.key");
    channel = NULL;
    ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
    expect_name("client");
    fflush(stderr);
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    ck_assert_int_eq(lines_with(log, "used.pem: must have a certificate in PEM"), 1);
    ck_assert_int_eq(lines_with(log, "used.pem: the certificate has expired"), 1);

    // Another authority for the server and for its clients.
    run("cp foreign/server.pem used.pem && cp foreign/server.key used.key && cp foreign/ca.pem used-ca.pem");
    ck_assert_int_eq(channel_open("foreign/client", file("foreign/ca.pem")), STATUS_OK);
    expect_name("client");
    ck_assert_int_eq(channel_open("client", file("ca.pem")), STATUS_OK);
    expect_refused("certificate verify failed");

    stream_answer(stream, text, sizeof text);
    ck_assert_str_eq(text, "client");
    rpc_stream_close(stream);
    rpc_channel_close(first);
    free(log);
}
END_TEST

START_TEST(an_old_connection_keeps_its_streams_and_takes_no_new_calls)
{
    char before[100], during[100], after[100];
    ck_assert_int_eq(server_open("server", NULL, 100), STATUS_OK);
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    struct rpc_stream *stream = stream_open("/test.S/Address");
    stream_answer(stream, before, sizeof before);
    do { // until another connection serves
        usleep(10000);
        ck_assert_msg(call("/test.S/Address", after, sizeof after) == STATUS_OK, "%s", status_message());
    } while (strcmp(after, before) == 0);
    stream_answer(stream, during, sizeof during);
    ck_assert_str_eq(during, before);
    rpc_stream_close(stream);
}
END_TEST

// These connections send nothing, or only begin a handshake.
START_TEST(half_open_connections_do_not_delay_others)
{
    enum { CONNECTIONS = 300 };
    int fds[CONNECTIONS];
    ck_assert_int_eq(server_open("server", NULL, 0), STATUS_OK);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)rpc_server_port(server))};
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
        if (i % 2) ck_assert_int_eq(write(fds[i], "\x16\x03\x01\x02", 5), 5); // the start of a long record
    }
    ck_assert_int_eq(channel_open(NULL, file("ca.pem")), STATUS_OK);
    expect_name("nobody");
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
}
END_TEST

static void make_certificates(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    run("\"" CERTIFICATES "\" . server=127.0.0.1 second=localhost,127.0.0.1 client elsewhere=example.org");
    run("\"" CERTIFICATES "\" --days -1 . old=127.0.0.1");
    run("\"" CERTIFICATES "\" foreign server=127.0.0.1 client");
}

static void remove_certificates(void)
{
    run("rm -r \"$PWD\"");
}

SUITE("net tls")
{
    SKIP_UNLESS(system("command -v openssl >/dev/null") == 0);
    NO_FORK(); // gRPC's threads do not survive a fork
    FIXTURE_ONCE(make_certificates, remove_certificates);
    FIXTURE(setup, teardown);
    TEST(a_client_knows_its_server);
    TEST(a_certificate_for_another_host_is_refused);
    TEST(a_plain_server_is_refused_by_a_client_with_tls);
    TEST(a_server_with_authorities_knows_its_clients);
    TEST(files_that_cannot_serve_are_refused_with_a_sentence);
    TEST(changed_files_serve_new_connections_while_streams_run);
    TEST(half_open_connections_do_not_delay_others);
    TEST(an_old_connection_keeps_its_streams_and_takes_no_new_calls);
}
