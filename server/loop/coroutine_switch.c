#include "loop/coroutine_switch.h"

/* Both functions leave the same behind on the stack that they leave, so that either can be come back to from either.
 * What an unwinder finds above the first function of a coroutine is a frame pointer of 0 and no frame. */
#if defined(__x86_64__)

#define SAVE \
    "  pushq %rbp\n" \
    "  pushq %rbx\n" \
    "  pushq %r12\n" \
    "  pushq %r13\n" \
    "  pushq %r14\n" \
    "  pushq %r15\n" \
    "  movq %rsp, (%rdi)\n"
#define RESTORE \
    "  popq %r15\n" \
    "  popq %r14\n" \
    "  popq %r13\n" \
    "  popq %r12\n" \
    "  popq %rbx\n" \
    "  popq %rbp\n" \
    "  ret\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".globl coroutine_switch\n"
        ".hidden coroutine_switch\n"
        ".type coroutine_switch,@function\n"
        "coroutine_switch:\n" SAVE "  movq %rsi, %rsp\n" RESTORE ".size coroutine_switch,.-coroutine_switch\n"
        ".p2align 4\n"
        ".globl coroutine_enter\n"
        ".hidden coroutine_enter\n"
        ".type coroutine_enter,@function\n"
        "coroutine_enter:\n" SAVE "  movq %rsi, %rsp\n"
        "  pushq $0\n"
        "  pushq $0\n" /* two: calls are made from a multiple of 16 */
        "  xorl %ebp, %ebp\n"
        "  movq %rcx, %rdi\n"
        "  callq *%rdx\n"
        "  movq %rax, %rsp\n" RESTORE ".size coroutine_enter,.-coroutine_enter\n");

#elif defined(__aarch64__)

#define SAVE \
    "  sub sp, sp, #160\n" \
    "  stp x19, x20, [sp, #0]\n" \
    "  stp x21, x22, [sp, #16]\n" \
    "  stp x23, x24, [sp, #32]\n" \
    "  stp x25, x26, [sp, #48]\n" \
    "  stp x27, x28, [sp, #64]\n" \
    "  stp x29, x30, [sp, #80]\n" \
    "  stp d8, d9, [sp, #96]\n" \
    "  stp d10, d11, [sp, #112]\n" \
    "  stp d12, d13, [sp, #128]\n" \
    "  stp d14, d15, [sp, #144]\n" \
    "  mov x9, sp\n" \
    "  str x9, [x0]\n"
#define RESTORE \
    "  ldp x19, x20, [sp, #0]\n" \
    "  ldp x21, x22, [sp, #16]\n" \
    "  ldp x23, x24, [sp, #32]\n" \
    "  ldp x25, x26, [sp, #48]\n" \
    "  ldp x27, x28, [sp, #64]\n" \
    "  ldp x29, x30, [sp, #80]\n" \
    "  ldp d8, d9, [sp, #96]\n" \
    "  ldp d10, d11, [sp, #112]\n" \
    "  ldp d12, d13, [sp, #128]\n" \
    "  ldp d14, d15, [sp, #144]\n" \
    "  add sp, sp, #160\n" \
    "  ret\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".globl coroutine_switch\n"
        ".hidden coroutine_switch\n"
        ".type coroutine_switch,%function\n"
        "coroutine_switch:\n" SAVE "  mov sp, x1\n" RESTORE ".size coroutine_switch,.-coroutine_switch\n"
        ".p2align 4\n"
        ".globl coroutine_enter\n"
        ".hidden coroutine_enter\n"
        ".type coroutine_enter,%function\n"
        "coroutine_enter:\n" SAVE "  mov sp, x1\n"
        "  mov x29, xzr\n"
        "  mov x0, x3\n"
        "  blr x2\n"
        "  mov sp, x0\n" RESTORE ".size coroutine_enter,.-coroutine_enter\n");

#else
#error "coroutines are written for x86-64 and arm64"
#endif
