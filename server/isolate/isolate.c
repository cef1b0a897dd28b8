/* The home of isolated endpoints, for the rest of the server (endpoint/home.h). */
#include "base/check.h"
#include "base/file.h"
#include "endpoint/home.h"
#include "isolate/host_process.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SOURCES_MAX = 100 };

/* ---- references ------------------------------------------------------------------------------ */

struct isolate *isolate_of(const struct module *module)
{
    return MAGIC_CAST(struct isolate, module->away, ISOLATE_MAGIC);
}

void isolate_ref(struct isolate *isolate)
{
    atomic_fetch_add_explicit(&isolate->references, 1, memory_order_relaxed);
}

void isolate_unref(struct isolate *isolate)
{
    if (atomic_fetch_sub(&isolate->references, 1) != 1) {
        return;
    }
    close(isolate->object);
    cJSON_Delete(isolate->sources);
    isolate->magic = 0;
    free(isolate->file);
    free(isolate);
}

void host_ref(struct host *host)
{
    atomic_fetch_add_explicit(&host->references, 1, memory_order_relaxed);
}

void host_unref(struct host *host)
{
    if (atomic_fetch_sub(&host->references, 1) == 1) {
        host_free(host);
    }
}

/* ---- the home ----------------------------------------------------------------------------------------------- */

static struct isolate *create(struct module *module)
{
    size_t size = sizeof(struct isolate) + module->loops * sizeof(struct berth);
    struct isolate *isolate = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (isolate == NULL) {
        return NULL;
    }
    memset(isolate, 0, size);
    isolate->magic = ISOLATE_MAGIC;
    atomic_init(&isolate->references, 1);
    isolate->module = module;
    isolate->loops = module->loops;
    isolate->object = -1;
    list_init(&isolate->node);
    for (unsigned i = 0; i < module->loops; i++) {
        relay_berth_init(&isolate->berths[i], isolate);
    }
    isolate->file = strdup(module->endpoint->file.ptr);
    return isolate;
}

/* A copy that nobody can change, and that a process of another user may map. */
static int copy_object(const char *path)
{
    int from = open(path, O_RDONLY | O_CLOEXEC);
    int to = memfd_create("kiln endpoint", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char bytes[65536];
    ssize_t len = -1;
    while (from >= 0 && to >= 0 && (len = read(from, bytes, sizeof bytes)) > 0) {
        if (!fd_write_all(to, bytes, (size_t)len)) {
            len = -1;
            break;
        }
    }
    bool ok = len == 0 && fcntl(to, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    if (from >= 0) {
        close(from);
    }
    if (!ok && to >= 0) {
        close(to);
    }
    return ok ? to : -1;
}

static bool home_open(struct module *module, const struct elf_facts *facts, struct build_result *result)
{
    if (facts->has_socket) {
        build_fail(result, "kiln_socket cannot be had in an isolated endpoint: WebSockets end in the server's own "
                           "process (take the endpoint out of Isolate, or kiln_socket out of the endpoint)");
        return false;
    }
    struct isolate *isolate = create(module);
    module->away = isolate;
    module->entry.flags = facts->stamp[3];
    if (isolate == NULL || isolate->file == NULL || (isolate->object = copy_object(module->path)) < 0) {
        result->transient = true;
        build_fail(result, "cannot make a copy of it for its process: %s", strerror(errno));
        return false;
    }
    isolate->sources = cJSON_CreateArray();
    for (size_t i = 0; i < result->dependencies.count && i < SOURCES_MAX; i++) {
        if (!result->dependencies.items[i].missing) {
            cJSON_AddItemToArray(isolate->sources, cJSON_CreateString(result->dependencies.items[i].path));
        }
    }
    return manager_add(isolate, result);
}

static void home_unload(struct module *module)
{
    (void)module; /* by its host, at its end */
}

static bool home_close(struct module *module)
{
    struct isolate *isolate = module->away;
    if (isolate == NULL) {
        return true;
    }
    manager_remove(isolate);
    isolate_unref(isolate);
    module->away = NULL;
    return true;
}

const struct home home_isolated = {.name = "a process of its own",
                                   .open = home_open,
                                   .unload = home_unload,
                                   .close = home_close,
                                   .start = relay_start};
