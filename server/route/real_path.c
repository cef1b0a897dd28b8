#include "route/real_path.h"

#include "route/names.h"
#include "route/tree.h"

#include <stdio.h>
#include <unistd.h>

struct str real_path_of(int fd, char out[PATH_MAX])
{
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, out, PATH_MAX - 1);
    if (length <= 0 || out[0] != '/') {
        return STR_NONE;
    }
    out[length] = '\0';
    return (struct str){out, (size_t)length};
}

bool real_path_is_inside(struct str real)
{
    return str_starts(real, tree.real_root) && (real.len == tree.real_root.len || real.ptr[tree.real_root.len] == '/');
}

bool real_path_is_dotted(struct str real)
{
    struct str rest = str_from(real, tree.real_root.len);
    struct str part;
    for (unsigned depth = 0; str_split_next(&rest, '/', &part); depth++) {
        bool well_known = str_eq(part, STR(".well-known")) && depth <= 2;
        if (name_is_dotted(part) && !str_starts(part, STR("..")) && !well_known) {
            return true;
        }
    }
    return false;
}

bool real_path_is_allowed(struct str real)
{
    if (!real_path_is_inside(real)) {
        return tree.settings.symlinks_outside && !name_is_dotted(base_name(real)) &&
               name_classify(&tree.settings, base_name(real)) != NAME_SOURCE;
    }
    enum name_class class = name_classify(&tree.settings, base_name(real));
    return !real_path_is_dotted(real) && class != NAME_SOURCE && class != NAME_ENDPOINT &&
           !settings_path_is_private(&tree.settings, real);
}
