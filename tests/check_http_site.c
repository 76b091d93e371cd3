// SPDX-License-Identifier: Apache-2.0
// http/: Host and Origin of requests, and CORS.
#include "lib/base/mem.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

static void open_site(struct http_site site)
{
    open_server((struct http_server_options){.site = site});
}

// Sends a request with these header lines and returns the answer, which the caller frees.
static char *ask(const char *start, const char *lines)
{
    char *request = mem_format("%s HTTP/1.1\r\n%sConnection: close\r\n\r\n", start, lines);
    char *text = client_ask_raw(port(), request);
    free(request);
    return text;
}

static void expect(const char *start, const char *lines, const char *status)
{
    char *text = ask(start, lines);
    expect_start(text, status);
    free(text);
}

START_TEST(a_guarded_port_serves_addresses_localhost_and_its_names)
{
    static const char *const served[] = {"127.0.0.1", "127.0.0.1:8000", "[::1]",     "[::1]:8000",
                                         "localhost", "LocalHost:80",   "llm.a.org", "LLM:1"};
    static const char *const foreign[] = {"evil.org",
                                          "evil.org:8000",
                                          "localhost.evil.org",
                                          "127.0.0.1.evil.org",
                                          "xllm.a.org",
                                          "llm.a.or",
                                          "[::1",
                                          "[x]",
                                          "127.0.0.1:x",
                                          "llm.a.org,llm",
                                          ""};
    open_site((struct http_site){.check_host = true, .hosts = "llm.a.org,llm"});
    for (size_t i = 0; i < sizeof served / sizeof *served; i++) {
        char *line = mem_format("Host: %s\r\n", served[i]);
        expect("GET /hello", line, "HTTP/1.1 200");
        free(line);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char *line = mem_format("Host: %s\r\n", foreign[i]);
        expect("GET /hello", line, "HTTP/1.1 4");
        free(line);
    }
    expect("GET /hello", "Host: evil.org\r\n", "HTTP/1.1 421 Misdirected Request\r\n");
    expect("GET http://evil.org/hello", "Host: localhost\r\n", "HTTP/1.1 400");
    expect("GET http://evil.org/hello", "Host: evil.org\r\n", "HTTP/1.1 421");
    expect("GET http://localhost/hello", "Host: localhost\r\n", "HTTP/1.1 200");
    expect_answer("GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200", "hello"); // a health check without Host
    close_server();
}
END_TEST

START_TEST(an_open_port_serves_every_name)
{
    open_site((struct http_site){0});
    expect("GET /hello", "Host: evil.org\r\n", "HTTP/1.1 200");
    expect("POST /echo", "Host: x\r\nOrigin: http://evil.org\r\nContent-Length: 0\r\n", "HTTP/1.1 200");
    close_server();
}
END_TEST

START_TEST(pages_of_other_origins_cannot_post)
{
    static const struct {
        const char *origin, *status;
    } cases[] = {
        {"http://evil.org", "HTTP/1.1 403"},
        {"null", "HTTP/1.1 403"},
        {"http://a.org", "HTTP/1.1 200"},
        {"https://a.org", "HTTP/1.1 200"}, // a proxy ended TLS
        {"http://a.org:81", "HTTP/1.1 403"},
        {"http://xa.org", "HTTP/1.1 403"},
        {"http://b.org:3000", "HTTP/1.1 200"},
        {"HTTP://B.ORG:3000", "HTTP/1.1 200"},
        {"https://b.org:3000", "HTTP/1.1 403"},
        {"http://b.org", "HTTP/1.1 403"},
        {"", "HTTP/1.1 403"},
    };
    open_site((struct http_site){.check_origin = true, .origins = "https://c.org,http://b.org:3000"});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *lines = mem_format("Host: a.org\r\nOrigin: %s\r\nContent-Length: 0\r\n", cases[i].origin);
        expect("POST /echo", lines, cases[i].status);
        free(lines);
    }
    expect("POST /echo", "Host: a.org\r\nContent-Length: 0\r\n", "HTTP/1.1 200"); // a client that is no browser
    expect("POST /echo", "Host: a.org:80\r\nOrigin: http://a.org\r\nContent-Length: 0\r\n", "HTTP/1.1 200");
    expect("GET /hello", "Host: a.org\r\nOrigin: http://evil.org\r\n", "HTTP/1.1 200");
    close_server();
}
END_TEST

START_TEST(answers_errors_and_streams_have_the_headers)
{
    static const char *const requests[] = {
        "GET /hello",    "GET /nowhere", "DELETE /echo", "OPTIONS /echo",
        "POST /guarded", // 401
    };
    open_site((struct http_site){.origins = "http://b.org", .exposed = "x-one"});
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        char *text = ask(requests[i], "Host: x\r\nOrigin: http://b.org\r\nContent-Length: 0\r\n");
        expect_part(text, "\r\nAccess-Control-Allow-Origin: http://b.org\r\n");
        expect_part(text, "\r\nAccess-Control-Expose-Headers: x-one\r\n");
        expect_part(text, "\r\nVary: Origin\r\n");
        free(text);
        text = ask(requests[i], "Host: x\r\nOrigin: http://evil.org\r\nContent-Length: 0\r\n");
        ck_assert_ptr_null(strstr(text, "Access-Control"));
        expect_part(text, "\r\nVary: Origin\r\n");
        free(text);
    }
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\nOrigin: http://b.org\r\n\r\n");
    struct client_text head = client_receive_until(fd, "\r\n\r\n");
    expect_part(head.bytes, "\r\nAccess-Control-Allow-Origin: http://b.org\r\n");
    free(head.bytes);
    struct http_exchange *x = await_held();
    http_stream_end(x);
    http_unref(x);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_star_allows_every_page)
{
    open_site((struct http_site){.check_origin = true, .origins = "*"});
    char *text = ask("POST /echo", "Host: x\r\nOrigin: null\r\nContent-Length: 0\r\n");
    expect_start(text, "HTTP/1.1 200");
    expect_part(text, "\r\nAccess-Control-Allow-Origin: *\r\n");
    ck_assert_ptr_null(strstr(text, "Vary"));
    free(text);
    close_server();
}
END_TEST

START_TEST(a_preflight_is_answered_on_every_path)
{
    static const char *const paths[] = {"OPTIONS /echo", "OPTIONS /guarded", "OPTIONS /nowhere"};
    const char *lines = "Host: x\r\nOrigin: http://b.org\r\nAccess-Control-Request-Method: POST\r\n"
                        "Access-Control-Request-Headers: authorization,content-type\r\n";
    open_site((struct http_site){.check_origin = true, .origins = "http://b.org"});
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *text = ask(paths[i], lines);
        expect_start(text, "HTTP/1.1 204");
        expect_part(text, "\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n");
        expect_part(text, "\r\nAccess-Control-Allow-Headers: authorization,content-type\r\n");
        free(text);
    }
    expect("OPTIONS /nowhere", "Host: x\r\nOrigin: http://evil.org\r\nAccess-Control-Request-Method: POST\r\n",
           "HTTP/1.1 404");
    close_server();
}
END_TEST

START_TEST(malformed_lists_are_refused)
{
    static const char *const origins[] = {"",         "a.org",        "http://",        "http://a.org/",
                                          "http://*", "*,http://a",   "http://a.org:x", "http://a.org,",
                                          "://a.org", "http://a b.c", "http://[::1",    "http://a.org, http://b.org"};
    static const char *const hosts[] = {"", "a.org:80", "a,,b", "http://a", "*", "a b", "[::1]"};
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++)
        ck_assert_msg(http_origins_check(origins[i]) == STATUS_INVALID, "%s", origins[i]);
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        ck_assert_msg(http_hosts_check(hosts[i]) == STATUS_INVALID, "%s", hosts[i]);
    ck_assert_int_eq(http_origins_check("*"), STATUS_OK);
    ck_assert_int_eq(http_origins_check("null,https://[::1]:3000,chrome-extension://abc,http://a_b.org"), STATUS_OK);
    ck_assert_int_eq(http_origins_check(NULL), STATUS_OK);
    ck_assert_int_eq(http_hosts_check("llm.example.org,llm-2"), STATUS_OK);
}
END_TEST

SUITE("http_site")
{
    TEST(a_guarded_port_serves_addresses_localhost_and_its_names);
    TEST(an_open_port_serves_every_name);
    TEST(pages_of_other_origins_cannot_post);
    TEST(answers_errors_and_streams_have_the_headers);
    TEST(a_star_allows_every_page);
    TEST(a_preflight_is_answered_on_every_path);
    TEST(malformed_lists_are_refused);
}
