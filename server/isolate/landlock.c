/* Which files and which ports: Landlock, by its system calls, since neither the C library nor every kernel's
 * headers know them. What a kernel of an older ABI cannot restrict is left out; seccomp.c stands for
 * the network. */
#include "isolate/sandbox.h"

#include "observe/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

enum { RULESET_VERSION = 1, RULE_PATH = 1, RULE_PORT = 2 };

/* As the kernel has them (include/uapi/linux/landlock.h); a member for each ABI that added one. */
struct ruleset {
    uint64_t files;
    uint64_t ports; /* ABI 4 */
    uint64_t scopes; /* ABI 6 */
};
struct path_rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));
struct port_rule {
    uint64_t allowed;
    uint64_t port;
};

#define FS_EXECUTE (UINT64_C(1) << 0)
#define FS_WRITE_FILE (UINT64_C(1) << 1)
#define FS_READ_FILE (UINT64_C(1) << 2)
#define FS_READ_DIR (UINT64_C(1) << 3)
#define FS_REMOVE_DIR (UINT64_C(1) << 4)
#define FS_REMOVE_FILE (UINT64_C(1) << 5)
#define FS_MAKE_DIR (UINT64_C(1) << 7)
#define FS_MAKE_REG (UINT64_C(1) << 8)
#define FS_REFER (UINT64_C(1) << 13) /* ABI 2 */
#define FS_TRUNCATE (UINT64_C(1) << 14) /* ABI 3 */
#define FS_IOCTL_DEV (UINT64_C(1) << 15) /* ABI 5 */
#define FS_ABI_1 ((UINT64_C(1) << 13) - 1)
#define NET_BIND (UINT64_C(1) << 0) /* ABI 4 */
#define NET_CONNECT (UINT64_C(1) << 1)
#define SCOPE_ALL (UINT64_C(3)) /* ABI 6: abstract sockets, signals */

#define READ (FS_READ_FILE | FS_READ_DIR)
/* No links, sockets, pipes or devices. */
#define WRITE (FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG | FS_REFER | FS_TRUNCATE)
#define FILE_RIGHTS (FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE)

/* What programs need of a system, and everybody may read: libraries, time zones, certificates. */
static const struct {
    const char *path;
    uint64_t allowed;
} common[] = {
    {"/lib", READ},
    {"/lib32", READ},
    {"/lib64", READ},
    {"/usr/lib", READ},
    {"/usr/lib32", READ},
    {"/usr/lib64", READ},
    {"/usr/local/lib", READ},
    {"/usr/share/zoneinfo", READ},
    {"/usr/share/locale", READ},
    {"/usr/share/i18n", READ},
    {"/usr/share/ca-certificates", READ},
    {"/etc/ssl/certs", READ},
    {"/etc/ld.so.cache", READ},
    {"/etc/localtime", READ},
    {"/etc/timezone", READ},
    {"/etc/nsswitch.conf", READ},
    {"/etc/hosts", READ},
    {"/etc/resolv.conf", READ},
    {"/dev/null", READ | FS_WRITE_FILE},
    {"/dev/zero", READ},
    {"/dev/urandom", READ},
    {"/dev/random", READ},
    {"/sys/devices/system/cpu", READ},
    {"/proc/self", READ}, /* of this process alone */
    {"/proc/self/exe", READ}, /* names for a crash's stack */
};

/* False with errno. */
static bool allow_at(int ruleset, int fd, uint64_t allowed)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode)) {
        allowed &= FILE_RIGHTS;
    }
    struct path_rule rule = {.allowed = allowed, .parent = fd};
    bool ok = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH, &rule, 0) == 0;
    int error = errno;
    close(fd);
    errno = error;
    return ok;
}

static bool allow(int ruleset, const char *path, int flags, uint64_t allowed)
{
    int fd = open(path, O_PATH | O_CLOEXEC | flags);
    return fd >= 0 && allow_at(ruleset, fd, allowed);
}

static bool allow_own(int ruleset, const struct host_orders *orders, uint64_t handled, struct buffer *why)
{
    char data[PATH_MAX + 8];
    uint64_t rights = (orders->write ? READ | WRITE : READ) & handled;
    if (!allow(ruleset, orders->directory, O_DIRECTORY, rights)) {
        buffer_printf(why, "user %u cannot use %s: %s", (unsigned)geteuid(), orders->directory, strerror(errno));
        return false;
    }
    if (!allow(ruleset, orders->temp, O_DIRECTORY | O_NOFOLLOW, (READ | WRITE) & handled)) {
        buffer_printf(why, "user %u cannot use %s (option TempDir): %s", (unsigned)geteuid(), orders->temp,
                      strerror(errno));
        return false;
    }
    snprintf(data, sizeof data, "%s/.data", orders->directory);
    int fd = open(data, O_PATH | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    if (fd >= 0 && !allow_at(ruleset, fd, (READ | WRITE) & handled)) {
        buffer_printf(why, "cannot allow %s: %s", data, strerror(errno));
        return false;
    }
    return true;
}

static bool allow_ports(int ruleset, const struct host_orders *orders)
{
    for (unsigned i = 0; i < orders->port_count; i++) {
        struct port_rule rule = {.allowed = NET_CONNECT, .port = orders->ports[i]};
        if (syscall(SYS_landlock_add_rule, ruleset, RULE_PORT, &rule, 0) != 0) {
            return false;
        }
    }
    return true;
}

static bool restrict_to(const struct host_orders *orders, long abi, struct buffer *why)
{
    struct ruleset rights = {.files = FS_ABI_1};
    rights.files |= (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) | (abi >= 5 ? FS_IOCTL_DEV : 0);
    rights.ports = abi >= 4 ? NET_BIND | NET_CONNECT : 0;
    rights.scopes = abi >= 6 ? SCOPE_ALL : 0;
    size_t size = abi >= 6 ? sizeof rights : abi >= 4 ? offsetof(struct ruleset, scopes) : sizeof rights.files;
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &rights, size, 0);
    if (ruleset < 0) {
        buffer_printf(why, "Landlock refuses its rules: %s", strerror(errno));
        return false;
    }
    bool ok = allow_own(ruleset, orders, rights.files, why);
    for (size_t i = 0; ok && i < sizeof common / sizeof common[0]; i++) {
        allow(ruleset, common[i].path, 0, common[i].allowed & rights.files); /* what is not there is not needed */
    }
    ok = ok && (abi < 4 || allow_ports(ruleset, orders));
    if (ok && syscall(SYS_landlock_restrict_self, ruleset, 0) != 0) {
        buffer_printf(why, "Landlock cannot be applied: %s", strerror(errno));
        ok = false;
    }
    close(ruleset);
    return ok;
}

bool sandbox_landlock(const struct host_orders *orders, struct buffer *why)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);
    const char *lacks = abi < 1 ? "has no Landlock, so that it can read every file that its user can"
                        : abi < 4 && orders->port_count > 0
                            ? "has a Landlock that does not know ports, so that it can connect to all of them"
                            : NULL;
    if (lacks != NULL && !orders->without_landlock) {
        buffer_printf(
            why,
            "this kernel %s; use a newer one (6.7 has all of it, with landlock in the boot option lsm=), or set "
            "IsolateWithoutLandlock to run it all the same",
            lacks);
        return false;
    }
    if (lacks != NULL) {
        log_warning("the endpoints in %s run with less isolation (IsolateWithoutLandlock): this kernel %s",
                    orders->directory, lacks);
    }
    return abi < 1 || restrict_to(orders, abi, why);
}
