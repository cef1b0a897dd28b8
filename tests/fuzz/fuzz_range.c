/* Range headers of any bytes against sizes of all magnitudes: parts lie in the file, do not
 * overlap, and together are no more than it. The first two bytes choose the size. */
#include "fuzz.h"

#include "answer/range.h"
#include "base/check.h"

static void check_parts(const struct range_set *set, uint64_t size)
{
    uint64_t total = 0;
    CHECK(set->count > 0 && set->count <= RANGE_MAX);
    for (unsigned i = 0; i < set->count; i++) {
        const struct byte_range *part = &set->parts[i];
        CHECK(part->length > 0 && part->first < size && part->length <= size - part->first);
        total += part->length;
        for (unsigned k = 0; k < i; k++) {
            const struct byte_range *other = &set->parts[k];
            CHECK(part->first >= other->first + other->length || other->first >= part->first + part->length);
        }
    }
    CHECK(total <= size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    uint64_t file_size = ((uint64_t)data[1] << (data[0] % 56)) + data[0] / 56;
    struct range_set set;
    if (range_parse((struct str){(const char *)data + 2, size - 2}, file_size, &set) == RANGE_PARTS) {
        check_parts(&set, file_size);
    }
    return 0;
}
