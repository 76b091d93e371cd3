// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/grammar.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/program_path.h"
#include "lib/base/thread.h"
#include "lib/base/version.h"
#include "lib/grammar/limits.h"
#include "lib/grammar/member_names.h"
#include "lib/text/schema_blanks.h"
#include "lib/text/unicode.h"

struct grammar_library {
    void *file; // result of dlopen(); never closed, since the library may have threads
    struct llg_functions llg;
    struct llg_tokenizer *tokenizer;
    int vocab_size, mask_words;
    int32_t brace; // the token "{"; -1: there is none
};

struct grammar_matcher {
    const struct grammar_library *library;
    struct llg_matcher *llg;
};

// --- loading

// Opens libpython: the library of the Python package uses libpython's data without listing it as a dependency. Loading
// libpython runs no Python code.
static bool python_open(void)
{
    bool loaded = false;
    for (int minor = 15; minor >= 9 && !loaded; minor--) {
        char name[32];
        snprintf(name, sizeof name, "libpython3.%d.so.1.0", minor);
        loaded = dlopen(name, RTLD_LAZY | RTLD_GLOBAL) != NULL;
    }
    return loaded;
}

static const char PATH_VARIABLE[] = "FOREPACK_GRAMMAR_LIBRARY";

// Returns the path in the environment, or the library that belongs to this program: in the library folder of an
// installation, or in build/llguidance of the repository for a program in build/<preset>/bin. Returns a name for the
// dynamic loader if there is none of these. The caller frees the path.
static char *default_path(void)
{
    const char *named = getenv(PATH_VARIABLE);
    if (named) return mem_string(named);
    static const char *const places[] = {FOREPACK_INSTALL_LIBRARIES, "../../llguidance"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *relative = mem_format("%s/libllguidance.so", places[i]), *path = program_path(relative);
        free(relative);
        if (access(path, F_OK) == 0) return path;
        free(path);
    }
    return mem_string("libllguidance.so");
}

static enum status file_open(struct grammar_library *library, const char *path)
{
    // Lazy binding: the file refers to many functions of libpython. None has to be found before it is called.
    library->file = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library->file) return STATUS_OK;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", dlerror());
    if (!strchr(path, '/') && strstr(reason, "cannot open shared object file"))
        return status_fail(STATUS_NOT_FOUND, "llguidance is not installed (deploy/llguidance.sh installs it): %s",
                           reason);
    if (!strstr(reason, ": undefined symbol: ")) return status_fail(STATUS_NOT_FOUND, "%s", reason);
    if (!python_open()) return status_fail(STATUS_NOT_FOUND, "%s: libpython3 is needed and cannot be loaded", path);
    library->file = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    return library->file ? STATUS_OK : status_fail(STATUS_NOT_FOUND, "%s", dlerror());
}

static enum status functions_find(struct grammar_library *library, const char *path)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define LLG_ROW(result, name, parameters) {#name, offsetof(struct llg_functions, name)},
        LLG_FUNCTIONS(LLG_ROW)
#undef LLG_ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library->file, functions[i].name);
        if (!function)
            return status_fail(STATUS_UNSUPPORTED, "%s: not llguidance 1.x: it has no function %s", path,
                               functions[i].name);
        memcpy((char *)&library->llg + functions[i].offset, &function, sizeof function);
    }
    return STATUS_OK;
}

// --- the vocabulary

struct vocabulary {
    uint32_t *lengths;
    struct bytes text;
};

// Adds a token. llguidance recognises special tokens by a byte 0xFF before their text. A token without text is never
// allowed.
static void vocabulary_add(struct vocabulary *v, const struct tokenizer *tokenizer, int32_t id)
{
    const char *bytes;
    size_t n, before = v->text.n;
    tokenizer_piece(tokenizer, id, &bytes, &n);
    if (tokenizer_is_special(tokenizer, id)) bytes_add(&v->text, "\xff", 1);
    bytes_add(&v->text, bytes, n);
    v->lengths[id] = (uint32_t)(v->text.n - before);
}

static enum status tokenizer_create(struct grammar_library *library, const struct tokenizer *tokenizer, int vocab_size,
                                    const int32_t *eos, int n_eos)
{
    struct vocabulary v = {.lengths = mem_alloc_array((size_t)vocab_size, sizeof *v.lengths)};
    for (int id = 0; id < vocab_size && id < tokenizer_vocab_size(tokenizer); id++)
        vocabulary_add(&v, tokenizer, id);
    struct llg_tokenizer_init init = {
        .struct_size = sizeof init,
        .vocab_size = (uint32_t)vocab_size,
        .tok_eos = (uint32_t)eos[0],
        .token_lens = v.lengths,
        .token_bytes = (const uint8_t *)v.text.data,
        .use_approximate_greedy_tokenize_fn = true, // applies to forced tokens only, which are not used
        .tok_eos_extra = (const uint32_t *)eos + 1,
        .tok_eos_extra_count = (uint32_t)n_eos - 1,
    };
    char error[256] = "";
    library->tokenizer = library->llg.llg_new_tokenizer_v2(&init, error, sizeof error);
    free(v.lengths);
    bytes_free(&v.text);
    return library->tokenizer ? STATUS_OK : status_fail(STATUS_UNSUPPORTED, "llguidance: %s", error);
}

static int32_t brace_find(const struct tokenizer *tokenizer, int vocab_size)
{
    for (int32_t id = 0; id < vocab_size && id < tokenizer_vocab_size(tokenizer); id++) {
        const char *bytes;
        size_t n;
        tokenizer_piece(tokenizer, id, &bytes, &n);
        if (n == 1 && *bytes == '{' && !tokenizer_is_special(tokenizer, id)) return id;
    }
    return -1;
}

enum status grammar_library_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                 const int32_t *eos, int n_eos, struct grammar_library **library_p)
{
    if (!n_eos) return status_fail(STATUS_UNSUPPORTED, "structured output: the model has no token that ends an answer");
    struct grammar_library *library = mem_alloc(sizeof *library);
    char *own = path ? NULL : default_path();
    enum status status = file_open(library, path ? path : own);
    if (status == STATUS_OK) status = functions_find(library, path ? path : own);
    free(own);
    if (status == STATUS_OK) status = tokenizer_create(library, tokenizer, vocab_size, eos, n_eos);
    if (status != STATUS_OK) {
        grammar_library_free(library);
        return status;
    }
    library->vocab_size = vocab_size;
    library->mask_words = (vocab_size + 31) / 32;
    library->brace = brace_find(tokenizer, vocab_size);
    *library_p = library;
    return STATUS_OK;
}

struct grammar_library *grammar_library_start(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                              const int32_t *eos, int n_eos)
{
    struct grammar_library *library = NULL;
    if (grammar_library_open(path, tokenizer, vocab_size, eos, n_eos, &library) == STATUS_OK) {
        log_event(LOG_INFO, "structured_output_ready", LOG_FIELD("llguidance", library->llg.llg_get_version()));
    } else {
        bool wanted = path || getenv(PATH_VARIABLE);
        log_event(wanted ? LOG_WARN : LOG_INFO, "structured_output_refused", LOG_REASON);
    }
    return library;
}

void grammar_library_free(struct grammar_library *library)
{
    if (!library) return;
    if (library->tokenizer) library->llg.llg_free_tokenizer(library->tokenizer);
    free(library);
}

// --- matchers

// Returns true if llguidance gave up because of a limit on its work or its memory, or because an assertion failed.
static bool is_excess(const char *error)
{
    static const char *const words[] = {"panic", "too big", "too large", "too many", "Too many", "max is", "fuel"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(error, words[i])) return true;
    return false;
}

void grammar_matcher_problem(const struct grammar_matcher *matcher, char *out, size_t out_bytes)
{
    const char *error = matcher->library->llg.llg_matcher_get_error(matcher->llg);
    if (!error) {
        snprintf(out, out_bytes, "llguidance gives no reason");
    } else if (strncmp(error, "NoExtension", strlen("NoExtension")) == 0) {
        snprintf(out, out_bytes, "the grammar has a dead end: the answer is not complete, but no token may follow");
    } else if (is_excess(error)) {
        snprintf(out, out_bytes, "the grammar takes more work than allowed: give it fewer or simpler parts");
    } else {
        snprintf(out, out_bytes, "%.*s", (int)strcspn(error, "\n"), error);
    }
}

static enum status fail(const struct grammar_matcher *matcher)
{
    char problem[512];
    grammar_matcher_problem(matcher, problem, sizeof problem);
    return status_fail(STATUS_INVALID, "%s", problem);
}

// llguidance follows references between rules by recursion: a chain of a few thousand rules overflows a stack of 8 MiB.
// So grammars are compiled on a stack of this size. The system allocates a page only at its first access.
enum { COMPILE_STACK_BYTES = 512 << 20 };

struct compilation {
    const struct grammar_library *library;
    const struct grammar_spec *spec;
    const struct llg_init *init;
    struct grammar_matcher *matcher;
};

static struct grammar_matcher *text_compile(const struct grammar_library *library, const struct llg_init *init,
                                            const char *kind, const char *text)
{
    struct grammar_matcher *matcher = mem_alloc(sizeof *matcher);
    matcher->library = library;
    matcher->llg = library->llg.llg_new_matcher(init, kind, text);
    return matcher;
}

// The arguments of member_is_possible().
struct members {
    const struct grammar_library *library;
    const struct llg_init *init;
};

// A member_possible_fn. The schema requires a member, so a name must follow the opening brace. If none is possible, the
// mask there has no token and fails. Blanks are switched off, because a mask would allow them.
static bool member_is_possible(void *arg, const json_t *schema)
{
    const struct members *m = arg;
    json_t *exact = json_copy((json_t *)schema);
    json_object_set_new(exact, "x-guidance", json_pack("{s:b}", "whitespace_flexible", 0));
    char *text = json_dumps(exact, JSON_COMPACT);
    struct grammar_matcher *matcher = text_compile(m->library, m->init, "json_schema", text);
    uint32_t *mask = mem_alloc_array((size_t)m->library->mask_words, sizeof *mask);
    bool dead = !m->library->llg.llg_matcher_get_error(matcher->llg) &&
                grammar_matcher_accept(matcher, &m->library->brace, 1) == STATUS_OK &&
                grammar_matcher_mask(matcher, mask) != STATUS_OK;
    grammar_matcher_free(matcher);
    free(mask);
    free(text);
    json_decref(exact);
    return !dead;
}

// Returns the text that is compiled for a schema. The caller frees it.
static char *schema_prepare(const struct members *members, const char *schema)
{
    json_t *root = NULL;
    bool has_patterns = strstr(schema, "\"patternProperties\"") && members->library->brace >= 0;
    if (has_patterns) root = json_loads(schema, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool changed = root && member_names_settle(root, member_is_possible, (void *)members);
    char *settled = changed ? json_dumps(root, JSON_COMPACT) : NULL;
    char *text = schema_bound_blanks(settled ? settled : schema);
    free(settled);
    json_decref(root);
    return text;
}

static void *compile(void *arg)
{
    static const char *const kinds[] = {
        [GRAMMAR_JSON_SCHEMA] = "json_schema", [GRAMMAR_REGEX] = "regex", [GRAMMAR_LARK] = "lark"};
    struct compilation *c = arg;
    const struct members members = {c->library, c->init};
    char *schema = c->spec->kind == GRAMMAR_JSON_SCHEMA ? schema_prepare(&members, c->spec->text) : NULL;
    c->matcher = text_compile(c->library, c->init, kinds[c->spec->kind], schema ? schema : c->spec->text);
    free(schema);
    return NULL;
}

static enum status compile_on_large_stack(struct compilation *c)
{
    pthread_t thread;
    int error = thread_create_with_stack(&thread, COMPILE_STACK_BYTES, compile, c);
    if (error) return status_fail(STATUS_UNAVAILABLE, "no thread to compile the grammar: %s", strerror(error));
    pthread_join(thread, NULL);
    if (!c->library->llg.llg_matcher_get_error(c->matcher->llg)) return STATUS_OK;
    enum status status = fail(c->matcher);
    grammar_matcher_free(c->matcher);
    return status;
}

enum status grammar_matcher_create(const struct grammar_library *library, const struct grammar_spec *spec,
                                   struct grammar_matcher **matcher_p)
{
    union {
        struct llg_init init;
        char room[1024]; // a later version 1.x of llguidance may set further members
    } u = {0};
    library->llg.llg_constraint_init_set_defaults(&u.init, library->tokenizer);
    u.init.log_buffer_level = u.init.log_stderr_level = 0;
    TRY(grammar_limits_set(spec, &u.init.limits));
    u.init.limits.verbose_errors = false; // error messages must not contain text of an answer
    struct compilation c = {.library = library, .spec = spec, .init = &u.init};
    TRY(compile_on_large_stack(&c));
    *matcher_p = c.matcher;
    return STATUS_OK;
}

struct grammar_matcher *grammar_matcher_copy(const struct grammar_matcher *matcher)
{
    struct grammar_matcher *copy = mem_alloc(sizeof *copy);
    copy->library = matcher->library;
    copy->llg = matcher->library->llg.llg_clone_matcher(matcher->llg);
    return copy;
}

void grammar_matcher_free(struct grammar_matcher *matcher)
{
    if (!matcher) return;
    if (matcher->llg) matcher->library->llg.llg_free_matcher(matcher->llg);
    free(matcher);
}

int grammar_matcher_mask_words(const struct grammar_matcher *matcher)
{
    return matcher->library->mask_words;
}

enum status grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask)
{
    size_t bytes = (size_t)matcher->library->mask_words * sizeof *mask;
    if (matcher->library->llg.llg_matcher_compute_mask_into(matcher->llg, mask, bytes) == 0) return STATUS_OK;
    return fail(matcher);
}

enum status grammar_matcher_accept(struct grammar_matcher *matcher, const int32_t *tokens, int n)
{
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= matcher->library->vocab_size)
            return status_fail(STATUS_INVALID, "token %d is outside the vocabulary", tokens[i]);
    if (matcher->library->llg.llg_matcher_consume_tokens(matcher->llg, (const uint32_t *)tokens, (size_t)n) == 0)
        return STATUS_OK;
    return fail(matcher);
}

bool grammar_matcher_is_complete(const struct grammar_matcher *matcher)
{
    return matcher->library->llg.llg_matcher_is_stopped(matcher->llg);
}
