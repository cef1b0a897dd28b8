/* DESIGN: gcc or clang, when installed, serve twice: for the optimised build in the background, and
 * when libtcc rejects a source (its C is a little smaller). Two steps, so that the libraries named
 * by `#pragma comment(lib, ...)` are those of the branches that count: preprocess, then compile
 * the preprocessed text, whose line markers keep messages and debug information true. Both run
 * under kiln-cc's limits. Flags keep the meaning that a source has under libtcc: no assumption
 * from strict aliasing or signed overflow may change it when the optimised build takes over. */
#include "base/file.h"
#include "endpoint/build.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 256, PREPROCESSED_MAX = 64 * 1024 * 1024 };

struct native_job {
    const char *source;
    const struct settings *settings;
    double patience;
    char work[PATH_MAX + 16]; /* directory of everything that is temporary; gcc's own files too */
    char preprocessed[PATH_MAX + 32];
    char rule[PATH_MAX + 32];
    char object[PATH_MAX + 32];
};

struct command {
    const char *arguments[ARGUMENTS_MAX];
    size_t count;
    char limits[4][64];
    char *owned[ARGUMENTS_MAX];
    size_t owned_count;
};

static void add(struct command *c, const char *argument)
{
    if (c->count < ARGUMENTS_MAX - 1) {
        c->arguments[c->count++] = argument;
        c->arguments[c->count] = NULL;
    }
}

static void add_all(struct command *c, const char *const *arguments)
{
    for (; *arguments != NULL; arguments++) {
        add(c, *arguments);
    }
}

static void add_joined(struct command *c, const char *a, const char *b)
{
    char *joined = NULL;
    if (c->owned_count < ARGUMENTS_MAX && asprintf(&joined, "%s%s", a, b) >= 0) {
        c->owned[c->owned_count++] = joined;
        add(c, joined);
    }
}

/* kiln-cc limit ... -- compiler ... */
static void begin(struct command *c, const struct settings *s, double patience)
{
    *c = (struct command){0};
    add(c, s->helper);
    add(c, "limit");
    snprintf(c->limits[0], sizeof c->limits[0], "--cpu=%u", (unsigned)(s->timeout * patience) + 1);
    snprintf(c->limits[1], sizeof c->limits[1], "--wall=%u", (unsigned)(s->timeout * patience * WALL_FACTOR) + 2);
    snprintf(c->limits[2], sizeof c->limits[2], "--memory=%llu", (unsigned long long)s->memory);
    snprintf(c->limits[3], sizeof c->limits[3], "--file-size=%u", 64u * 1024 * 1024);
    for (size_t i = 0; i < 4; i++) {
        add(c, c->limits[i]);
    }
    add(c, "--");
    add(c, s->compiler);
}

static void end(struct command *c)
{
    for (size_t i = 0; i < c->owned_count; i++) {
        free(c->owned[i]);
    }
}

/* Runs it and takes its messages; false when it failed, with at least one error in the result. */
static bool run_command(struct command *c, struct native_job *job, struct build_result *result, const char *what)
{
    double patience = job->patience;
    struct helper_run run = {
        .argv = c->arguments,
        .temp_dir = job->work,
        .wall = job->settings->timeout * patience * WALL_FACTOR,
    };
    if (!helper_run(&run)) {
        result->transient = true;
        build_fail(result, "cannot start %s: %s", c->arguments[0], strerror(run.spawn_error));
        return false;
    }
    char text[256];
    compiler_output_parse(buffer_str(&run.output), &result->diagnostics);
    const char *death = helper_death(&run, job->settings, text, sizeof text);
    bool ok = death == NULL && WIFEXITED(run.status) && WEXITSTATUS(run.status) == 0;
    if (death != NULL) {
        result->transient = run.stopped;
        build_fail(result, "%s", death);
    } else if (!ok && diagnostics_first_error(&result->diagnostics) == NULL) {
        build_fail(result, "%s failed: %.*s", what, (int)(run.output.len < 500 ? run.output.len : 500),
                   run.output.len > 0 ? run.output.data : "no message");
    }
    buffer_free(&run.output);
    return ok;
}

static void add_include_options(struct command *c, const struct settings *s)
{
    add(c, "-include");
    add_joined(c, s->sdk_include, "/kiln_tcc.h");
    add_joined(c, "-I", s->sdk_include);
    for (size_t i = 0; i < s->include_count; i++) {
        add_joined(c, "-I", s->include_paths[i]);
    }
}

static bool preprocess(struct native_job *job, struct build_result *result)
{
    static const char *const options[] = {"-E", "-x", "c", "-std=gnu11", "-D_GNU_SOURCE", "-fdiagnostics-color=never",
                                          NULL};
    struct command c;
    begin(&c, job->settings, job->patience);
    add_all(&c, options);
    add_include_options(&c, job->settings);
    add(&c, "-MMD");
    add(&c, "-MT");
    add(&c, "source"); /* the source's own name might confuse who reads the rule */
    add(&c, "-MF");
    add(&c, job->rule);
    add(&c, "-o");
    add(&c, job->preprocessed);
    add(&c, job->source);
    bool ok = run_command(&c, job, result, "the preprocessor");
    end(&c);
    return ok;
}

static bool compile(struct native_job *job, struct build_result *result, struct str libraries)
{
    static const char *const options[] = {"-x",
                                          "cpp-output",
                                          "-std=gnu11",
                                          "-O2",
                                          "-g",
                                          "-fPIC",
                                          "-shared",
                                          "-fno-omit-frame-pointer",
                                          "-fwrapv",
                                          "-fno-strict-aliasing",
                                          "-fno-delete-null-pointer-checks",
                                          "-fno-semantic-interposition",
                                          "-fstack-clash-protection", /* no frame skips the guard of its stack */
                                          "-pipe",
                                          "-Wall",
                                          "-Wno-unused",
                                          "-Wno-pragmas",
                                          "-Wno-unknown-pragmas",
                                          "-Werror=implicit-function-declaration",
                                          "-fdiagnostics-color=never",
                                          "-Wl,-Bsymbolic",
                                          NULL};
    struct command c;
    begin(&c, job->settings, job->patience);
    add_all(&c, options);
    add(&c, job->settings->compiler_kind == COMPILER_CLANG ? "-fno-caret-diagnostics" : "-fno-diagnostics-show-caret");
    add(&c, "-o");
    add(&c, job->object);
    add(&c, job->preprocessed);
    add(&c, "-x");
    add(&c, "none");
    for (size_t i = 0; i < libraries.len; i += strlen(libraries.ptr + i) + 1) {
        add(&c, libraries.ptr + i);
    }
    bool ok = run_command(&c, job, result, "the compiler");
    end(&c);
    return ok;
}

/* The files that the preprocessor read, as they are now. */
static bool take_dependencies(struct native_job *job, struct build_result *result)
{
    struct buffer text = BUFFER_EMPTY;
    if (file_read(job->rule, 1024 * 1024, &text)) {
        make_rule_parse(buffer_str(&text), &result->dependencies);
    }
    buffer_free(&text);
    dependencies_add(&result->dependencies, str_of(job->source), false); /* no rule comes of a fatal error */
    if (dependencies_hash(&result->dependencies)) {
        return true;
    }
    result->transient = result->moved = true;
    build_fail(result, "the source changed while it was compiled");
    return false;
}

static bool source_is_as_before(const struct native_job *job, struct build_result *result,
                                const unsigned char before[HASH_SIZE])
{
    unsigned char now[HASH_SIZE];
    if (hash_file(job->source, now) && memcmp(now, before, HASH_SIZE) == 0) {
        return true;
    }
    result->transient = result->moved = true;
    build_fail(result, "the source changed while it was compiled");
    return false;
}

/* The preprocessor does not tell what it saw: an edit while it ran would give the build of the old source the hash
 * of the new one. */
static bool build_steps(struct native_job *job, struct build_result *result, const char *output)
{
    unsigned char before[HASH_SIZE] = {0};
    hash_file(job->source, before);
    bool preprocessed = preprocess(job, result);
    if (!take_dependencies(job, result) || !preprocessed || !source_is_as_before(job, result, before)) {
        return false;
    }
    struct buffer text = BUFFER_EMPTY;
    struct buffer libraries = BUFFER_EMPTY;
    bool ok = file_read(job->preprocessed, PREPROCESSED_MAX, &text);
    if (ok) {
        pragma_libraries(buffer_str(&text), &libraries);
        ok = compile(job, result, buffer_str(&libraries));
    }
    if (ok && rename(job->object, output) != 0) {
        build_fail(result, "cannot write %s: %s", output, strerror(errno));
        ok = false;
    }
    buffer_free(&text);
    buffer_free(&libraries);
    return ok;
}

bool native_build(struct build_job *job, struct build_result *result, double patience)
{
    *result = (struct build_result){.compiler = job->settings->compiler_kind == COMPILER_CLANG ? "clang" : "gcc"};
    struct native_job native = {.source = job->source, .settings = job->settings, .patience = patience};
    snprintf(native.work, sizeof native.work, "%s.work", job->output);
    snprintf(native.preprocessed, sizeof native.preprocessed, "%s/source.i", native.work);
    snprintf(native.rule, sizeof native.rule, "%s/source.d", native.work);
    snprintf(native.object, sizeof native.object, "%s/object.so", native.work);
    if (mkdir(native.work, 0700) != 0) {
        result->transient = true;
        build_fail(result, "cannot make %s: %s", native.work, strerror(errno));
        return false;
    }
    result->ok = build_steps(&native, result, job->output);
    directory_remove(native.work, 0);
    result->optimized = result->ok;
    build_content_hash(result, job->source);
    return result->ok;
}
