#include "loop/coroutine_switch.h"

#include <stdint.h>

#if defined(__x86_64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl coroutine_switch\n"
        ".hidden coroutine_switch\n"
        ".type coroutine_switch,@function\n"
        "coroutine_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size coroutine_switch,.-coroutine_switch\n"
        ".p2align 4\n"
        ".globl coroutine_first\n"
        ".hidden coroutine_first\n"
        ".type coroutine_first,@function\n"
        "coroutine_first:\n"
        "  xorl %ebp, %ebp\n"
        "  movq %r12, %rdi\n"
        "  callq *%r13\n"
        "  ud2\n"
        ".size coroutine_first,.-coroutine_first\n");

void coroutine_first(void);

void *coroutine_prepare(void *top, void (*entry)(void *), void *arg)
{
    uintptr_t *sp = top;
    *--sp = 0;
    *--sp = 0; /* what an unwinder stops at; the pair keeps the call aligned to 16 */
    *--sp = (uintptr_t)coroutine_first;
    *--sp = 0; /* rbp */
    *--sp = 0; /* rbx */
    *--sp = (uintptr_t)arg; /* r12 */
    *--sp = (uintptr_t)entry; /* r13 */
    *--sp = 0; /* r14 */
    *--sp = 0; /* r15 */
    return sp;
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl coroutine_switch\n"
        ".hidden coroutine_switch\n"
        ".type coroutine_switch,%function\n"
        "coroutine_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size coroutine_switch,.-coroutine_switch\n"
        ".p2align 4\n"
        ".globl coroutine_first\n"
        ".hidden coroutine_first\n"
        ".type coroutine_first,%function\n"
        "coroutine_first:\n"
        "  mov x29, xzr\n"
        "  mov x30, xzr\n"
        "  mov x0, x19\n"
        "  blr x20\n"
        "  brk #0\n"
        ".size coroutine_first,.-coroutine_first\n");

void coroutine_first(void);

void *coroutine_prepare(void *top, void (*entry)(void *), void *arg)
{
    uintptr_t *sp = (uintptr_t *)top - 20;
    for (int i = 0; i < 20; i++) {
        sp[i] = 0;
    }
    sp[0] = (uintptr_t)arg; /* x19 */
    sp[1] = (uintptr_t)entry; /* x20 */
    sp[11] = (uintptr_t)coroutine_first; /* x30 */
    return sp;
}

#else
#error "coroutines are written for x86-64 and arm64"
#endif
