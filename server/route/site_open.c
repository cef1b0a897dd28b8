/* DESIGN: the last look before bytes leave. The index has decided that a node may be served;
 * between that and open() somebody may have swapped a link or a directory on the way. So
 * the open itself must not leave the root (openat2 with RESOLVE_BENEATH), and what comes
 * out is compared with what was indexed: the same inode is the file that was judged.
 * Another one (written anew, or swapped) is judged now, by where the descriptor really is.
 * Absolute links are refused by RESOLVE_BENEATH also where they lead back inside, and old
 * kernels and strict sandboxes do not have the call: then open() and the same judgement. */
#include "route/real_path.h"
#include "route/site_index.h"
#include "route/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

static int open_beneath(int root, const char *path)
{
    struct open_how how = {
        .flags = FLAGS,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static bool judge(int fd)
{
    char path[PATH_MAX];
    struct str real = real_path_of(fd, path);
    if (real.len == 0) {
        return false;
    }
    pthread_mutex_lock(&tree.rules_lock);
    bool allowed = real_path_is_allowed(real);
    pthread_mutex_unlock(&tree.rules_lock);
    return allowed;
}

static int open_anyhow(const struct site_node *node)
{
    int root = atomic_load_explicit(&tree.root_fd, memory_order_acquire);
    if (root >= 0 && node->file.len > tree.root.len) {
        int fd = open_beneath(root, node->file.ptr + tree.root.len + 1);
        bool other_way = fd < 0 && (errno == EXDEV || errno == ENOSYS || errno == EPERM || errno == ENOENT);
        if (!other_way) {
            return fd;
        }
    }
    return open(node->file.ptr, FLAGS);
}

int site_open(const struct site_node *node, struct stat *st)
{
    int fd = open_anyhow(node);
    if (fd < 0) {
        return -1;
    }
    bool ok = fstat(fd, st) == 0 && S_ISREG(st->st_mode);
    bool known = ok && st->st_ino == node->inode && st->st_dev == node->device;
    if (!known && !(ok && judge(fd))) {
        close(fd);
        errno = EACCES;
        return -1;
    }
    return fd;
}
