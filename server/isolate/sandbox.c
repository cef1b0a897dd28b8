#include "isolate/sandbox.h"

#include "base/sanitize.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CPU_GRACE_S = 30, CAPABILITIES = 64, HOSTS_OF_A_USER = 16 };

static bool limit(int which, const char *name, uint64_t soft, uint64_t hard, struct buffer *why)
{
    struct rlimit now;
    struct rlimit wanted = {.rlim_cur = (rlim_t)soft, .rlim_max = (rlim_t)hard};
    if (getrlimit((__rlimit_resource_t)which, &now) == 0 && now.rlim_max < wanted.rlim_max) {
        wanted.rlim_max = now.rlim_max; /* what we were given may be less */
        wanted.rlim_cur = wanted.rlim_cur < now.rlim_max ? wanted.rlim_cur : now.rlim_max;
    }
    if (setrlimit((__rlimit_resource_t)which, &wanted) != 0) {
        buffer_printf(why, "cannot set %s: %s", name, strerror(errno));
        return false;
    }
    return true;
}

static bool set_limits(const struct host_orders *orders, struct buffer *why)
{
    bool ok = limit(RLIMIT_CORE, "RLIMIT_CORE", 0, 0, why) &&
              limit(RLIMIT_NOFILE, "RLIMIT_NOFILE", orders->files, orders->files, why) &&
              limit(RLIMIT_FSIZE, "RLIMIT_FSIZE", orders->file_size, orders->file_size, why) &&
              limit(RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", 65536, 65536, why);
    if (ok && orders->cpu > 0) {
        ok = limit(RLIMIT_CPU, "RLIMIT_CPU", orders->cpu, orders->cpu + CPU_GRACE_S, why);
    }
    if (ok && orders->count_processes) {
        uint64_t most = orders->threads * HOSTS_OF_A_USER;
        ok = limit(RLIMIT_NPROC, "RLIMIT_NPROC", most, most, why);
    }
#if !defined(KILN_ASAN) && !defined(KILN_TSAN) /* their shadow memory is address space, too */
    ok = ok && limit(RLIMIT_AS, "RLIMIT_AS", orders->memory, orders->memory, why);
#endif
    return ok;
}

/* While there are rights to give up. */
static void forbid_capabilities(void)
{
    for (unsigned long i = 0; i < CAPABILITIES; i++) {
        prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    prctl(PR_SET_SECUREBITS,
          SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED, 0, 0, 0);
}

static bool drop_capabilities(struct buffer *why)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    if (syscall(SYS_capset, &header, none) != 0) {
        buffer_printf(why, "cannot give up capabilities: %s", strerror(errno));
        return false;
    }
    return true;
}

static bool become(const struct host_orders *orders, struct buffer *why)
{
    if (!orders->other_user) {
        if (geteuid() == 0) {
            setgroups(0, NULL);
        }
        return true;
    }
    if (setgroups(0, NULL) != 0 || setresgid(orders->gid, orders->gid, orders->gid) != 0 ||
        setresuid(orders->uid, orders->uid, orders->uid) != 0) {
        buffer_printf(why, "cannot become user %u and group %u: %s", (unsigned)orders->uid, (unsigned)orders->gid,
                      strerror(errno));
        return false;
    }
    if (orders->uid != 0 && (setuid(0) == 0 || seteuid(0) == 0)) {
        buffer_append_z(why, "the rights of root cannot be given up for good");
        return false;
    }
    return true;
}

bool sandbox_enter(const struct host_orders *orders, struct buffer *why)
{
    if (!set_limits(orders, why)) {
        return false;
    }
    forbid_capabilities();
    if (!become(orders, why) || !drop_capabilities(why)) {
        return false;
    }
    /* Not before: a change of user clears it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        buffer_printf(why, "cannot give up the right to gain rights: %s", strerror(errno));
        return false;
    }
    /* A change of user clears this, too, and then even /proc/self cannot be read, which finds the names for the
     * stack of a crash. Others of its kind cannot trace it: Landlock keeps them apart. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return sandbox_landlock(orders, why) && sandbox_seccomp(orders, why);
}
