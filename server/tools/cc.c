/* DESIGN: kiln-cc, the compiler helper. The server starts one process of it per build and
 * never compiles itself: libtcc keeps stale globals after an error, crashes on hostile input,
 * loops for ever on other input, and must not run in a process with threads.
 *
 *   kiln-cc compile OPTIONS --output=FILE SOURCE    C source -> shared object, by libtcc
 *   kiln-cc limit OPTIONS -- PROGRAM ARGUMENTS...   runs gcc or clang under the same limits
 *   kiln-cc wait                                    reads one of these commands from standard
 *       input, each word ended by NUL; started ahead so that no request waits for the start
 *
 * What it guarantees: it stays within the limits given (processor, memory, file size, wall
 * clock), ends when its parent ends, and either renames a whole object to --output or leaves
 * nothing. The report is written to a descriptor, one record a line, fields separated by tabs
 * (escaped: \\ \t \n), each flushed at once so that a crash loses nothing:
 *   D severity file line message   a diagnostic; severity error or warning, line 0: none
 *   F size mtime_ns inode path     a file that was read
 *   M path                         a file that was looked for in vain
 *   E ok|failed                    the last line; absent when the compiler died
 *
 * Every file that libtcc opens passes cc/files.c. */
#include "cc/files.h"

#include "cc/exit.h"
#include "cc/object.h"

#include <errno.h>
#include <fcntl.h>
#include <libtcc.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_RECORDS = 4000, MAX_DIAGNOSTICS = 100, MAX_TEXT = 2000, MAX_INCLUDES = 64 };

struct options {
    const char *output;
    const char *source;
    const char *prelude;
    const char *includes[MAX_INCLUDES];
    unsigned include_count;
    rlim_t cpu;
    rlim_t memory;
    rlim_t file_size;
    unsigned wall;
};

static int report_fd = -1;
static unsigned records;
static unsigned diagnostics;
static unsigned errors;
static bool compiling;
void __real_tcc_set_options(TCCState *state, const char *text);
void __wrap_tcc_set_options(TCCState *state, const char *text);
/* libtcc's own: reports at the place being read and leaves the compilation. */
_Noreturn void _tcc_error(const char *format, ...);

/* ---- report ---------------------------------------------------------------------------------- */

struct record {
    char text[8192];
    size_t len;
};

static void record_char(struct record *r, char c)
{
    if (r->len < sizeof r->text - 1) {
        r->text[r->len++] = c;
    }
}

static void record_field(struct record *r, const char *text, size_t len)
{
    if (r->len > 0) {
        record_char(r, '\t');
    }
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\\' || c == '\t' || c == '\n') {
            record_char(r, '\\');
            c = c == '\t' ? 't' : c == '\n' ? 'n' : c;
        }
        record_char(r, c);
    }
}

static void record_number(struct record *r, unsigned long long value)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%llu", value);
    record_field(r, text, (size_t)len);
}

static void record_send(struct record *r)
{
    if (report_fd < 0 || records >= MAX_RECORDS) {
        return;
    }
    records++;
    r->text[r->len++] = '\n';
    const char *from = r->text;
    while (r->len > 0) {
        ssize_t n = write(report_fd, from, r->len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            _exit(1);
        }
        from += n;
        r->len -= (size_t)n;
    }
}

static void report_diagnostic(const char *severity, const char *file, size_t file_len, unsigned long line,
                              const char *message)
{
    if (diagnostics++ >= MAX_DIAGNOSTICS && strcmp(severity, "error") != 0) {
        return;
    }
    struct record r = {.len = 0};
    record_field(&r, "D", 1);
    record_field(&r, severity, strlen(severity));
    record_field(&r, file, file_len);
    record_number(&r, line);
    record_field(&r, message, strnlen(message, MAX_TEXT));
    record_send(&r);
}

static int exit_code = 1;

static _Noreturn void finish(bool ok)
{
    struct record r = {.len = 0};
    records = 0;
    record_field(&r, "E", 1);
    record_field(&r, ok ? "ok" : "failed", ok ? 2 : 6);
    record_send(&r);
    _exit(ok ? 0 : exit_code);
}

static _Noreturn void fail(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (report_fd < 0) {
        fprintf(stderr, "kiln-cc: %s\n", text);
    }
    report_diagnostic("error", "", 0, 0, text);
    finish(false);
}

/* ---- limits ------------------------------------------------------------------------------------ */

static void limit(int resource, rlim_t value)
{
    if (value > 0) {
        /* At the hard limit of processor time comes SIGKILL; SIGXCPU before it tells why. */
        struct rlimit limits = {value, resource == RLIMIT_CPU ? value + 1 : value};
        struct rlimit now;
        if (getrlimit((__rlimit_resource_t)resource, &now) == 0 && now.rlim_max < value) {
            limits.rlim_cur = limits.rlim_max = now.rlim_max;
        }
        setrlimit((__rlimit_resource_t)resource, &limits);
    }
}

static void apply_limits(const struct options *o)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    limit(RLIMIT_CPU, o->cpu);
    limit(RLIMIT_AS, o->memory);
    limit(RLIMIT_FSIZE, o->file_size);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    umask(077);
    /* Both outlive exec, so that gcc is bounded even when the server is gone. */
    signal(SIGALRM, SIG_DFL);
    alarm(o->wall);
}

/* ---- what libtcc reads --------------------------------------------------------------------------- */

static void report_missing(const char *path)
{
    struct record r = {.len = 0};
    record_field(&r, "M", 1);
    record_field(&r, path, strlen(path));
    record_send(&r);
}

static void report_file(const char *path, const struct stat *st)
{
    struct record r = {.len = 0};
    record_field(&r, "F", 1);
    record_number(&r, (unsigned long long)st->st_size);
    record_number(&r, (unsigned long long)st->st_mtim.tv_sec * 1000000000ULL + (unsigned long long)st->st_mtim.tv_nsec);
    record_number(&r, (unsigned long long)st->st_ino);
    record_field(&r, path, strlen(path));
    record_send(&r);
}

static const struct files_events file_events = {.on_file = report_file, .on_missing = report_missing};

/* libtcc calls this for `#pragma comment(option, ...)`, where it would wait for itself for ever. */
void __wrap_tcc_set_options(TCCState *state, const char *text)
{
    if (compiling) {
        _tcc_error("#pragma comment(option, ...) is not allowed in an endpoint");
    }
    __real_tcc_set_options(state, text);
}

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* ---- diagnostics ---------------------------------------------------------------------------------- */

/* "file:line: error: text", after lines "In file included from file:line:"; or "tcc: error: text". */
static void on_message(void *unused, const char *text)
{
    (void)unused;
    while (starts(text, "In file included from ")) {
        const char *end = strchr(text, '\n');
        if (end == NULL) {
            break;
        }
        text = end + 1;
    }
    const char *warning = strstr(text, ": warning: ");
    const char *error = strstr(text, ": error: ");
    bool is_warning = warning != NULL && (error == NULL || warning < error);
    const char *mark = is_warning ? warning : error;
    const char *message = mark == NULL ? text : mark + (is_warning ? strlen(": warning: ") : strlen(": error: "));
    size_t file_len = mark == NULL ? 0 : (size_t)(mark - text);
    unsigned long line = 0;
    for (size_t i = file_len; i > 0; i--) {
        if (text[i - 1] == ':') {
            line = strtoul(text + i, NULL, 10);
            file_len = i - 1;
            break;
        }
    }
    if (line == 0) {
        file_len = 0; /* "tcc: error: ...": no place in the source */
    }
    if (is_warning && starts(message, "implicit declaration of function")) {
        is_warning = false; /* it would end as an undefined symbol, or as a truncated pointer */
    }
    char with_reason[MAX_TEXT];
    /* libtcc says "not found" of a file that was refused. */
    if (!is_warning && files_refusal()[0] != '\0') {
        const char *not_found = strstr(message, " not found");
        int len = not_found != NULL ? (int)(not_found - message) : (int)strnlen(message, 1200);
        snprintf(with_reason, sizeof with_reason, "%.*s: %s", len, message, files_refusal());
        message = with_reason;
    }
    errors += !is_warning;
    report_diagnostic(is_warning ? "warning" : "error", text, file_len, line, message);
}

/* ---- compile ---------------------------------------------------------------------------------------- */

/* Where libtcc looks by itself; wrong entries cost time and nothing else. */
static const char *const system_directories[] = {
    "/usr/local/include",
    "/usr/local/include/x86_64-linux-gnu",
    "/usr/local/include/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/tcc/include",
    "/usr/lib/aarch64-linux-gnu/tcc/include",
};

static void include_prelude(TCCState *state, const char *prelude)
{
    char option[2 * 4096 + 32];
    size_t n = (size_t)snprintf(option, sizeof option, "-include \"");
    for (const char *p = prelude; *p != '\0' && n < sizeof option - 4; p++) {
        if (*p == '"' || *p == '\\') {
            option[n++] = '\\';
        }
        option[n++] = *p;
    }
    option[n++] = '"';
    option[n] = '\0';
    tcc_set_options(state, option);
}

/* libtcc touches 2 MB for a small source. Getting them from the kernel at once, instead of by
 * 400 page faults, saves a third of the whole time. */
static void prepare_heap(void)
{
    enum { WARM = 3 * 1024 * 1024, HUGE_BLOCK = 1 << 30 };
    mallopt(M_MMAP_THRESHOLD, HUGE_BLOCK);
    mallopt(M_TRIM_THRESHOLD, HUGE_BLOCK);
    char *block = malloc(WARM);
    if (block != NULL) {
        madvise((void *)((uintptr_t)block & ~(uintptr_t)4095), WARM, MADV_POPULATE_WRITE);
        free(block);
    }
}

static _Noreturn void compile(const struct options *o)
{
    if (o->output == NULL || o->source == NULL) {
        fail("compile needs --output and a source");
    }
    TCCState *state = tcc_new();
    if (state == NULL) {
        fail("out of memory");
    }
    tcc_set_error_func(state, NULL, on_message);
    tcc_set_options(state, "-std=c11 -g -Wl,-Bsymbolic -x c -D_GNU_SOURCE -D__STDC_NO_VLA__ -D__STDC_NO_ATOMICS__ "
                           "-D__STDC_NO_THREADS__");
    if (o->prelude != NULL) {
        include_prelude(state, o->prelude);
    }
    files_start(&file_events);
    for (unsigned i = 0; i < o->include_count; i++) {
        tcc_add_include_path(state, o->includes[i]);
        files_add_directory(o->includes[i]);
    }
    for (size_t i = 0; i < sizeof system_directories / sizeof system_directories[0]; i++) {
        files_add_directory(system_directories[i]);
    }
    tcc_set_output_type(state, TCC_OUTPUT_DLL);
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", o->output) >= sizeof temporary) {
        fail("the name of the output is too long");
    }
    compiling = true;
    bool ok = tcc_add_file(state, o->source) == 0 && errors == 0;
    compiling = false;
    ok = ok && tcc_output_file(state, temporary) == 0 && errors == 0;
    if (ok && (!object_finish(temporary) || rename(temporary, o->output) != 0)) {
        int reason = errno;
        unlink(temporary);
        exit_code = CC_EXIT_NOT_WRITTEN;
        fail("cannot write %s: %s", o->output, strerror(reason));
    }
    if (!ok) {
        unlink(temporary);
        if (errors == 0) {
            fail("the compiler gave up without a message");
        }
    }
    finish(ok);
}

/* ---- command line --------------------------------------------------------------------------------------- */

static bool take(const char *argument, const char *name, const char **value)
{
    size_t len = strlen(name);
    if (strncmp(argument, name, len) != 0) {
        return false;
    }
    *value = argument + len;
    return true;
}

/* Returns the index of the first argument that is no option. */
static int parse_options(struct options *o, int argc, char **argv)
{
    int i = 2;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value;
        if (strcmp(argv[i], "--") == 0) {
            return i + 1;
        }
        if (take(argv[i], "--report=", &value)) {
            report_fd = atoi(value);
            fcntl(report_fd, F_SETFD, FD_CLOEXEC);
        } else if (take(argv[i], "--output=", &value)) {
            o->output = value;
        } else if (take(argv[i], "--prelude=", &value)) {
            o->prelude = value;
        } else if (take(argv[i], "--cpu=", &value)) {
            o->cpu = strtoul(value, NULL, 10);
        } else if (take(argv[i], "--memory=", &value)) {
            o->memory = strtoul(value, NULL, 10);
        } else if (take(argv[i], "--file-size=", &value)) {
            o->file_size = strtoul(value, NULL, 10);
        } else if (take(argv[i], "--wall=", &value)) {
            o->wall = (unsigned)strtoul(value, NULL, 10);
        } else if (take(argv[i], "-I", &value)) {
            if (o->include_count == MAX_INCLUDES) {
                fail("more than %d include directories", MAX_INCLUDES);
            }
            o->includes[o->include_count++] = value;
        } else {
            fail("unknown option %s", argv[i]);
        }
    }
    return i;
}

static int run(int argc, char **argv)
{
    struct options o = {0};
    int first = parse_options(&o, argc, argv);
    if (first >= argc) {
        fail("nothing to do");
    }
    apply_limits(&o);
    if (strcmp(argv[1], "limit") == 0) {
        execv(argv[first], argv + first);
        fprintf(stderr, "kiln-cc: error: cannot run %s: %s\n", argv[first], strerror(errno));
        return 127;
    }
    if (strcmp(argv[1], "compile") != 0) {
        fail("unknown command %s", argv[1]);
    }
    o.source = argv[first];
    compile(&o);
}

/* The server closes its end without a word when it stops. */
static int wait_for_command(void)
{
    enum { COMMAND_MAX = 512 * 1024, WORDS_MAX = 256 };
    static char text[COMMAND_MAX + 1];
    static char *words[WORDS_MAX + 2] = {"kiln-cc"};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare_heap();
    size_t len = 0;
    while (len < COMMAND_MAX) {
        ssize_t n = read(0, text + len, COMMAND_MAX - len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        len += (size_t)n;
    }
    int count = 1;
    for (size_t i = 0; i < len && count <= WORDS_MAX; i += strlen(text + i) + 1) {
        words[count++] = text + i;
    }
    return count < 3 ? 0 : run(count, words);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("kiln-cc " KILN_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "wait") == 0) {
        return wait_for_command();
    }
    if (argc < 3) {
        fputs("usage: kiln-cc compile OPTIONS --output=FILE SOURCE\n"
              "       kiln-cc limit OPTIONS -- PROGRAM ARGUMENTS...\n"
              "       kiln-cc wait\n"
              "Started by kiln for each build; not for people.\n",
              stderr);
        return 2;
    }
    if (strcmp(argv[1], "compile") == 0) {
        prepare_heap();
    }
    return run(argc, argv);
}
