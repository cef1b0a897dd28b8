#include "endpoint/symbol.h"

#include "base/check.h"
#include "endpoint/stabs.h"

#include <dlfcn.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct finder {
    struct crash_guard guard; /* of this work itself */
    const struct crash_report *report;
    struct stack *stack;
    Dwfl *dwfl;
    uintptr_t pc; /* where unwinding begins */
    uintptr_t registers[CRASH_REGISTERS];
    bool stop;
};

/* ---- one address ----------------------------------------------------------------------------- */

static struct str section_bytes(Elf *elf, const char *wanted, GElf_Shdr *header)
{
    size_t names = 0;
    if (elf_getshdrstrndx(elf, &names) != 0) {
        return STR_NONE;
    }
    for (Elf_Scn *scn = elf_nextscn(elf, NULL); scn != NULL; scn = elf_nextscn(elf, scn)) {
        const char *name = gelf_getshdr(scn, header) != NULL ? elf_strptr(elf, names, header->sh_name) : NULL;
        if (name == NULL || strcmp(name, wanted) != 0) {
            continue;
        }
        Elf_Data *data = elf_rawdata(scn, NULL);
        return data != NULL && data->d_buf != NULL ? (struct str){data->d_buf, data->d_size} : STR_NONE;
    }
    return STR_NONE;
}

static char *join_path(struct str directory, struct str file)
{
    if (file.len == 0) {
        return NULL;
    }
    size_t len = file.ptr[0] == '/' ? 0 : directory.len;
    char *path = malloc(len + 1 + file.len + 1);
    if (path == NULL) {
        return NULL;
    }
    bool slash = len > 0 && directory.ptr[len - 1] != '/';
    memcpy(path, directory.ptr, len);
    memcpy(path + len, "/", slash ? 1 : 0);
    memcpy(path + len + slash, file.ptr, file.len);
    path[len + slash + file.len] = '\0';
    return path;
}

static bool find_by_stabs(Dwfl_Module *module, struct stack_frame *frame)
{
    GElf_Addr bias = 0;
    GElf_Shdr header;
    GElf_Shdr text;
    struct stabs_place place;
    Elf *elf = dwfl_module_getelf(module, &bias);
    if (elf == NULL) {
        return false;
    }
    struct str entries = section_bytes(elf, ".stab", &header);
    struct str strings = section_bytes(elf, ".stabstr", &header);
    struct str code = section_bytes(elf, ".text", &text);
    uintptr_t address = frame->pc - bias;
    if (entries.ptr == NULL || strings.ptr == NULL || code.ptr == NULL || address < text.sh_addr ||
        address - text.sh_addr >= text.sh_size || !stabs_find(entries, strings, (uint32_t)address, &place)) {
        return false;
    }
    frame->function = strndup(place.function.ptr, place.function.len);
    frame->file = join_path(place.directory, place.file);
    frame->line = place.line;
    return true;
}

static void find_by_dwarf(Dwfl_Module *module, struct stack_frame *frame)
{
    const char *name = dwfl_module_addrname(module, frame->pc);
    frame->function = name != NULL ? strdup(name) : NULL;
    Dwfl_Line *line = dwfl_module_getsrc(module, frame->pc);
    int number = 0;
    const char *file = line != NULL ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
    if (file != NULL && number > 0) {
        const char *directory = dwfl_line_comp_dir(line);
        frame->file = join_path(str_of(directory != NULL ? directory : ""), str_of(file));
        frame->line = (unsigned)number;
    }
}

static char *nameless;

void symbol_memory_file(const char *path)
{
    free(nameless);
    nameless = strdup(path);
}

static bool is_memory_file(const char *name)
{
    return nameless != NULL && name != NULL && strncmp(name, "/memfd:", 7) == 0;
}

static void describe(struct finder *finder, struct stack_frame *frame)
{
    Dwfl_Module *module = dwfl_addrmodule(finder->dwfl, frame->pc);
    if (module == NULL) {
        return;
    }
    Dwarf_Addr start = 0;
    const char *main_file = NULL;
    const char *name = dwfl_module_info(module, NULL, &start, NULL, NULL, NULL, &main_file, NULL);
    const char *object = is_memory_file(name) ? nameless : main_file != NULL ? main_file : name;
    frame->object = object != NULL ? strdup(object) : NULL;
    frame->offset = frame->pc - start;
    if (!find_by_stabs(module, frame)) {
        find_by_dwarf(module, frame);
    }
}

/* ---- unwinding --------------------------------------------------------------------------------- */

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread_arg)
{
    (void)dwfl;
    if (*thread_arg != NULL) {
        return 0;
    }
    *thread_arg = arg;
    return getpid();
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *arg, void **thread_arg)
{
    (void)dwfl;
    (void)tid;
    *thread_arg = arg;
    return true;
}

/* Of the stack only, as it was then. */
static bool read_memory(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *word, void *arg)
{
    (void)dwfl;
    const struct finder *finder = arg;
    const struct crash_snapshot *snapshot = finder->report->snapshot;
    if (address < snapshot->sp || snapshot->size < sizeof *word ||
        address - snapshot->sp > snapshot->size - sizeof *word) {
        return false;
    }
    memcpy(word, snapshot->stack + (address - snapshot->sp), sizeof *word);
    return true;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
    const struct finder *finder = arg;
    Dwarf_Word words[CRASH_REGISTERS];
    unsigned count = finder->report->snapshot->register_count;
    for (unsigned i = 0; i < count; i++) {
        words[i] = finder->registers[i];
    }
    dwfl_thread_state_register_pc(thread, finder->pc);
    return dwfl_thread_state_registers(thread, 0, count, words);
}

static const Dwfl_Thread_Callbacks thread_callbacks = {
    .next_thread = next_thread,
    .get_thread = get_thread,
    .memory_read = read_memory,
    .set_initial_registers = set_registers,
};

/* Counted at once, so that a fault in describe() costs this frame only. */
static struct stack_frame *add_frame(struct stack *stack, uintptr_t pc)
{
    struct stack_frame *frame = &stack->frames[stack->count++];
    *frame = (struct stack_frame){.pc = pc};
    return frame;
}

static int on_frame(Dwfl_Frame *state, void *arg)
{
    struct finder *finder = arg;
    Dwarf_Addr pc = 0;
    bool exact = false;
    if (!dwfl_frame_pc(state, &pc, &exact) || pc == 0 || finder->stack->count == CRASH_FRAMES) {
        return DWARF_CB_ABORT;
    }
    /* Of a caller, the call counts and not what follows it; the first one is where it happened. */
    uintptr_t at = exact || finder->stack->count == 0 ? pc : pc - 1;
    if (crash_is_entry(at)) {
        return DWARF_CB_ABORT;
    }
    describe(finder, add_frame(finder->stack, at));
    return DWARF_CB_OK;
}

/* A call of nothing has left the place of the call on the stack, or in the link register. */
static void begin_at_caller(struct finder *finder)
{
    const struct crash_report *report = finder->report;
    add_frame(finder->stack, report->frames[0]);
    if (report->frame_count > 1) {
        finder->pc = report->frames[1];
    }
#if defined(__x86_64__)
    enum { RSP = 7, RIP = 16 };
    finder->registers[RSP] += sizeof(uintptr_t);
    finder->registers[RIP] = finder->pc;
#endif
}

static void unwind(struct finder *finder)
{
    const struct crash_snapshot *snapshot = finder->report->snapshot;
    memcpy(finder->registers, snapshot->registers, sizeof finder->registers);
    finder->pc = snapshot->pc;
    if (finder->report->wild_jump) {
        begin_at_caller(finder);
    }
    if (dwfl_attach_state(finder->dwfl, NULL, getpid(), &thread_callbacks, finder)) {
        dwfl_getthread_frames(finder->dwfl, getpid(), on_frame, finder);
    }
}

/* ---- the whole ------------------------------------------------------------------------------------ */

/* Separate debug files are not looked for: the search may ask servers. */
static int no_debug_file(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, const char *file,
                         const char *link, GElf_Word crc, char **found)
{
    (void)module, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
    return -1;
}

/* The map of a process calls a memory file "/memfd:name (deleted)". */
static int find_elf(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, char **file, Elf **elf)
{
    int fd = is_memory_file(name) ? open(nameless, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return dwfl_linux_proc_find_elf(module, user, name, base, file, elf);
    }
    *file = strdup(nameless);
    return fd;
}

static int find(void *arg)
{
    static const Dwfl_Callbacks callbacks = {.find_elf = find_elf, .find_debuginfo = no_debug_file};
    struct finder *finder = arg;
    finder->dwfl = dwfl_begin(&callbacks);
    if (finder->dwfl == NULL) {
        return 0;
    }
    dwfl_report_begin(finder->dwfl);
    bool known = dwfl_linux_proc_report(finder->dwfl, getpid()) == 0;
    known = dwfl_report_end(finder->dwfl, NULL, NULL) == 0 && known;
    if (known && finder->report->snapshot != NULL) {
        unwind(finder);
    }
    /* What the handler could follow, when that went further. */
    const struct crash_report *report = finder->report;
    struct stack *stack = finder->stack;
    if (known && stack->count <= (report->wild_jump ? 2u : 1u) && report->frame_count > stack->count) {
        stack_free(stack);
        for (unsigned i = 0; i < report->frame_count && !crash_is_entry(report->frames[i]); i++) {
            describe(finder, add_frame(stack, report->frames[i]));
        }
    }
    dwfl_end(finder->dwfl);
    return 0;
}

static bool is_ours(const struct stack_frame *frame, const char *program)
{
    return frame->object != NULL && strcmp(frame->object, program) == 0;
}

/* What called the endpoint, and for a call of exit() also what stands in for that. */
static void cut_own_frames(struct stack *stack, bool call)
{
    char program[4096];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    program[len > 0 ? len : 0] = '\0';
    while (stack->count > 1 && is_ours(&stack->frames[stack->count - 1], program)) {
        struct stack_frame *frame = &stack->frames[--stack->count];
        free(frame->function);
        free(frame->file);
        free(frame->object);
    }
    unsigned inner = 0;
    while (call && inner + 1 < stack->count && is_ours(&stack->frames[inner], program)) {
        free(stack->frames[inner].function);
        free(stack->frames[inner].file);
        free(stack->frames[inner].object);
        inner++;
    }
    memmove(stack->frames, stack->frames + inner, (stack->count - inner) * sizeof stack->frames[0]);
    stack->count -= inner;
}

void stack_find(const struct crash_report *report, struct stack *stack)
{
    stack->count = 0;
    struct finder *finder = calloc(1, sizeof *finder);
    if (finder != NULL) {
        finder->report = report;
        finder->stack = stack;
        crash_guard_ready(&finder->guard);
        if (crash_run(&finder->guard, find, finder) == CRASH_CAUGHT) {
            crash_report_done(&finder->guard.report);
        }
        free(finder);
    }
    for (unsigned i = stack->count; stack->count == 0 && i < report->frame_count; i++) {
        stack->frames[i] = (struct stack_frame){.pc = report->frames[i]};
    }
    stack->count = stack->count == 0 ? report->frame_count : stack->count;
    cut_own_frames(stack, report->call != NULL);
}

void stack_free(struct stack *stack)
{
    for (unsigned i = 0; i < stack->count; i++) {
        free(stack->frames[i].function);
        free(stack->frames[i].file);
        free(stack->frames[i].object);
    }
    stack->count = 0;
}
