#include "endpoint/crash.h"

#include "base/check.h"
#include "base/sanitize.h"
#include "endpoint/exit_calls.h"
#include "endpoint/heap_lock.h"
#include "endpoint/signal_calls.h"
#include "endpoint/watchdog.h"
#include "loop/coroutine.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(KILN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

enum {
    ALTERNATE_STACK = 65536,
    GUARD_REACH = 65536,
    HEAP_MS = 10000, /* for a few calls of malloc on a thread that may get a hundredth of a processor */
};

_Thread_local struct crash_guard *crash_guard_now;

static _Thread_local bool thread_ready;
static struct crash_text c_library; /* its code; empty: not known */
static int *first_heap_lock; /* NULL: not known, as the other */
static _Thread_local int *heap_lock; /* of this thread's heap */
static pthread_key_t stack_key;
static pid_t worker_pid;
static _Atomic bool is_child; /* of fork(); what vfork() made shares this memory, so: getpid() */
static _Atomic bool crashed;
static struct crash_snapshot snapshots[CRASH_SNAPSHOTS];
static _Atomic bool snapshot_taken[CRASH_SNAPSHOTS];

/* ---- entering and landing -------------------------------------------------------------------- */

/* crash_enter(&landing_sp, fn, arg): saves the callee-saved registers on the stack, remembers
 * the stack pointer, calls fn 8 KB further down, so that an array overrun by less than that
 * destroys nothing that the landing needs. crash_landing is jumped to with that pointer. */
int crash_enter(void **landing_sp, int (*fn)(void *), void *arg);
void crash_landing(void);
void crash_entry_end(void);

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl crash_enter\n.hidden crash_enter\n.type crash_enter,@function\n"
        "crash_enter:\n"
        "  pushq %rbp\n  movq %rsp, %rbp\n"
        "  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  subq $8, %rsp\n"
        "  movq %rsp, (%rdi)\n"
        "  subq $8192, %rsp\n"
        "  movq %rdx, %rdi\n"
        "  callq *%rsi\n"
        "  leaq -48(%rbp), %rsp\n"
        "crash_leave_frame:\n"
        "  addq $8, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size crash_enter,.-crash_enter\n"
        ".globl crash_landing\n.hidden crash_landing\n.type crash_landing,@function\n"
        "crash_landing:\n"
        "  cld\n  fninit\n  pushq $0x1f80\n  ldmxcsr (%rsp)\n  popq %rax\n" /* traps may have been on */
        "  movl $0x80000000, %eax\n"
        "  jmp crash_leave_frame\n"
        ".size crash_landing,.-crash_landing\n"
        ".globl crash_entry_end\n.hidden crash_entry_end\n"
        "crash_entry_end:\n");

_Noreturn static void jump_to_landing(void *sp)
{
    __asm__ volatile("movq %0, %%rsp\n  jmp crash_landing" ::"r"(sp) : "memory");
    __builtin_unreachable();
}

static uintptr_t context_pc(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
}

static uintptr_t context_fp(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.gregs[REG_RBP];
}

static uintptr_t context_sp(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
}

/* The bits of the processor's error code of a page fault. */
static char context_access(const ucontext_t *context)
{
    enum { PAGE_FAULT = 14, WRITE = 2, FETCH = 16 };
    if (context->uc_mcontext.gregs[REG_TRAPNO] != PAGE_FAULT) {
        return 0;
    }
    greg_t error = context->uc_mcontext.gregs[REG_ERR];
    return (error & FETCH) != 0 ? 'x' : (error & WRITE) != 0 ? 'w' : 'r';
}

static unsigned context_registers(const ucontext_t *context, uintptr_t *out)
{
    static const int order[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                                REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
    for (unsigned i = 0; i < ARRAY_LEN(order); i++) {
        out[i] = (uintptr_t)context->uc_mcontext.gregs[order[i]];
    }
    return ARRAY_LEN(order);
}

static void context_land(ucontext_t *context, void *sp)
{
    context->uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)sp;
    context->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)crash_landing;
}

#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl crash_enter\n.hidden crash_enter\n.type crash_enter,%function\n"
        "crash_enter:\n"
        "  stp x29, x30, [sp, #-160]!\n"
        "  mov x29, sp\n"
        "  stp x19, x20, [sp, #16]\n  stp x21, x22, [sp, #32]\n"
        "  stp x23, x24, [sp, #48]\n  stp x25, x26, [sp, #64]\n  stp x27, x28, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  sub sp, sp, #8192\n"
        "  mov x0, x2\n"
        "  blr x1\n"
        "  mov sp, x29\n"
        "crash_leave_frame:\n"
        "  ldp x19, x20, [sp, #16]\n  ldp x21, x22, [sp, #32]\n"
        "  ldp x23, x24, [sp, #48]\n  ldp x25, x26, [sp, #64]\n  ldp x27, x28, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  ldp x29, x30, [sp], #160\n"
        "  ret\n"
        ".size crash_enter,.-crash_enter\n"
        ".globl crash_landing\n.hidden crash_landing\n.type crash_landing,%function\n"
        "crash_landing:\n"
        "  msr fpcr, xzr\n" /* traps may have been on */
        "  movz w0, #0x8000, lsl #16\n"
        "  b crash_leave_frame\n"
        ".size crash_landing,.-crash_landing\n"
        ".globl crash_entry_end\n.hidden crash_entry_end\n"
        "crash_entry_end:\n");

_Noreturn static void jump_to_landing(void *sp)
{
    __asm__ volatile("mov sp, %0\n  b crash_landing" ::"r"(sp) : "memory");
    __builtin_unreachable();
}

static uintptr_t context_pc(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.pc;
}

static uintptr_t context_fp(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.regs[29];
}

static uintptr_t context_sp(const ucontext_t *context)
{
    return (uintptr_t)context->uc_mcontext.sp;
}

static char context_access(const ucontext_t *context)
{
    (void)context;
    return 0;
}

static unsigned context_registers(const ucontext_t *context, uintptr_t *out)
{
    for (unsigned i = 0; i < 31; i++) {
        out[i] = (uintptr_t)context->uc_mcontext.regs[i];
    }
    out[31] = (uintptr_t)context->uc_mcontext.sp;
    return 32;
}

static void context_land(ucontext_t *context, void *sp)
{
    context->uc_mcontext.sp = (uintptr_t)sp;
    context->uc_mcontext.pc = (uintptr_t)crash_landing;
}
#endif

static int run(struct crash_guard *guard, int (*fn)(void *), void *arg)
{
    crash_guard_now = guard;
    int returned = crash_enter(&guard->landing_sp, fn, arg);
    crash_guard_now = NULL;
#if defined(KILN_ASAN)
    if (returned == CRASH_CAUGHT) {
        /* The frames that were left took their marks along. */
        __asan_unpoison_memory_region((void *)guard->stack_low, (uintptr_t)guard->landing_sp - guard->stack_low);
    }
#endif
    return returned;
}

/* Sizes that malloc takes from different places. */
static int use_heap(void *unused)
{
    static const size_t sizes[] = {24, 2000, 20000, 100000};
    (void)unused;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        void *volatile block = malloc(sizes[i]);
        free(block);
    }
    return 0;
}

/* A lock that nobody will give back is waited for in vain: the watchdog's signal leaves that, too. */
static bool heap_answers(const struct crash_guard *guard)
{
    static const struct crash_text anywhere = {0, UINTPTR_MAX};
    struct crash_guard trial = {.stack_low = guard->stack_low, .stack_high = guard->stack_high, .text = &anywhere};
    uint64_t deadline = watchdog_time(HEAP_MS);
    int returned = run(&trial, use_heap, NULL);
    watchdog_time_back(deadline);
    crash_report_done(&trial.report);
    return returned != CRASH_CAUGHT;
}

/* Only there can malloc have been interrupted; a lock that is taken otherwise is some other thread's, which may be
 * off the processor for long, and to open it would let two threads into one heap. By addresses alone: dladdr() would read
 * the tables of whatever module the address lies in, which may be what has crashed. */
static bool in_c_library(const struct crash_report *report)
{
    uintptr_t pc = report->frame_count > 0 ? report->frames[0] : 0;
    return pc >= c_library.low && pc < c_library.high;
}

static int look_for_malloc(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + part->p_vaddr;
        uintptr_t at = (uintptr_t)malloc;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0 && at >= low && at < low + part->p_memsz) {
            c_library = (struct crash_text){low, low + part->p_memsz};
            return 1;
        }
    }
    return 0;
}

/* Other threads free what this one has allocated: the lock must be open even if this one is lost. */
static bool heap_is_usable(const struct crash_guard *guard)
{
    if (in_c_library(&guard->report)) {
        heap_lock_unstick(first_heap_lock);
        heap_lock_unstick(heap_lock);
    }
    bool answers = heap_answers(guard);
    if (!answers) {
        heap_lock_open(heap_lock);
    }
    return answers;
}

int crash_run(struct crash_guard *guard, int (*fn)(void *), void *arg)
{
    int returned = run(guard, fn, arg);
    bool crash = returned == CRASH_CAUGHT && guard->report.signal != 0;
    if (__builtin_expect(crash, 0) && !heap_is_usable(guard)) {
        watchdog_lose(guard);
    }
    return returned;
}

void crash_land(struct crash_guard *guard)
{
    crash_guard_now = NULL;
    jump_to_landing(guard->landing_sp);
}

bool crash_is_entry(uintptr_t pc)
{
    return pc >= (uintptr_t)crash_enter && pc < (uintptr_t)crash_entry_end;
}

/* ---- where it happened --------------------------------------------------------------------------- */

static void add_frame(struct crash_report *report, uintptr_t pc)
{
    if (report->frame_count < CRASH_FRAMES) {
        report->frames[report->frame_count++] = pc;
    }
}

/* Frame pointers: libtcc always keeps them, gcc and clang when Kiln builds. Nothing outside the
 * stack of this run is read. The better way, by tables, is symbol.c's; this one is for when
 * that cannot be gone. */
KILN_NO_SANITIZE static void walk_frames(struct crash_guard *guard, uintptr_t fp, uintptr_t lowest)
{
    uintptr_t high = guard->stack_high - 2 * sizeof(uintptr_t);
    while (fp >= lowest && fp <= high && fp % sizeof(uintptr_t) == 0 && guard->report.frame_count < CRASH_FRAMES) {
        const uintptr_t *frame = (const uintptr_t *)fp;
        if (frame[1] < 4096 || fp >= (uintptr_t)guard->landing_sp) {
            break;
        }
        add_frame(&guard->report, frame[1] - 1);
        if (frame[0] <= fp) {
            break;
        }
        fp = frame[0];
    }
}

/* Word by word: memcpy would look at the sanitizers' marks. */
KILN_NO_SANITIZE static void copy_words(unsigned char *to, uintptr_t from, size_t size)
{
    volatile uintptr_t *out = (volatile uintptr_t *)(void *)to;
    const volatile uintptr_t *in = (const volatile uintptr_t *)from;
    for (size_t i = 0; i < size / sizeof *out; i++) {
        out[i] = in[i];
    }
}

static void take_snapshot(struct crash_guard *guard, const ucontext_t *context)
{
    uintptr_t sp = context_sp(context) & ~(uintptr_t)(sizeof(uintptr_t) - 1);
    if (sp < guard->stack_low || sp >= guard->stack_high) {
        return;
    }
    for (unsigned i = 0; i < CRASH_SNAPSHOTS; i++) {
        if (atomic_exchange(&snapshot_taken[i], true)) {
            continue;
        }
        struct crash_snapshot *snapshot = &snapshots[i];
        snapshot->register_count = context_registers(context, snapshot->registers);
        snapshot->pc = context_pc(context);
        snapshot->sp = sp;
        size_t size = (guard->stack_high - sp) & ~(sizeof(uintptr_t) - 1);
        snapshot->size = size < CRASH_STACK_KEPT ? size : CRASH_STACK_KEPT;
        copy_words(snapshot->stack, sp, snapshot->size);
        guard->report.snapshot = snapshot;
        return;
    }
}

void crash_report_done(struct crash_report *report)
{
    if (report->snapshot != NULL) {
        atomic_store(&snapshot_taken[report->snapshot - snapshots], false);
        report->snapshot = NULL;
    }
}

KILN_NO_SANITIZE static void describe_place(struct crash_guard *guard, const ucontext_t *context)
{
    struct crash_report *report = &guard->report;
    uintptr_t pc = context_pc(context);
    uintptr_t sp = context_sp(context);
    bool on_stack = sp >= guard->stack_low && sp < guard->stack_high;
    bool memory_fault = report->signal == SIGSEGV || report->signal == SIGBUS;
    add_frame(report, pc);
    report->access = memory_fault ? context_access(context) : 0;
    report->stack_overflow =
        memory_fault && report->address < guard->stack_low && report->address + GUARD_REACH >= guard->stack_low;
    report->wild_jump = memory_fault && report->code > 0 && report->address == pc;
#if defined(__x86_64__)
    if (report->wild_jump && on_stack && sp % sizeof(uintptr_t) == 0) {
        add_frame(report, *(const uintptr_t *)sp - 1); /* a call has pushed where it came from */
    }
#else
    if (report->wild_jump) {
        add_frame(report, (uintptr_t)context->uc_mcontext.regs[30] - 1);
    }
#endif
    take_snapshot(guard, context);
    walk_frames(guard, context_fp(context), on_stack ? sp : guard->stack_low);
}

/* ---- signals ------------------------------------------------------------------------------------------- */

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

static void die_by(int signal)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    signal_calls_action(signal, &action, NULL);
    raise(signal);
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    struct crash_guard *guard = crash_guard_now;
    bool sent_by_others = info->si_code == SI_USER && info->si_pid != getpid();
    if (guard == NULL || worker_pid != getpid() || sent_by_others) {
        die_by(signal);
        return;
    }
    int saved = errno;
    crash_guard_now = NULL; /* a second fault in here is ours */
    crashed = true;
    guard->report = (struct crash_report){.signal = signal, .code = info->si_code, .address = (uintptr_t)info->si_addr};
    describe_place(guard, context);
    context_land(context, guard->landing_sp);
    errno = saved;
}

const char crash_timeout_call[] = "RequestTimeout";

int crash_timeout_signal(void)
{
    return SIGRTMIN + 2;
}

/* Sent by the watchdog, or by somebody who has no business here. */
static void on_timeout(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    struct crash_guard *guard = crash_guard_now;
    if (guard == NULL || info->si_code != SI_TKILL || info->si_pid != getpid() || worker_pid != getpid() ||
        !watchdog_is_over()) {
        return;
    }
    uintptr_t pc = context_pc(context);
    guard->overdue = true;
    if (guard->text == NULL || pc < guard->text->low || pc >= guard->text->high) {
        return;
    }
    int saved = errno;
    crash_guard_now = NULL;
    guard->report = (struct crash_report){.call = crash_timeout_call};
    describe_place(guard, context);
    context_land(context, guard->landing_sp);
    errno = saved;
}

void crash_leave(const char *call)
{
    struct crash_guard *guard = crash_guard_now;
    if (guard == NULL || worker_pid != getpid()) {
        return;
    }
    crash_guard_now = NULL;
    crashed = crashed || call != crash_timeout_call;
    guard->report = (struct crash_report){.call = call};
    ucontext_t context;
    getcontext(&context);
    take_snapshot(guard, &context);
    walk_frames(guard, (uintptr_t)__builtin_frame_address(0), guard->stack_low);
    crash_land(guard);
}

/* ---- start ---------------------------------------------------------------------------------------------- */

static void free_alternate_stack(void *stack)
{
    stack_t off = {.ss_flags = SS_DISABLE};
    signal_calls_stack(&off, NULL);
    munmap(stack, ALTERNATE_STACK);
    thread_ready = false;
}

static void make_key(void)
{
    CHECK(pthread_key_create(&stack_key, free_alternate_stack) == 0);
}

/* Once a thread; cheap afterwards. */
static void thread_make_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (thread_ready) {
        return;
    }
    pthread_once(&once, make_key);
    void *stack = mmap(NULL, ALTERNATE_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return; /* a crash on this thread then ends the worker, as a stack overflow would */
    }
    stack_t alternate = {.ss_sp = stack, .ss_size = ALTERNATE_STACK};
    if (signal_calls_stack(&alternate, NULL) != 0) {
        munmap(stack, ALTERNATE_STACK);
        return;
    }
    pthread_setspecific(stack_key, stack);
    heap_lock = heap_lock_find();
    thread_ready = true;
}

static void thread_bounds(struct crash_guard *guard)
{
    static _Thread_local uintptr_t low;
    static _Thread_local uintptr_t high;
    if (low == 0) {
        pthread_attr_t attributes;
        void *start = NULL;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &start, &size);
            pthread_attr_destroy(&attributes);
        }
        low = (uintptr_t)start;
        high = low + size;
    }
    guard->stack_low = low;
    guard->stack_high = high;
}

void crash_guard_ready(struct crash_guard *guard)
{
    thread_make_ready();
    watchdog_thread_ready();
    guard->overdue = false;
    struct coroutine *co = coroutine_self();
    if (co == NULL) {
        thread_bounds(guard);
        return;
    }
    void *low;
    void *high;
    coroutine_stack_bounds(co, &low, &high);
    guard->stack_low = (uintptr_t)low;
    guard->stack_high = (uintptr_t)high;
}

static void forked(void)
{
    is_child = true;
}

bool crash_has_happened(void)
{
    return crashed;
}

bool crash_is_child(void)
{
    return atomic_load_explicit(&is_child, memory_order_relaxed);
}

bool crash_is_foreign_thread(void)
{
    return worker_pid != 0 && worker_pid == getpid() && gettid() != worker_pid;
}

void crash_guard_threads(void)
{
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) == 0) {
        pthread_attr_setguardsize(&attributes, GUARD_REACH);
        pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
    }
}

void crash_start(void)
{
    worker_pid = getpid();
    exit_calls_watch();
    dl_iterate_phdr(look_for_malloc, NULL);
    first_heap_lock = heap_lock_find_first();
    CHECK(pthread_atfork(NULL, NULL, forked) == 0);
    sigset_t own;
    sigemptyset(&own);
    for (size_t i = 0; i < ARRAY_LEN(fatal_signals); i++) {
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        sigaction(fatal_signals[i], &action, NULL);
        sigaddset(&own, fatal_signals[i]);
    }
    /* No SA_RESTART: sleep(3) and blocking reads of the endpoint end by it. */
    struct sigaction action = {.sa_sigaction = on_timeout, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(crash_timeout_signal(), &action, NULL);
    sigaddset(&own, crash_timeout_signal());
    signal_calls_own(&own);
}

/* ---- words ------------------------------------------------------------------------------------------------ */

static const char *signal_words(const struct crash_report *report)
{
    switch (report->signal) {
    case SIGSEGV: return report->stack_overflow ? "stack overflow (SIGSEGV)" : "segmentation fault (SIGSEGV)";
    case SIGBUS: return "bus error (SIGBUS)";
    case SIGFPE: return report->code == FPE_INTDIV ? "division by zero (SIGFPE)" : "arithmetic error (SIGFPE)";
    case SIGILL: return "illegal instruction (SIGILL)";
    case SIGABRT: return "abort (SIGABRT): abort(), a failed assert, or the C library found damage";
    case SIGSYS: return "forbidden system call (SIGSYS)";
    default: return "fatal signal";
    }
}

void crash_describe(const struct crash_report *report, char *out, size_t size)
{
    if (crash_is_timeout(report)) {
        snprintf(out, size, "it did not return within RequestTimeout");
        return;
    }
    if (report->signal == 0) {
        snprintf(out, size, "call of %s, which would have ended the server", report->call);
        return;
    }
    bool has_address =
        (report->signal == SIGSEGV || report->signal == SIGBUS) && !report->stack_overflow && report->code > 0;
    if (has_address && report->code == SI_KERNEL) {
        snprintf(out, size, "%s: use of an address that no program can have", signal_words(report));
        return;
    }
    if (!has_address) {
        snprintf(out, size, "%s", signal_words(report));
        return;
    }
    const char *how = report->wild_jump       ? "jump to"
                      : report->access == 'w' ? "write to"
                      : report->access == 'r' ? "read from"
                                              : "access to";
    const char *what = report->address < 65536 ? ", a null pointer or close to one" : "";
    snprintf(out, size, "%s: %s address 0x%llx%s", signal_words(report), how, (unsigned long long)report->address,
             what);
}
