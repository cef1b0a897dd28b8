/* Compiled endpoints: loaded from a private copy, so that overwriting the file in place never
 * changes code that runs, and dlopen never sees a path or an inode that it knows. */
#include "endpoint/build.h"
#include "endpoint/loader.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool build_so(struct build_job *job, struct build_result *result)
{
    result->compiler = "";
    struct stat st;
    struct dependency *d = dependencies_add(&result->dependencies, str_of(job->source), false);
    if (d == NULL) {
        build_fail(result, "out of memory");
        return false;
    }
    if (!job->settings->enable_so) {
        dependencies_hash(&result->dependencies);
        build_fail(result, "compiled endpoints are switched off (option Enable_SO)");
        return false;
    }
    if (!copy_file(job->source, job->output, d->hash)) {
        result->transient = true;
        int reason = errno;
        if (access(job->source, R_OK) != 0) {
            build_fail(result, "cannot read it: %s", strerror(errno));
        } else {
            build_fail(result, "cannot copy it to %s: %s", job->output, strerror(reason));
        }
        return false;
    }
    /* The hash is of what was copied; the times, of the file as it is now. */
    if (stat(job->source, &st) == 0) {
        d->size = (uint64_t)st.st_size;
        d->mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
        d->inode = (uint64_t)st.st_ino;
    }
    build_content_hash(result, job->source);
    result->ok = true;
    return true;
}

const struct loader loader_so = {.suffix = ".so", .source_label = "compiled endpoint", .build = build_so};
