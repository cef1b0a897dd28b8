/* DESIGN: one loaded build. Checked by its bytes (elf_file.c) before dlopen runs anything of it,
 * then loaded under a path that was never loaded before, RTLD_LOCAL and RTLD_NOW.
 *
 * Use counting costs a request two plain stores: each loop has a counter of its own, on a cache
 * line of its own, written by that loop alone. A module is retired when a newer one has taken its
 * place: after a grace period of base/epoch.h no loop can take it any more, and when then
 * the sum of the counters is zero it is unloaded, on the janitor thread: kiln_unload, dlclose,
 * the private file removed. The file stays until then, so that gdb and addr2line find it.
 *
 * What runs here of the author's runs under a guard (crash.h). Constructors are first tried in a
 * child process (trial.c): a crash inside of dlopen would leave the dynamic linker locked.
 * A module that crashed is left where it is, mapped and unfinished, until the process ends. */
#include "base/check.h"
#include "base/epoch.h"
#include "base/sanitize.h"
#include "endpoint/crash_report.h"
#include "endpoint/endpoint.h"
#include "endpoint/home.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "supervisor/worker.h"

#define KILN_NO_STAMP
#include <dlfcn.h>
#include <kiln.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list draining = {&draining, &draining}; /* no loop can take them any more */
static unsigned retired; /* not yet in `draining` */

/* ---- judging --------------------------------------------------------------------------------------- */

static bool check_verdict(enum elf_verdict verdict, const struct elf_facts *facts, struct build_result *result)
{
    switch (verdict) {
    case ELF_GOOD: return true;
    case ELF_UNREADABLE:
        result->transient = true;
        build_fail(result, "the file cannot be read");
        return false;
    case ELF_NOT_ELF: build_fail(result, "not an ELF file: this is no compiled endpoint"); return false;
    case ELF_TRUNCATED:
        result->transient = true;
        build_fail(result, "the file is not complete: parts that its ELF header promises are missing");
        return false;
    case ELF_WRONG_CLASS:
        build_fail(result, "built for another processor: it is no 64-bit little-endian ELF file");
        return false;
    case ELF_WRONG_MACHINE:
        build_fail(result, "built for another processor: %s", elf_machine_name(facts->machine));
        return false;
    case ELF_NOT_SHARED: build_fail(result, "not a shared object: it is an object file or a program"); return false;
    case ELF_MALFORMED:
    default: build_fail(result, "a malformed ELF file without a usable symbol table"); return false;
    }
}

static bool check_stamp(const struct elf_facts *facts, struct build_result *result)
{
    if (!facts->has_run && !facts->has_socket) {
        build_fail(result, "it has no kiln_run function (and no kiln_socket)");
        return false;
    }
    if (!facts->has_stamp || facts->stamp[0] != KILN_ABI_MAGIC) {
        build_fail(result,
                   facts->has_stamp
                       ? "its kiln_module_abi stamp is damaged: no kiln_module_abi of any SDK begins with %#x"
                       : "it has no kiln_module_abi stamp, which says what SDK it was built for",
                   facts->stamp[0]);
        return false;
    }
    if (facts->stamp[1] != KILN_SDK_MAJOR || facts->stamp[2] > KILN_SDK_MINOR) {
        build_fail(result, "built for SDK %u.%u, this server has %d.%d", facts->stamp[1], facts->stamp[2],
                   KILN_SDK_MAJOR, KILN_SDK_MINOR);
        return false;
    }
    return true;
}

/* dlopen's words without the private path. */
static void fail_with_dlerror(struct build_result *result, const char *path)
{
    const char *text = dlerror();
    if (text == NULL) {
        text = "the dynamic linker gave no reason";
    }
    size_t len = strlen(path);
    if (strncmp(text, path, len) == 0 && strncmp(text + len, ": ", 2) == 0) {
        text += len + 2;
    }
    result->transient = true; /* a library may be installed; nobody watches for that */
    build_fail(result, "%s", text);
}

/* ---- loading ------------------------------------------------------------------------------------------ */

static struct module *create(struct endpoint *endpoint, const char *path, unsigned loops)
{
    struct module *module = aligned_alloc(64, sizeof *module + loops * sizeof module->uses[0]);
    if (module == NULL) {
        return NULL;
    }
    memset(module, 0, sizeof *module + loops * sizeof module->uses[0]);
    module->magic = MODULE_MAGIC;
    module->endpoint = endpoint;
    module->loops = loops;
    module->path = strdup(path);
    size_t slash = str_find_last(endpoint->file, '/');
    module->sdk.file = endpoint->file.ptr;
    module->sdk.directory = strndup(endpoint->file.ptr, slash != SIZE_MAX ? slash : 0);
    list_init(&module->node);
    list_init(&module->sibling);
    if (module->path == NULL || module->sdk.directory == NULL) {
        free(module->path);
        free((char *)module->sdk.directory);
        free(module);
        return NULL;
    }
    atomic_fetch_add(&endpoint->modules, 1);
    figures_module_begins(module);
    return module;
}

static void *symbol(struct module *module, bool present, const char *name)
{
    return present ? dlsym(module->handle, name) : NULL;
}

struct load_call {
    struct module *module;
    int (*load)(const struct kiln_module *);
};

static int call_dlopen(void *arg)
{
    struct module *module = arg;
    module->handle = dlopen(module->path, RTLD_NOW | RTLD_LOCAL);
    return 0;
}

static int call_load(void *arg)
{
    struct load_call *call = arg;
    int refusal = call->load(&call->module->sdk);
    return refusal == CRASH_CAUGHT ? -1 : refusal;
}

static int call_unload(void *arg)
{
    struct module *module = arg;
    module->unload(&module->sdk);
    return 0;
}

static int call_dlclose(void *arg)
{
    struct module *module = arg;
    dlclose(module->handle);
    return 0;
}

/* A crash inside of the dynamic linker: its lock stays taken, in this worker nothing can be loaded or
 * unloaded any more. */
static _Atomic bool linker_is_locked;

/* What waited for this module waits until the worker ends. */
static void lost_with_module(struct crash_guard *guard)
{
    struct module *module = CONTAINER_OF(guard, struct module, guard);
    struct crash_scene scene = {module->endpoint, &guard->report, module->path, "while it was loaded or unloaded"};
    module_crashed(module);
    crash_explain(&scene, NULL, NULL);
}

/* What it returned, or CRASH_CAUGHT after it was logged; then `place` says where, unless NULL. */
static int run_guarded(struct module *module, int (*fn)(void *), void *arg, const char *doing,
                       struct crash_place *place)
{
    crash_guard_ready(&module->guard);
    module->guard.lost = lost_with_module;
    int returned = crash_run(&module->guard, fn, arg);
    if (crash_is_child()) {
        _exit(EXIT_FAILURE);
    }
    if (returned == CRASH_CAUGHT) {
        linker_is_locked = linker_is_locked || fn == call_dlopen || fn == call_dlclose;
        module_crashed(module);
        struct crash_scene scene = {module->endpoint, &module->guard.report, module->path, doing};
        crash_explain(&scene, NULL, place);
        crash_report_done(&module->guard.report);
    }
    return returned;
}

static bool close_here(struct module *module)
{
    if (module->handle != NULL && !module->crashed && !linker_is_locked) {
        run_guarded(module, call_dlclose, module, "in a destructor", NULL);
    }
    return !module->crashed;
}

static void destroy(struct module *module)
{
    if (!module->entry.home->close(module)) {
        return; /* its file goes with the cache directory of this process */
    }
    unlink(module->path);
    figures_module_ends(module);
    atomic_fetch_sub(&module->endpoint->modules, 1);
    module->magic = 0;
    free(module->path);
    free((char *)module->sdk.directory);
    free(module);
}

static void fail_with_crash(struct build_result *result, const struct module *module, const char *doing,
                            struct crash_place *place)
{
    char what[256];
    char text[320];
    crash_describe(&module->guard.report, what, sizeof what);
    snprintf(text, sizeof text, "crashed %s: %s", doing, what);
    result->transient = true; /* for as long as Quarantine lets it try */
    diagnostics_add(&result->diagnostics, SEVERITY_ERROR, str_of(place->file != NULL ? place->file : ""), place->line,
                    str_of(text));
    free(place->file);
    result->ok = false;
}

struct text_search {
    uintptr_t address;
    struct crash_text *text;
};

/* The list is read under the loader's own lock, which ThreadSanitizer does not know. */
KILN_NO_SANITIZE static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct text_search *search = arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0 && search->address >= low &&
            search->address - low < part->p_memsz) {
            *search->text = (struct crash_text){low, low + part->p_memsz};
            return 1;
        }
    }
    return 0;
}

static bool open_untried(struct module *module, const struct elf_facts *facts, struct build_result *result)
{
    struct crash_place place = {0};
    if (linker_is_locked) {
        result->transient = true;
        build_fail(result, "another endpoint crashed while it was loaded, and this worker can load no more");
        return false;
    }
    if (run_guarded(module, call_dlopen, module, "in a constructor", &place) == CRASH_CAUGHT) {
        fail_with_crash(result, module, "in a constructor", &place);
        return false;
    }
    if (module->handle == NULL) {
        fail_with_dlerror(result, module->path);
        return false;
    }
    /* Each name is in the module itself: dlsym alone would also find one in a library it uses. */
    *(void **)&module->entry.run = symbol(module, facts->has_run, "kiln_run");
    *(void **)&module->entry.socket = symbol(module, facts->has_socket, "kiln_socket");
    *(void **)&module->unload = symbol(module, facts->has_unload, "kiln_unload");
    module->entry.flags = facts->stamp[3];
    uintptr_t entry = module->entry.run != NULL ? (uintptr_t)module->entry.run : (uintptr_t)module->entry.socket;
    struct text_search search = {entry, &module->text};
    dl_iterate_phdr(find_text, &search);
    struct load_call call = {.module = module};
    *(void **)&call.load = symbol(module, facts->has_load, "kiln_load");
    if (entry == 0) {
        build_fail(result, "it has no kiln_run function that can be called");
        return false;
    }
    int refusal = call.load != NULL ? run_guarded(module, call_load, &call, "in its kiln_load", &place) : 0;
    if (refusal == CRASH_CAUGHT) {
        fail_with_crash(result, module, "in its kiln_load", &place);
        return false;
    }
    if (refusal != 0) {
        result->transient = true;
        build_fail(result, "its kiln_load returned %d and so refused to be loaded", refusal);
        return false;
    }
    return true;
}

static bool try_first(const struct module *module, const struct elf_facts *facts, struct build_result *result)
{
    bool made_here = module->endpoint->loader != &loader_so;
    struct settings *settings = facts->has_constructors || !made_here ? builder_settings_ref() : NULL;
    if (settings == NULL) {
        return true;
    }
    bool good = trial_load(module->path, facts->has_constructors, settings, result);
    settings_unref(settings);
    return good;
}

static bool open_here(struct module *module, const struct elf_facts *facts, struct build_result *result)
{
    return try_first(module, facts, result) && open_untried(module, facts, result);
}

struct module *module_load(struct endpoint *endpoint, const char *path, unsigned loops, const struct home *home,
                           struct build_result *result)
{
    struct elf_facts facts;
    enum elf_verdict verdict = elf_inspect(path, &facts);
    if (!check_verdict(verdict, &facts, result) || !check_stamp(&facts, result)) {
        unlink(path);
        return NULL;
    }
    struct module *module = create(endpoint, path, loops);
    if (module == NULL) {
        unlink(path);
        build_fail(result, "out of memory");
        return NULL;
    }
    memcpy(module->content, result->content, HASH_SIZE);
    module->entry.home = home;
    if (!home->open(module, &facts, result)) {
        destroy(module);
        return NULL;
    }
    return module;
}

/* ---- in use --------------------------------------------------------------------------------------------- */

void module_release(struct module *module, unsigned loop_index)
{
    struct module_use *use = &module->uses[loop_index];
    uint64_t ended = atomic_load_explicit(&use->ended, memory_order_relaxed);
    CHECK(ended < atomic_load_explicit(&use->begun, memory_order_relaxed));
    /* Release: all that the request did in the module happens before it is unmapped. */
    atomic_store_explicit(&use->ended, ended + 1, memory_order_release);
}

const struct module_entry *module_entry(const struct module *module)
{
    return &module->entry;
}

const struct crash_text *module_text(const struct module *module)
{
    return &module->text;
}

const char *module_path(const struct module *module)
{
    return module->path;
}

bool module_is_replaced(const struct module *module)
{
    const struct module *current = atomic_load_explicit(&module->endpoint->current, memory_order_acquire);
    return current != NULL && current != module && memcmp(current->content, module->content, HASH_SIZE) != 0;
}

struct endpoint *module_endpoint(const struct module *module)
{
    return module->endpoint;
}

void module_crashed_elsewhere(struct module *module)
{
    struct endpoint *e = module->endpoint;
    atomic_fetch_add_explicit(&e->crashes, 1, memory_order_relaxed);
    metric_add(METRIC_ENDPOINT_CRASHES, 1);
    char build[HASH_HEX + 1];
    hash_hex(module->content, build);
    worker_crashed(e->file.ptr, build);
}

void module_crashed(struct module *module)
{
    atomic_store(&module->crashed, true);
    module_crashed_elsewhere(module);
    worker_replace("an endpoint crashed");
}

bool module_is_used(const struct module *module)
{
    for (unsigned i = 0; i < module->loops; i++) {
        uint64_t ended = atomic_load_explicit(&module->uses[i].ended, memory_order_acquire);
        if (atomic_load_explicit(&module->uses[i].begun, memory_order_relaxed) != ended) {
            return true;
        }
    }
    return false;
}

/* ---- the end --------------------------------------------------------------------------------------------- */

static void after_grace(void *arg)
{
    struct module *module = arg;
    pthread_mutex_lock(&lock);
    list_append(&draining, &module->node);
    retired--;
    pthread_mutex_unlock(&lock);
}

void module_retire(struct module *module)
{
    pthread_mutex_lock(&lock);
    retired++;
    pthread_mutex_unlock(&lock);
    epoch_retire(after_grace, module);
}

static void unload_here(struct module *module)
{
    if (module->unload != NULL) {
        run_guarded(module, call_unload, module, "in its kiln_unload", NULL);
    }
}

const struct home home_here = {
    .name = "the worker", .open = open_here, .unload = unload_here, .close = close_here, .start = endpoint_start_here};
const struct home home_alone = {.name = "its own process",
                                .open = open_untried,
                                .unload = unload_here,
                                .close = close_here,
                                .start = endpoint_start_here};

static void unload(struct module *module)
{
    if (module->crashed) {
        log_debug("%s: an old build has crashed and stays mapped", module->endpoint->file.ptr);
        return;
    }
    module->entry.home->unload(module);
    if (module->crashed) {
        return;
    }
    log_debug("%s: an old build is unloaded", module->endpoint->file.ptr);
    destroy(module);
}

unsigned modules_drain(void)
{
    struct list unused = {&unused, &unused};
    pthread_mutex_lock(&lock);
    unsigned left = retired;
    LIST_EACH(node, &draining) {
        if (module_is_used(LIST_ENTRY(node, struct module, node))) {
            left++;
        } else {
            list_remove(node);
            list_append(&unused, node);
        }
    }
    pthread_mutex_unlock(&lock);
    LIST_EACH(node, &unused) {
        list_remove(node);
        unload(LIST_ENTRY(node, struct module, node));
    }
    return left;
}

void modules_finish(void)
{
    epoch_reclaim();
    unsigned left = modules_drain();
    if (left > 0) {
        log_warning("%u builds of endpoints are still used by requests and stay loaded", left);
    }
}
