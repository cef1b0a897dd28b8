/* DESIGN: sixteen bytes looked at in one step, for the scans that see every byte of a head. A
 * comparison gives bytes of all ones where it holds; bytes16_mask() makes one number of them,
 * BYTES16_STEP bits a byte, the first byte lowest: ctz(mask) / BYTES16_STEP is its index.
 * Processors without a unit for it do the same byte by byte. */
#ifndef KILN_BASE_BYTES16_H
#define KILN_BASE_BYTES16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)

#include <emmintrin.h>

typedef __m128i bytes16;

enum { BYTES16_STEP = 1 };

static inline bytes16 bytes16_load(const void *at)
{
    return _mm_loadu_si128((const __m128i *)at);
}

static inline bytes16 bytes16_equal(bytes16 bytes, uint8_t value)
{
    return _mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)value));
}

static inline bytes16 bytes16_at_most(bytes16 bytes, uint8_t value)
{
    return _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8((char)value)), bytes);
}

/* Both as signed numbers. */
static inline bytes16 bytes16_above(bytes16 bytes, int8_t value)
{
    return _mm_cmpgt_epi8(bytes, _mm_set1_epi8(value));
}

static inline bytes16 bytes16_plus_one(bytes16 bytes)
{
    return _mm_add_epi8(bytes, _mm_set1_epi8(1));
}

static inline bytes16 bytes16_or(bytes16 a, bytes16 b)
{
    return _mm_or_si128(a, b);
}

static inline uint64_t bytes16_mask(bytes16 found)
{
    return (uint64_t)(unsigned)_mm_movemask_epi8(found);
}

#elif defined(__ARM_NEON)

#include <arm_neon.h>

typedef uint8x16_t bytes16;

enum { BYTES16_STEP = 4 };

static inline bytes16 bytes16_load(const void *at)
{
    return vld1q_u8(at);
}

static inline bytes16 bytes16_equal(bytes16 bytes, uint8_t value)
{
    return vceqq_u8(bytes, vdupq_n_u8(value));
}

static inline bytes16 bytes16_at_most(bytes16 bytes, uint8_t value)
{
    return vcleq_u8(bytes, vdupq_n_u8(value));
}

static inline bytes16 bytes16_above(bytes16 bytes, int8_t value)
{
    return vcgtq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(value));
}

static inline bytes16 bytes16_plus_one(bytes16 bytes)
{
    return vaddq_u8(bytes, vdupq_n_u8(1));
}

static inline bytes16 bytes16_or(bytes16 a, bytes16 b)
{
    return vorrq_u8(a, b);
}

static inline uint64_t bytes16_mask(bytes16 found)
{
    return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(found), 4)), 0);
}

#else

typedef struct {
    uint8_t b[16];
} bytes16;

enum { BYTES16_STEP = 1 };

#define BYTES16_EACH(expression) \
    bytes16 out; \
    for (unsigned i = 0; i < 16; i++) { \
        out.b[i] = (uint8_t)(expression); \
    } \
    return out

static inline bytes16 bytes16_load(const void *at)
{
    bytes16 out;
    memcpy(out.b, at, 16);
    return out;
}

static inline bytes16 bytes16_equal(bytes16 bytes, uint8_t value)
{
    BYTES16_EACH(bytes.b[i] == value ? 255 : 0);
}

static inline bytes16 bytes16_at_most(bytes16 bytes, uint8_t value)
{
    BYTES16_EACH(bytes.b[i] <= value ? 255 : 0);
}

static inline bytes16 bytes16_above(bytes16 bytes, int8_t value)
{
    BYTES16_EACH((int8_t)bytes.b[i] > value ? 255 : 0);
}

static inline bytes16 bytes16_plus_one(bytes16 bytes)
{
    BYTES16_EACH(bytes.b[i] + 1);
}

static inline bytes16 bytes16_or(bytes16 a, bytes16 b)
{
    BYTES16_EACH(a.b[i] | b.b[i]);
}

static inline uint64_t bytes16_mask(bytes16 found)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < 16; i++) {
        mask |= (uint64_t)(found.b[i] & 1) << i;
    }
    return mask;
}

#undef BYTES16_EACH

#endif

/* Index of the first byte of a mask that is not 0. */
static inline size_t bytes16_first(uint64_t mask)
{
    return (size_t)__builtin_ctzll(mask) / BYTES16_STEP;
}

/* The mask without its first byte. */
static inline uint64_t bytes16_rest(uint64_t mask)
{
    if (BYTES16_STEP == 1) {
        return mask & (mask - 1);
    }
    const uint64_t one_byte = ((uint64_t)1 << BYTES16_STEP) - 1;
    return mask & ~(one_byte << __builtin_ctzll(mask));
}

#endif
