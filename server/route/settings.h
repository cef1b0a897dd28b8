/* What the index takes from the config: copied, so that no snapshot is held, and looked at
 * by the writer alone. */
#ifndef KILN_ROUTE_SETTINGS_H
#define KILN_ROUTE_SETTINGS_H

#include "base/map.h"
#include "base/str.h"
#include "config/config.h"

struct index_settings {
    int layout; /* SITE_... */
    struct str root; /* as configured: may lead through links; no trailing slash */
    struct str *index; /* indexPriority */
    size_t index_count;
    size_t max_depth; /* slashes in a URL */
    size_t max_length; /* bytes of a URL's path */
    bool symlinks_outside;
    bool run_c;
    bool run_so;
    bool build_ahead;
    struct map shown; /* companion extensions with a type of their own in ExtTypes */
    struct map forwarded; /* extensions of ForwardExt */
    struct str *private; /* real paths of the server's own files and directories */
    size_t private_count;
};

/* False with a log line when the web root cannot be one. */
bool settings_take(struct index_settings *settings, const struct config *config);
void settings_free(struct index_settings *settings);
/* `real` is one of the server's own: PidFile, SessionsDir, CacheDir, logs, keys, config. */
bool settings_path_is_private(const struct index_settings *settings, struct str real);

#endif
