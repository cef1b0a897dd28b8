#include "route/progress.h"

#include "observe/log.h"
#include "route/tree.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { PRINT_EVERY_MS = 200 };

static bool running;
static bool printed;
static bool terminal;
static uint64_t begun_ms;
static uint64_t last_ms;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* "104,233" */
static const char *grouped(uint64_t value, char out[32])
{
    char digits[24];
    size_t length = str_put_u64(digits, value);
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            out[at++] = ',';
        }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static void say(char *out, size_t size)
{
    char files[32];
    char directories[32];
    uint64_t f = atomic_load(&tree.files);
    uint64_t d = atomic_load(&tree.directories);
    snprintf(out, size, "%s file%s in %s director%s", grouped(f, files), f == 1 ? "" : "s", grouped(d, directories),
             d == 1 ? "y" : "ies");
}

void progress_begin(void)
{
    running = true;
    printed = false;
    terminal = isatty(STDERR_FILENO) == 1;
    begun_ms = now_ms();
    last_ms = begun_ms;
}

void progress_step(void)
{
    if (!running || !terminal) {
        return;
    }
    uint64_t now = now_ms();
    if (now - last_ms >= PRINT_EVERY_MS) {
        char text[128];
        say(text, sizeof text);
        fprintf(stderr, "\rkiln: %s ...", text);
        last_ms = now;
        printed = true;
    }
}

void progress_end(void)
{
    char text[128];
    say(text, sizeof text);
    if (printed) {
        fputs("\r\033[K", stderr);
    }
    running = false;
    log_notice("%s: %s, %.2f s", tree.settings.root.ptr, text, (double)(now_ms() - begun_ms) / 1000);
}
