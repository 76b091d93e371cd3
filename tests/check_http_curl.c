// SPDX-License-Identifier: Apache-2.0
// http/ with curl as the client.
#include "lib/base/mem.h"
#include "tests/certificates.h"
#include "tests/http_service.h"
#include "tests/suite.h"

static char folder[] = "/tmp/check_http_curl.XXXXXX";

// Returns the output of `curl --silent ARGUMENTS`. In the arguments %p is the port and %d the folder.
static const char *curl(const char *arguments)
{
    static char text[100000];
    char command[2048] = "curl --silent --show-error --max-time 60 ";
    for (size_t at = strlen(command); *arguments; arguments++, at = strlen(command)) {
        if (*arguments == '%' && arguments[1] == 'p')
            snprintf(command + at, sizeof command - at, "%d", port());
        else if (*arguments == '%' && arguments[1] == 'd')
            snprintf(command + at, sizeof command - at, "%s", folder);
        else
            command[at] = *arguments;
        if (*arguments == '%' && strchr("pd", arguments[1])) arguments++;
    }
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t size = fread(text, 1, sizeof text - 1, pipe);
    text[size] = '\0';
    snprintf(text + size, sizeof text - size, "[%d]", WEXITSTATUS(pclose(pipe)));
    return text;
}

START_TEST(curl_speaks_to_the_plain_server)
{
    open_server((struct http_server_options){0});
    ck_assert_str_eq(curl("http://127.0.0.1:%p/hello http://127.0.0.1:%p/hello"), "hellohello[0]");
    ck_assert_uint_eq(server_status().accepted, 1); // both on one connection
    ck_assert_str_eq(curl("--http1.0 http://127.0.0.1:%p/hello"), "hello[0]");
    ck_assert_ptr_nonnull(strstr(curl("--head http://127.0.0.1:%p/hello"), "Content-Length: 5\r\n"));
    ck_assert_str_eq(curl("--data abc http://127.0.0.1:%p/echo"), "abc[0]");
    ck_assert_str_eq(curl("--data abc -H 'Transfer-Encoding: chunked' http://127.0.0.1:%p/echo"), "abc[0]");
    // Large enough for curl to ask with Expect: 100-continue.
    ck_assert_str_eq(
        curl("--data-binary @/proc/self/exe http://127.0.0.1:%p/echo | cmp - \"$(command -v curl)\" && echo same"),
        "same\n[0]");
    ck_assert_str_eq(curl("-o /dev/null -w '%{http_code}' http://127.0.0.1:%p/nowhere"), "404[0]");
    ck_assert_str_eq(curl("-o /dev/null -w '%{http_code}' --data-binary @/proc/self/exe http://127.0.0.1:%p/small"),
                     "413[0]");
    http_server_close(server, 1000);
}
END_TEST

START_TEST(curl_speaks_to_the_tls_server)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char cert[64], key[64], ca[64];
    snprintf(cert, sizeof cert, "%s/cert.pem", folder);
    snprintf(key, sizeof key, "%s/key.pem", folder);
    snprintf(ca, sizeof ca, "%s/ca.pem", folder);
    struct identity authority = identity_create("authority", NULL), id = identity_create("server", &authority);
    identity_write_cert(&id, cert);
    identity_write_key(&id, key, NULL);
    identity_write_cert(&authority, ca);
    struct http_tls_files files = {.cert = cert, .key = key, .client_ca = ca};
    open_server((struct http_server_options){.tls = &files});
    ck_assert_str_eq(curl("--cacert %d/ca.pem --cert %d/cert.pem --key %d/key.pem https://localhost:%p/hello "
                          "https://localhost:%p/hello"),
                     "hellohello[0]");
    ck_assert_str_eq(curl("--cacert %d/ca.pem --cert %d/cert.pem --key %d/key.pem --tls-max 1.2 --data abc "
                          "https://127.0.0.1:%p/echo"),
                     "abc[0]");
    ck_assert_ptr_null(strstr(curl("--cacert %d/ca.pem https://localhost:%p/hello 2>&1"), "hello"));
    http_server_close(server, 1000);
    unlink(cert);
    unlink(key);
    unlink(ca);
    rmdir(folder);
    identity_free(&authority);
    identity_free(&id);
}
END_TEST

static bool curl_is_here(void)
{
    const bool here = system("curl --version >/dev/null 2>&1") == 0;
    if (!here) printf("skipped: curl is not installed\n");
    return here;
}

SUITE("http_curl")
{
    SKIP_UNLESS(curl_is_here());
    TEST(curl_speaks_to_the_plain_server);
    TEST(curl_speaks_to_the_tls_server);
}
