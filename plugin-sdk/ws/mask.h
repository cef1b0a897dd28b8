/* Masking of payloads: every byte is combined with one of the four bytes of the frame's key. */
#ifndef KILN_WS_MASK_H
#define KILN_WS_MASK_H

#include <stddef.h>
#include <stdint.h>

/* `to` may be `from`; otherwise they do not overlap. key[0] is for the first byte. */
void ws_mask(uint8_t *to, const uint8_t *from, size_t len, const uint8_t key[4]);
/* The key as it is for the byte that lies `len` further on. */
void ws_mask_turn(uint8_t key[4], size_t len);
/* A fresh key that nobody can foresee. Kept in store by the thread, so that not every frame costs a
 * system call. */
void ws_mask_key(uint8_t key[4]);
/* The same source of random bytes. */
void ws_random(void *to, size_t len);

#endif
