/* DESIGN: plain GNU vectors, which the compiler turns into SSE2 or AVX on x86-64 and NEON on
 * arm64. Loads and stores go through memcpy, so nothing needs to be aligned. */
#include "ws/mask.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <stdlib.h>

typedef uint8_t block __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));

enum { BLOCK = sizeof(block), UNROLLED = 4 * BLOCK };

static inline void mask_block(uint8_t *to, const uint8_t *from, block keys)
{
    block bytes;
    memcpy(&bytes, from, BLOCK);
    bytes ^= keys;
    memcpy(to, &bytes, BLOCK);
}

void ws_mask(uint8_t *to, const uint8_t *from, size_t len, const uint8_t key[4])
{
    size_t i = 0;
    uint32_t word;
    uint32_t key_word;
    memcpy(&key_word, key, 4);
    if (len >= BLOCK) {
        const block keys = (block)(words){key_word, key_word, key_word, key_word};
        for (; i + UNROLLED <= len; i += UNROLLED) {
            mask_block(to + i, from + i, keys);
            mask_block(to + i + BLOCK, from + i + BLOCK, keys);
            mask_block(to + i + 2 * BLOCK, from + i + 2 * BLOCK, keys);
            mask_block(to + i + 3 * BLOCK, from + i + 3 * BLOCK, keys);
        }
        for (; i + BLOCK <= len; i += BLOCK) {
            mask_block(to + i, from + i, keys);
        }
    }
    for (; i + 4 <= len; i += 4) {
        memcpy(&word, from + i, 4);
        word ^= key_word;
        memcpy(to + i, &word, 4);
    }
    for (; i < len; i++) {
        to[i] = from[i] ^ key[i & 3];
    }
}

void ws_mask_turn(uint8_t key[4], size_t len)
{
    if ((len & 3) == 0) {
        return;
    }
    uint8_t was[4];
    memcpy(was, key, 4);
    for (size_t i = 0; i < 4; i++) {
        key[i] = was[(i + len) & 3];
    }
}

void ws_random(void *to, size_t len)
{
    uint8_t *at = to;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0 && errno != EINTR) {
            abort(); /* a kernel without random numbers: nothing here may go on */
        }
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
}

void ws_mask_key(uint8_t key[4])
{
    enum { STORE = 1024 };
    static _Thread_local struct {
        uint8_t bytes[STORE];
        size_t left;
    } store;
    if (store.left < 4) {
        ws_random(store.bytes, STORE);
        store.left = STORE;
    }
    store.left -= 4;
    memcpy(key, store.bytes + store.left, 4);
}
