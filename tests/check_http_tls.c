// SPDX-License-Identifier: Apache-2.0
// http/ over TLS: protocol versions, client certificates, resumption, reload, and clients that go away.
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "tests/certificates.h"
#include "tests/http_service.h"
#include "tests/suite.h"
#include "tests/tls_records.h"

static char folder[] = "/tmp/check_http_tls.XXXXXX";
static char cert_file[64], key_file[64], ca_file[64], log_file[64];
static struct identity authority, first, second, stranger;

static SSL_CTX *client_tls; // a client without a certificate, of any version

static void open_tls_server(bool mutual, struct http_server_options o)
{
    struct http_tls_files files = {.cert = cert_file, .key = key_file, .client_ca = mutual ? ca_file : NULL};
    o.tls = &files;
    o.tls_check_ms = 50;
    open_server(o);
}

// --- the client

static SSL_CTX *client_context(int max_version, const struct identity *id)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    ck_assert_int_eq(SSL_CTX_load_verify_locations(context, ca_file, NULL), 1);
    if (max_version) SSL_CTX_set_max_proto_version(context, max_version);
    if (id) ck_assert_int_eq(SSL_CTX_use_certificate(context, id->cert), 1);
    if (id) ck_assert_int_eq(SSL_CTX_use_PrivateKey(context, id->key), 1);
    return context;
}

// --- fixtures

static void make_files(void)
{
    signal(SIGPIPE, SIG_IGN); // the client's OpenSSL writes with write(2)
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(cert_file, sizeof cert_file, "%s/cert.pem", folder);
    snprintf(key_file, sizeof key_file, "%s/key.pem", folder);
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", folder);
    snprintf(log_file, sizeof log_file, "%s/log", folder);
    authority = identity_create("authority", NULL);
    first = identity_create("first", &authority);
    second = identity_create("second", &authority);
    stranger = identity_create("stranger", NULL);
    identity_write_cert(&first, cert_file);
    identity_write_key(&first, key_file, NULL);
    identity_write_cert(&authority, ca_file);
    client_tls = client_context(0, NULL);
}

static void remove_files(void)
{
    http_server_close(server, 1000);
    SSL_CTX_free(client_tls);
    unlink(cert_file);
    unlink(key_file);
    unlink(ca_file);
    unlink(log_file);
    rmdir(folder);
    identity_free(&authority);
    identity_free(&first);
    identity_free(&second);
    identity_free(&stranger);
}

static void open_default_server(void)
{
    open_tls_server(false, (struct http_server_options){0});
}

// --- a connection

// Returns NULL if the handshake failed. `session` may be NULL.
static SSL *tls_connect(SSL_CTX *context, SSL_SESSION *session)
{
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, client_connect(port()));
    if (session) SSL_set_session(ssl, session);
    if (SSL_connect(ssl) == 1) return ssl;
    close(SSL_get_fd(ssl));
    SSL_free(ssl);
    return NULL;
}

static void tls_close(SSL *ssl)
{
    SSL_shutdown(ssl); // otherwise OpenSSL does not resume the session
    close(SSL_get_fd(ssl));
    SSL_free(ssl);
}

// Reads until `end` has arrived. Returns false if the connection ended before.
static bool tls_receive_until(SSL *ssl, const char *end, char *text, size_t room)
{
    size_t size = 0;
    text[0] = '\0';
    while (!strstr(text, end)) {
        int n = SSL_read(ssl, text + size, (int)(room - size - 1));
        if (n <= 0) return false;
        size += (size_t)n;
        text[size] = '\0';
    }
    return true;
}

static bool tls_ask(SSL *ssl)
{
    static const char request[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    char text[4096];
    return SSL_write(ssl, request, sizeof request - 1) > 0 &&
           tls_receive_until(ssl, "\r\n\r\nhello", text, sizeof text);
}

static long serial_of(SSL *ssl)
{
    X509 *cert = SSL_get1_peer_certificate(ssl);
    long serial = ASN1_INTEGER_get(X509_get_serialNumber(cert));
    X509_free(cert);
    return serial;
}

static long serial_now(SSL_CTX *context)
{
    SSL *ssl = tls_connect(context, NULL);
    ck_assert_ptr_nonnull(ssl);
    long serial = serial_of(ssl);
    tls_close(ssl);
    return serial;
}

// --- versions

START_TEST(versions_1_2_and_1_3_are_served)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (int i = 0; i < 2; i++) {
        SSL_CTX *context = client_context(versions[i], NULL);
        SSL_CTX_set_alpn_protos(context, (const unsigned char *)"\x02h2\x08http/1.1", 12);
        SSL *ssl = tls_connect(context, NULL);
        ck_assert_ptr_nonnull(ssl);
        ck_assert_int_eq(SSL_version(ssl), versions[i]);
        const unsigned char *protocol;
        unsigned size;
        SSL_get0_alpn_selected(ssl, &protocol, &size);
        ck_assert_int_eq(size, 8);
        ck_assert_int_eq(memcmp(protocol, "http/1.1", 8), 0);
        for (int round = 0; round < 3; round++)
            ck_assert(tls_ask(ssl));
        tls_close(ssl);
        SSL_CTX_free(context);
    }
}
END_TEST

START_TEST(older_versions_other_protocols_and_plain_text_are_refused)
{
    SSL_CTX *context = client_context(TLS1_1_VERSION, NULL);
    SSL_CTX_set_security_level(context, 0);
    ck_assert_ptr_null(tls_connect(context, NULL));
    SSL_CTX_free(context);
    context = client_context(0, NULL);
    SSL_CTX_set_alpn_protos(context, (const unsigned char *)"\x02h2", 3);
    ck_assert_ptr_null(tls_connect(context, NULL));
    SSL_CTX_free(context);
    char *text = client_ask_raw(port(), "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(text, "HTTP/1.1 400 "));
    ck_assert_ptr_nonnull(strstr(text, "https://"));
    free(text);
    ck_assert_int_eq(atomic_load(&n_requests), 0);
    ck_assert_uint_eq(server_status().handshakes_failed, 3);
}
END_TEST

START_TEST(a_handshake_that_stalls_meets_the_limit_of_the_head)
{
    open_tls_server(false, (struct http_server_options){.head_ms = 200});
    int fd = client_connect(port());
    client_send_bytes(fd, "\x16\x03\x01", 3);
    struct client_text text = client_receive_all(fd);
    free(text.bytes);
    close(fd);
    AWAIT(server_status().connections == 0);
}
END_TEST

// --- bytes

START_TEST(large_bodies_pass_both_ways)
{
    SSL *ssl = tls_connect(client_tls, NULL);
    enum { SIZE = 100000 }; // fits the sockets' buffers, since the client writes all before it reads
    static char body[SIZE], text[SIZE + 1000];
    for (int i = 0; i < SIZE; i++)
        body[i] = (char)('a' + i % 23);
    for (int round = 0; round < 20; round++) {
        static const char head[] = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100003\r\n\r\n";
        ck_assert_int_gt(SSL_write(ssl, head, sizeof head - 1), 0);
        ck_assert_int_eq(SSL_write(ssl, body, SIZE), SIZE);
        ck_assert_int_eq(SSL_write(ssl, "END", 3), 3);
        ck_assert(tls_receive_until(ssl, "END", text, sizeof text));
        ck_assert_int_eq(memcmp(strstr(text, "\r\n\r\n") + 4, body, SIZE), 0);
    }
    tls_close(ssl);
}
END_TEST

START_TEST(a_stream_passes_and_a_client_that_goes_away_is_seen)
{
    static const char request[] = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
    char text[4096];
    for (int way = 0; way < 3; way++) {
        SSL *ssl = tls_connect(client_tls, NULL);
        SSL_write(ssl, request, sizeof request - 1);
        struct http_exchange *x = await_held();
        for (int i = 0; i < 10; i++) {
            http_stream_send(x, "data: x\n\n", 9);
            ck_assert(tls_receive_until(ssl, "data: x\n\n\r\n", text, sizeof text));
        }
        // The client ends the connection, its sending side, or only its TLS session.
        if (way == 0) shutdown(SSL_get_fd(ssl), SHUT_RDWR);
        if (way == 1) shutdown(SSL_get_fd(ssl), SHUT_WR);
        if (way == 2) SSL_shutdown(ssl);
        AWAIT(atomic_load(&n_disconnected) == way + 1);
        http_unref(x);
        tls_close(ssl);
    }
}
END_TEST

// Replaces recv() of the C library. If the test sets this, the server's reads wait until they have all the bytes that
// they ask for. Then the end of a turn leaves bytes for the next one.
static atomic_bool reads_are_full;

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    size_t n = 0;
    for (;;) {
        ssize_t more = recvfrom(fd, (char *)bytes + n, size - n, flags, NULL, NULL);
        if (more > 0) n += (size_t)more;
        bool may_wait = size == HTTP_IN_BYTES && atomic_load(&reads_are_full);
        bool is_over = more == 0 || (more < 0 && errno != EAGAIN);
        if (n == size || is_over || !may_wait) return n ? (ssize_t)n : more;
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, CLIENT_WAIT_MS);
    }
}

// At the end of a turn its undecrypted bytes exceed the bound.
START_TEST(a_body_beyond_the_total_gets_its_answer)
{
    static const char head[] = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 400001\r\n\r\n";
    static char body[400000], text[4096];
    open_tls_server(false, (struct http_server_options){.max_bodies_bytes = HTTP_TURN_BYTES + HTTP_IN_BYTES / 2});
    SSL *ssl = tls_connect(client_tls, NULL);
    atomic_store(&reads_are_full, true);
    ck_assert_int_gt(SSL_write(ssl, head, sizeof head - 1), 0);
    ck_assert_int_eq(SSL_write(ssl, body, sizeof body), sizeof body);
    ck_assert(tls_receive_until(ssl, "\r\n\r\n", text, sizeof text));
    ck_assert_msg(strncmp(text, "HTTP/1.1 503 ", 13) == 0, "%s", text);
    tls_close(ssl);
    AWAIT(server_status().connections == 0 && server_status().body_bytes == 0);
}
END_TEST

// Replaces epoll_wait() of the C library. Counts how often a thread of the server waits.
static atomic_int n_waits;

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout_ms)
{
    if (timeout_ms != 0) atomic_fetch_add(&n_waits, 1);
    return epoll_pwait(fd, events, n, timeout_ms, NULL);
}

// Before the server can write, it has to read the message. The thread must wait for it as for any other bytes.
START_TEST(a_handshake_message_in_two_parts_does_not_keep_the_server_busy)
{
    static const char request[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", new_key[] = {24, 0, 0, 1, 0};
    open_tls_server(false, (struct http_server_options){.stall_ms = 10 * CLIENT_WAIT_MS});
    SSL_CTX *context = client_context(TLS1_3_VERSION, NULL);
    ck_assert_int_eq(SSL_CTX_set_ciphersuites(context, TLS_RECORDS_CIPHER), 1);
    SSL_CTX_set_keylog_callback(context, tls_records_keep_secret);
    SSL *ssl = tls_connect(context, NULL);
    struct tls_records records = tls_records_open();
    unsigned char bytes[2 * TLS_RECORD_BYTES];
    size_t size = tls_records_add(&records, TLS_APPLICATION, request, sizeof request - 1, bytes);
    size += tls_records_add(&records, TLS_HANDSHAKE, new_key, 4, bytes + size);
    ck_assert(client_send_bytes(SSL_get_fd(ssl), (const char *)bytes, size));
    AWAIT(atomic_load(&n_requests) == 1);

    int before = atomic_load(&n_waits);
    close(client_connect(port())); // wakes the thread, which may be waiting already
    AWAIT(atomic_load(&n_waits) > before);
    size = tls_records_add(&records, TLS_HANDSHAKE, new_key + 4, 1, bytes);
    ck_assert(client_send_bytes(SSL_get_fd(ssl), (const char *)bytes, size));
    char text[4096];
    ck_assert(tls_receive_until(ssl, "\r\n\r\nhello", text, sizeof text));
    close(SSL_get_fd(ssl));
    SSL_free(ssl);
    SSL_CTX_free(context);
}
END_TEST

// Sends n changes of the client's key and then a request, in one piece. Returns false if the server closes the
// connection.
static bool answered_after_new_keys(SSL_CTX *context, int n)
{
    SSL *ssl = tls_connect(context, NULL);
    int fd = SSL_get_fd(ssl);
    BIO *sent = BIO_new(BIO_s_mem());
    SSL_set0_wbio(ssl, sent);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        ck_assert_int_eq(SSL_do_handshake(ssl), 1);
    }
    static const char request[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    ck_assert_int_gt(SSL_write(ssl, request, sizeof request - 1), 0);
    char *bytes, text[4096];
    size_t size = (size_t)BIO_get_mem_data(sent, &bytes);
    ck_assert(client_send_bytes(fd, bytes, size));
    bool answered = tls_receive_until(ssl, "\r\n\r\nhello", text, sizeof text);
    close(fd);
    SSL_free(ssl);
    return answered;
}

START_TEST(records_without_data_are_bounded)
{
    SSL_CTX *context = client_context(TLS1_3_VERSION, NULL);
    ck_assert(answered_after_new_keys(context, HTTP_TURN_EMPTY_RECORDS));
    ck_assert(!answered_after_new_keys(context, HTTP_TURN_EMPTY_RECORDS + 1));
    SSL_CTX_free(context);
}
END_TEST

// --- sessions and certificates

static SSL_SESSION *kept_session;

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    SSL_SESSION_free(kept_session);
    kept_session = session;
    return 1;
}

// Makes three connections with the last session that the server offered.
static void expect_resumption(int version, const struct identity *id, bool expected)
{
    SSL_CTX *context = client_context(version, id);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, keep_session);
    for (int round = 0; round < 3; round++) {
        SSL *ssl = tls_connect(context, kept_session);
        ck_assert_ptr_nonnull(ssl);
        ck_assert(tls_ask(ssl));
        ck_assert_int_eq(SSL_session_reused(ssl), expected && round > 0);
        tls_close(ssl);
    }
    SSL_SESSION_free(kept_session);
    kept_session = NULL;
    SSL_CTX_free(context);
}

START_TEST(sessions_are_resumed)
{
    expect_resumption(TLS1_2_VERSION, NULL, true);
    expect_resumption(TLS1_3_VERSION, NULL, true);
}
END_TEST

START_TEST(client_certificates_are_required_where_an_authority_is_given)
{
    open_tls_server(true, (struct http_server_options){0});
    const struct identity *const refused[] = {NULL, &stranger};
    for (int i = 0; i < 2; i++) {
        SSL_CTX *context = client_context(0, refused[i]);
        SSL *ssl = tls_connect(context, NULL); // with TLS 1.3 the client notices this at its first read
        ck_assert(!ssl || !tls_ask(ssl));
        if (ssl) tls_close(ssl);
        SSL_CTX_free(context);
    }
    ck_assert_int_eq(atomic_load(&n_requests), 0);
    expect_resumption(TLS1_2_VERSION, &second, false);
    expect_resumption(TLS1_3_VERSION, &second, false);
    ck_assert_int_eq(atomic_load(&n_requests), 6);
}
END_TEST

START_TEST(changed_files_are_read_while_streams_go_on)
{
    static const char request[] = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
    SSL *stream = tls_connect(client_tls, NULL);
    SSL_write(stream, request, sizeof request - 1);
    struct http_exchange *x = await_held();
    long before = serial_of(stream), after = ASN1_INTEGER_get(X509_get_serialNumber(second.cert));
    ck_assert_int_ne(before, after);
    identity_write_key(&second, key_file, NULL);
    identity_write_cert(&second, cert_file);
    AWAIT(serial_now(client_tls) == after);
    char text[4096];
    http_stream_send(x, "still here", 10);
    ck_assert(tls_receive_until(stream, "still here", text, sizeof text));
    http_stream_end(x);
    http_unref(x);
    tls_close(stream);
}
END_TEST

static void log_to_file(void)
{
    int log = open(log_file, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    close(log);
}

static int count_in_log(const char *word)
{
    static char text[100000];
    int fd = open(log_file, O_RDONLY);
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

START_TEST(files_that_cannot_be_used_are_logged_once_and_the_old_ones_kept)
{
    log_to_file();
    long before = serial_now(client_tls);
    identity_write_key(&second, key_file, NULL); // does not belong to the certificate
    AWAIT(serial_now(client_tls) == before && count_in_log("certificate_refused") > 0);
    int64_t look_us = clock_now_us() + 200000; // further checks find the files unchanged
    AWAIT(serial_now(client_tls) == before && clock_now_us() > look_us);
    ck_assert_int_eq(count_in_log("certificate_refused"), 1);
    ck_assert_int_eq(count_in_log(key_file), 1);
    identity_write_cert(&second, cert_file);
    AWAIT(serial_now(client_tls) != before);
    ck_assert_int_eq(count_in_log("certificate_loaded"), 1);
}
END_TEST

static void expect_reload_refused(SSL_CTX *context, const char *reason)
{
    long before = serial_now(context);
    http_server_reload(server);
    ck_assert_int_eq(count_in_log(reason), 1);
    ck_assert_int_eq(serial_now(context), before);
}

START_TEST(an_expired_certificate_and_a_key_that_everyone_can_read_are_refused)
{
    log_to_file();
    struct identity expired = identity_create_expired("expired", &authority);
    identity_write_cert(&expired, cert_file);
    identity_write_key(&expired, key_file, NULL);
    expect_reload_refused(client_tls, "the certificate has expired");
    identity_write_cert(&second, cert_file);
    identity_write_key(&second, key_file, NULL);
    ck_assert_int_eq(chmod(key_file, 0644), 0);
    expect_reload_refused(client_tls, "every user can read this secret");
    ck_assert_int_eq(count_in_log("certificate_refused"), 2);
    identity_write_key(&second, key_file, NULL);
    http_server_reload(server);
    ck_assert_int_eq(serial_now(client_tls), ASN1_INTEGER_get(X509_get_serialNumber(second.cert)));
    identity_free(&expired);
}
END_TEST

static void expect_open_failure(const char *cert, const char *key, const char *ca, const char *named)
{
    struct http_tls_files files = {.cert = cert, .key = key, .client_ca = ca};
    struct http_server *refused = NULL;
    ck_assert_int_ne(http_server_open(&(struct http_server_options){.routes = routes, .tls = &files}, &refused),
                     STATUS_OK);
    ck_assert_msg(strstr(status_message(), named), "%s", status_message());
    ck_assert_ptr_null(refused);
}

START_TEST(a_server_does_not_start_with_files_that_cannot_be_used)
{
    expect_open_failure("/absent", key_file, NULL, "/absent");
    expect_open_failure(cert_file, "/absent", NULL, "/absent");
    expect_open_failure(cert_file, key_file, "/absent", "/absent");
    expect_open_failure(cert_file, cert_file, NULL, cert_file);
    expect_open_failure(key_file, key_file, NULL, key_file);
    expect_open_failure(cert_file, key_file, key_file, key_file);
    ck_assert_int_eq(chmod(key_file, 0644), 0);
    expect_open_failure(cert_file, key_file, NULL, "every user can read this secret");
    identity_write_key(&second, key_file, NULL);
    expect_open_failure(cert_file, key_file, NULL, key_file);
    identity_write_key(&first, key_file, "secret"); // nobody is there to type the password
    expect_open_failure(cert_file, key_file, NULL, key_file);
}
END_TEST

static int connect_from_another_address(void)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)port());
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

// The server's only thread reads the connections in the order in which their bytes arrive.
START_TEST(an_address_has_one_handshake_at_a_time)
{
    open_tls_server(false, (struct http_server_options){.max_connections_per_address = 10, .threads = 1});
    SSL *waiting = SSL_new(client_tls), *served = SSL_new(client_tls);
    int begun = client_connect(port()), later = client_connect(port()), other = connect_from_another_address();
    SSL_set_fd(waiting, later);
    SSL_set_fd(served, other);
    ck_assert_int_eq(write(begun, "\x16\x03\x01\x02", 5), 5); // the start of a long record
    fcntl(later, F_SETFL, O_NONBLOCK);
    ck_assert_int_lt(SSL_connect(waiting), 1);
    ck_assert_int_eq(SSL_connect(served), 1);
    ck_assert_int_eq(poll(&(struct pollfd){.fd = later, .events = POLLIN}, 1, 100), 0);
    close(begun);
    fcntl(later, F_SETFL, 0);
    ck_assert_int_eq(SSL_connect(waiting), 1);
    ck_assert(tls_ask(waiting));
    tls_close(waiting);
    tls_close(served);
    http_server_close(server, 1000);
    server = NULL;
}
END_TEST

static bool has_ended(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

// One handshake more than the port allows ends the oldest, and the new one goes on.
START_TEST(concurrent_handshakes_are_bounded)
{
    static int fd[HANDSHAKES_MAX];
    open_default_server();
    for (int i = 0; i < HANDSHAKES_MAX; i++) {
        if (i == HANDSHAKES_MAX - 1) { // the next one is the last that the port allows
            tls_close(tls_connect(client_tls, NULL));
            ck_assert(!has_ended(fd[0]));
        }
        fd[i] = client_connect(port());
        ck_assert_int_eq(write(fd[i], "\x16\x03\x01\x02", 5), 5); // the start of a long record
    }
    tls_close(tls_connect(client_tls, NULL));
    ck_assert_int_eq(poll(&(struct pollfd){.fd = fd[0], .events = POLLIN}, 1, 8000), 1); // a head may take 10 s
    ck_assert(!has_ended(fd[1]));
    for (int i = 0; i < HANDSHAKES_MAX; i++)
        close(fd[i]);
    http_server_close(server, 1000);
    server = NULL;
}
END_TEST

SUITE("http_tls")
{
    FIXTURE(make_files, remove_files);
    FIXTURE(open_default_server, NULL);
    TEST(versions_1_2_and_1_3_are_served);
    TEST(older_versions_other_protocols_and_plain_text_are_refused);
    TEST(large_bodies_pass_both_ways);
    TEST(a_stream_passes_and_a_client_that_goes_away_is_seen);
    TEST(records_without_data_are_bounded);
    TEST(sessions_are_resumed);
    TEST(changed_files_are_read_while_streams_go_on);
    TEST(files_that_cannot_be_used_are_logged_once_and_the_old_ones_kept);
    TEST(an_expired_certificate_and_a_key_that_everyone_can_read_are_refused);

    TCASE("options");
    FIXTURE(make_files, remove_files);
    TEST(an_address_has_one_handshake_at_a_time);
    TEST(concurrent_handshakes_are_bounded);
    TEST(a_handshake_that_stalls_meets_the_limit_of_the_head);
    TEST(a_body_beyond_the_total_gets_its_answer);
    TEST(a_handshake_message_in_two_parts_does_not_keep_the_server_busy);
    TEST(client_certificates_are_required_where_an_authority_is_given);
    TEST(a_server_does_not_start_with_files_that_cannot_be_used);
}
