#include "supervisor/worker_integrity.h"

#include "base/check.h"
#include "observe/log.h"
#include "supervisor/worker_config.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Less of these, and the worker cannot accept, write or start threads any more. */
static struct {
    __rlimit_resource_t which;
    const char *name;
    rlim_t soft;
} limits[] = {
    {RLIMIT_NOFILE, "RLIMIT_NOFILE", 0}, {RLIMIT_AS, "RLIMIT_AS", 0},       {RLIMIT_DATA, "RLIMIT_DATA", 0},
    {RLIMIT_FSIZE, "RLIMIT_FSIZE", 0},   {RLIMIT_NPROC, "RLIMIT_NPROC", 0}, {RLIMIT_CPU, "RLIMIT_CPU", 0},
};

static uid_t user;
static gid_t group;
static struct stat root;
static mode_t mask;

/* umask() tells it only by changing it. */
static bool read_mask(mode_t *out)
{
    char text[4096] = "";
    FILE *file = fopen("/proc/self/status", "re");
    unsigned value = 0;
    bool found = false;
    while (file != NULL && !found && fgets(text, sizeof text, file) != NULL) {
        found = sscanf(text, "Umask: %o", &value) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    *out = (mode_t)value;
    return found;
}

void worker_integrity_start(void)
{
    user = geteuid();
    group = getegid();
    if (stat("/", &root) != 0) {
        root = (struct stat){0};
    }
    if (!read_mask(&mask)) {
        mask = (mode_t)-1;
    }
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct rlimit now;
        limits[i].soft = getrlimit(limits[i].which, &now) == 0 ? now.rlim_cur : 0;
    }
}

static void judge_limits(struct buffer *why)
{
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct rlimit now;
        if (getrlimit(limits[i].which, &now) != 0 || now.rlim_cur >= limits[i].soft) {
            continue;
        }
        rlim_t lowered = now.rlim_cur;
        now.rlim_cur = limits[i].soft;
        now.rlim_max = now.rlim_max < limits[i].soft ? limits[i].soft : now.rlim_max; /* root may */
        if (setrlimit(limits[i].which, &now) == 0) {
            log_warning("an endpoint has lowered %s of the whole worker to %llu: it is put back", limits[i].name,
                        (unsigned long long)lowered);
        } else {
            buffer_printf(why, "an endpoint has lowered %s of the whole worker to %llu", limits[i].name,
                          (unsigned long long)lowered);
            return;
        }
    }
}

static void mend_mask(void)
{
    mode_t now;
    if (mask != (mode_t)-1 && read_mask(&now) && now != mask) {
        log_warning("an endpoint has changed the umask of the whole worker to %04o: it is put back", (unsigned)now);
        umask(mask);
    }
}

void worker_integrity_judge(struct buffer *why)
{
    struct stat now;
    mend_mask();
    judge_limits(why);
    if (why->len > 0) {
        return;
    }
    if (geteuid() != user || getegid() != group) {
        buffer_append_z(why, "an endpoint has changed the user of the whole worker");
    } else if (root.st_ino != 0 && stat("/", &now) == 0 && (now.st_ino != root.st_ino || now.st_dev != root.st_dev)) {
        buffer_append_z(why, "an endpoint has changed the root directory of the whole worker");
    } else if (!worker_config_listens()) {
        buffer_append_z(why, "an endpoint has closed sockets that the worker listens on");
    }
}
