/* What fuzz targets share: the name by which libFuzzer calls them, and chance that the input decides, so that a run
 * is the same each time. */
#ifndef KILN_TESTS_FUZZ_H
#define KILN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t fuzz_dice;

static inline uint32_t fuzz_roll(uint32_t sides)
{
    fuzz_dice = fuzz_dice * 1664525u + 1013904223u;
    return (fuzz_dice >> 8) % sides;
}

/* How much arrives at once, at most: in half of all inputs everything. */
static inline uint32_t fuzz_largest_piece(uint8_t choice)
{
    static const uint32_t pieces[] = {1, 3, 20, 200, 100000, 100000, 100000, 100000};
    return pieces[choice & 7];
}

#endif
