/* C sources: libtcc in the helper, at once; what it rejects is tried with gcc or clang when one is
 * installed, whose messages are fuller as well. */
#include "endpoint/build.h"
#include "endpoint/loader.h"
#include "tools/cc/exit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 96 };

struct arguments {
    const char *items[ARGUMENTS_MAX];
    char texts[ARGUMENTS_MAX][64];
    char *owned[ARGUMENTS_MAX];
    size_t count;
    size_t owned_count;
};

static void add(struct arguments *a, const char *text)
{
    if (a->count < ARGUMENTS_MAX - 1) {
        a->items[a->count++] = text;
        a->items[a->count] = NULL;
    }
}

static void add_number(struct arguments *a, const char *name, unsigned long long value)
{
    char *text = a->texts[a->count];
    snprintf(text, sizeof a->texts[0], "%s=%llu", name, value);
    add(a, text);
}

static void add_joined(struct arguments *a, const char *name, const char *value, const char *end)
{
    char *joined = NULL;
    if (a->owned_count < ARGUMENTS_MAX && asprintf(&joined, "%s%s%s", name, value, end) >= 0) {
        a->owned[a->owned_count++] = joined;
        add(a, joined);
    }
}

static void helper_arguments(struct arguments *a, const struct build_job *job)
{
    const struct settings *s = job->settings;
    *a = (struct arguments){.count = 0};
    add(a, s->helper);
    add(a, "compile");
    add(a, "--report=3");
    add_number(a, "--cpu", (unsigned long long)ceil(s->timeout));
    add_number(a, "--wall", (unsigned long long)ceil(s->timeout * WALL_FACTOR) + 1);
    add_number(a, "--memory", s->memory);
    add_number(a, "--file-size", 64ull * 1024 * 1024);
    add_joined(a, "--output=", job->output, "");
    add_joined(a, "--prelude=", s->sdk_include, "/kiln_tcc.h");
    add_joined(a, "-I", s->sdk_include, "");
    for (size_t i = 0; i < s->include_count && i < 64; i++) {
        add_joined(a, "-I", s->include_paths[i], "");
    }
    add(a, job->source);
}

/* What the helper said in words of its own: it could not even begin. */
static void fail_with_stray(struct build_result *result, const struct buffer *stray)
{
    struct str text = buffer_str(stray);
    while (text.len > 0 && text.ptr[text.len - 1] == '\n') {
        text.len--;
    }
    build_fail(result, "%.*s",
               STR_ARG(text.len > 0 ? str_first(text, 500) : STR("the compiler gave up without a message")));
}

/* True when another compiler may do better: libtcc rejected the source or crashed, rather than
 * ran out of what it is allowed. */
static bool compile_with_tcc(struct build_job *job, struct build_result *result)
{
    struct arguments arguments;
    helper_arguments(&arguments, job);
    struct helper_run run = {
        .argv = arguments.items, .temp_dir = "/tmp", .may_wait = true, .wall = job->settings->timeout * WALL_FACTOR};
    result->compiler = "tcc";
    bool worth_another = false;
    if (!helper_run(&run)) {
        result->transient = true;
        build_fail(result, "cannot start %s: %s", job->settings->helper, strerror(run.spawn_error));
    } else {
        struct buffer stray = BUFFER_EMPTY;
        char text[256];
        result->ok = report_parse(buffer_str(&run.output), &result->diagnostics, &result->dependencies, &stray);
        bool no_room = WIFEXITED(run.status) && WEXITSTATUS(run.status) == CC_EXIT_NOT_WRITTEN;
        const char *death = result->ok ? NULL : helper_death(&run, job->settings, text, sizeof text);
        if (death != NULL) {
            result->transient = run.stopped;
            build_fail(result, "%s", death);
        } else if (!result->ok && no_room) {
            result->transient = true;
            fail_with_stray(result, &stray);
        } else if (!result->ok && diagnostics_first_error(&result->diagnostics) == NULL) {
            fail_with_stray(result, &stray);
        }
        worth_another =
            !result->ok && !no_room && !run.stopped && !run.timed_out &&
            (!WIFSIGNALED(run.status) || WTERMSIG(run.status) == SIGSEGV || WTERMSIG(run.status) == SIGABRT);
        buffer_free(&stray);
    }
    if (!result->ok) {
        char temporary[PATH_MAX + 8];
        snprintf(temporary, sizeof temporary, "%s.tmp", job->output);
        unlink(temporary);
    }
    buffer_free(&run.output);
    for (size_t i = 0; i < arguments.owned_count; i++) {
        free(arguments.owned[i]);
    }
    return worth_another;
}

static bool mentions(const struct diagnostics *d, const char *text)
{
    for (size_t i = 0; i < d->count; i++) {
        if (strstr(d->items[i].message, text) != NULL) {
            return true;
        }
    }
    return false;
}

/* A refusal of ours, and what broke a limit, is final. */
static bool is_final(const struct build_result *result)
{
    return mentions(&result->diagnostics, "#pragma comment(option") || mentions(&result->diagnostics, "memory full") ||
           mentions(&result->diagnostics, "is not a regular file") ||
           mentions(&result->diagnostics, "is larger than 16 MB");
}

/* What libtcc looked for in vain stays known, whichever compiler's verdict counts. */
static void keep_dependencies(struct build_result *to, const struct build_result *from)
{
    for (size_t i = 0; i < from->dependencies.count; i++) {
        const struct dependency *d = &from->dependencies.items[i];
        struct dependency *added = dependencies_add(&to->dependencies, str_of(d->path), d->missing);
        if (added != NULL && added->inode == 0) {
            char *path = added->path;
            *added = *d;
            added->path = path;
        }
    }
}

static void try_native(struct build_job *job, struct build_result *result)
{
    struct build_result other = {0};
    if (native_build(job, &other, 1)) {
        keep_dependencies(&other, result);
        build_result_free(result);
        *result = other;
        return;
    }
    /* Of two verdicts "no", the one that knows more lines. */
    const struct diagnostic *error = diagnostics_first_error(&other.diagnostics);
    if (error != NULL && error->line > 0 && !other.transient) {
        keep_dependencies(&other, result);
        build_result_free(result);
        *result = other;
        return;
    }
    build_result_free(&other);
}

static bool settings_usable(const struct settings *s, struct build_result *result)
{
    const char *lack = settings_lack(s);
    if (lack != NULL) {
        build_fail(result, "%s", lack);
    } else if (!s->enable_c) {
        build_fail(result, "C sources are switched off (option Enable_C)");
    } else {
        return true;
    }
    return false;
}

static bool build_c(struct build_job *job, struct build_result *result)
{
    const struct settings *s = job->settings;
    if (!settings_usable(s, result)) {
        dependencies_add(&result->dependencies, str_of(job->source), false);
        dependencies_hash(&result->dependencies);
        return false;
    }
    if (s->compiler != NULL && cache_lookup(job->cache, job->source, s->native_fingerprint, job->output, result)) {
        result->optimized = true;
        result->compiler = s->compiler_kind == COMPILER_CLANG ? "clang" : "gcc";
        return true;
    }
    if (cache_lookup(job->cache, job->source, s->tcc_fingerprint, job->output, result)) {
        result->compiler = "tcc";
        return true;
    }
    bool worth_another = compile_with_tcc(job, result);
    if (!result->ok && result->dependencies.count == 0) {
        dependencies_add(&result->dependencies, str_of(job->source), false);
    }
    if (worth_another && s->compiler != NULL && !is_final(result)) {
        try_native(job, result);
    }
    if (!dependencies_hash(&result->dependencies) && result->ok) {
        result->transient = result->moved = true;
        build_fail(result, "the source changed while it was compiled");
    }
    build_content_hash(result, job->source);
    return result->ok;
}

const struct loader loader_c = {.suffix = "._c", .source_label = "C source", .build = build_c};
