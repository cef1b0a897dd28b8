#include "route/look.h"

#include "route/names.h"
#include "route/real_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- directories ------------------------------------------------------------------------------ */

const char *path_of(const struct dir *dir)
{
    return dir->cell != NULL ? dir->cell->path : tree.settings.root.ptr;
}

void view_close(struct view *view)
{
    if (view->fd >= 0) {
        close(view->fd);
    }
    view->fd = -1;
    view->dir = NULL;
}

static bool holds_private(struct str real)
{
    for (size_t i = 0; i < tree.settings.private_count; i++) {
        struct str path = tree.settings.private[i];
        if (str_starts(path, real) && str_find_last(path, '/') == real.len) {
            return true;
        }
    }
    return false;
}

bool view_open(struct view *view, struct dir *dir)
{
    int fd = open(path_of(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return false;
    }
    view->real = real_path_of(fd, view->real_path);
    if (view->real.len == 0 && realpath(path_of(dir), view->real_path) != NULL) {
        view->real = str_of(view->real_path);
    }
    bool allowed = real_path_is_inside(view->real) ? !real_path_is_dotted(view->real) : tree.settings.symlinks_outside;
    if (!allowed || view->real.len == 0) {
        close(fd);
        errno = EXDEV;
        return false;
    }
    view->fd = fd;
    view->dir = dir;
    view->has_private = holds_private(view->real);
    return true;
}

/* The directory is one of its own parents, by way of a link. */
static bool is_loop(const struct dir *parent, const struct stat *st)
{
    for (const struct dir *dir = parent; dir != NULL; dir = dir->parent) {
        if (dir->inode == st->st_ino && dir->device == st->st_dev) {
            return true;
        }
    }
    return false;
}

/* ---- names ------------------------------------------------------------------------------------ */

static void classify(const struct view *view, struct str name, struct entry *entry)
{
    if (entry->kind == NODE_DIRECTORY) {
        return;
    }
    enum name_class class = name_classify(&tree.settings, name);
    if (class == NAME_ENDPOINT && view->dir->cell != NULL) {
        entry->kind = NODE_ENDPOINT;
        return;
    }
    if (entry->target != NULL && class != NAME_SOURCE) {
        /* A plain name that leads to a source shows the source. */
        enum name_class led = name_classify(&tree.settings, base_name(str_of(entry->target)));
        if (led == NAME_ENDPOINT || led == NAME_SOURCE) {
            class = NAME_SOURCE;
        } else if (led == NAME_COMPANION) {
            class = NAME_COMPANION;
        }
    }
    entry->hidden = entry->hidden || class == NAME_SOURCE;
    entry->companion = class == NAME_COMPANION;
}

static void follow_link(const struct view *view, struct str name, struct entry *entry, char target[PATH_MAX])
{
    entry->is_link = true;
    entry->hidden = true;
    entry->st = (struct stat){0};
    int fd = openat(view->fd, name.ptr, O_PATH | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    struct str real = fstat(fd, &entry->st) == 0 ? real_path_of(fd, target) : STR_NONE;
    close(fd);
    if (real.len == 0) {
        return;
    }
    entry->target = target;
    entry->symlink_out = !real_path_is_inside(real) && !tree.settings.symlinks_outside;
    entry->hidden = view->dir->nesting >= SYMLINK_NESTING || (real_path_is_inside(real) && real_path_is_dotted(real)) ||
                    (!real_path_is_inside(real) && name_is_dotted(base_name(real))) ||
                    settings_path_is_private(&tree.settings, real);
}

static bool is_own_file(const struct view *view, struct str name)
{
    char path[PATH_MAX];
    if (!view->has_private || view->real.len + 1 + name.len >= sizeof path) {
        return false;
    }
    memcpy(path, view->real.ptr, view->real.len);
    path[view->real.len] = '/';
    memcpy(path + view->real.len + 1, name.ptr, name.len);
    return settings_path_is_private(&tree.settings, (struct str){path, view->real.len + 1 + name.len});
}

bool look(const struct view *view, struct str name, struct entry *entry, char target[PATH_MAX])
{
    *entry = (struct entry){.kind = NODE_FILE};
    if (fstatat(view->fd, name.ptr, &entry->st, AT_SYMLINK_NOFOLLOW) != 0) {
        return false;
    }
    if (S_ISLNK(entry->st.st_mode)) {
        follow_link(view, name, entry, target);
    } else {
        entry->hidden = is_own_file(view, name);
    }
    bool dangling = entry->is_link && entry->target == NULL;
    if (S_ISDIR(entry->st.st_mode)) {
        entry->kind = NODE_DIRECTORY;
        bool by_link = entry->is_link || view->dir->nesting > 0;
        entry->hidden = entry->hidden || (by_link && is_loop(view->dir, &entry->st));
    } else if (!S_ISREG(entry->st.st_mode) && !dangling) {
        return false;
    }
    if (!dangling && !entry->symlink_out) {
        classify(view, name, entry);
    }
    return true;
}
