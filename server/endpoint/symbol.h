/* DESIGN: from addresses to functions, files and lines. The signal handler only kept registers
 * and the top of the stack (crash.h); here, later and on a thread that may be slow, libdw
 * unwinds over that copy: by the tables of .eh_frame where code has them, by frame pointers
 * where it has none (libtcc). So the way from inside strlen back to the line that called it is
 * found although the C library keeps no frame pointers. Lines come from DWARF (gcc, clang) or
 * from stabs (libtcc, stabs.h); without either, there is the name of the function.
 *
 * The process may be damaged: reading symbols runs under a guard of its own, and when that
 * is needed, the addresses that the handler found must do. Nothing is fetched from the
 * network, and no file is read but those that are mapped here. */
#ifndef KILN_ENDPOINT_SYMBOL_H
#define KILN_ENDPOINT_SYMBOL_H

#include "endpoint/crash.h"

struct stack_frame {
    uintptr_t pc;
    char *function; /* NULL: unknown */
    char *file; /* of the source; NULL: unknown */
    unsigned line;
    char *object; /* the mapped file; NULL: nothing is mapped there */
    uintptr_t offset; /* in the object */
};

struct stack {
    struct stack_frame frames[CRASH_FRAMES];
    unsigned count;
};

/* Innermost first, without the server's own frames at the outer end. Takes milliseconds. */
void stack_find(const struct crash_report *report, struct stack *stack);
void stack_free(struct stack *stack);

/* In a process whose module is a memory file: where to read that. */
void symbol_memory_file(const char *path);

#endif
