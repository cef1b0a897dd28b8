#include "request/spill.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* after the standard headers */
#include <cmocka.h>

static void check_bytes(size_t limit, size_t total, bool in_file)
{
    struct spill spill;
    spill_init(&spill, limit, NULL);
    char piece[1000];
    for (size_t done = 0; done < total; done += sizeof piece) {
        size_t n = total - done < sizeof piece ? total - done : sizeof piece;
        for (size_t i = 0; i < n; i++) {
            piece[i] = (char)((done + i) * 31 >> 3);
        }
        assert_int_equal(spill_append(&spill, piece, n), SPILL_OK);
    }
    assert_int_equal(spill.size, total);
    assert_int_equal(spill.fd >= 0, in_file);
    const char *data = spill_data(&spill);
    assert_non_null(data);
    assert_ptr_equal(data, spill_data(&spill));
    for (size_t i = 0; i < total; i++) {
        assert_int_equal(data[i], (char)(i * 31 >> 3));
    }
    assert_int_equal(data[total], 0);
    spill_free(&spill);
    assert_int_equal(spill.fd, -1);
}

static void small_stays_in_memory_and_large_goes_to_a_file(void **state)
{
    (void)state;
    check_bytes(5000, 0, false);
    check_bytes(5000, 5000, false);
    check_bytes(5000, 5001, true);
    check_bytes(0, 4096, true); /* whole pages: the NUL needs a byte of its own */
    check_bytes(100, 1000000, true);
}

static void a_directory_that_is_not_there_is_reported(void **state)
{
    (void)state;
    struct spill spill;
    spill_init(&spill, 1, "/nonexistent-directory");
    assert_int_equal(spill_append(&spill, "abc", 3), SPILL_DISK);
    spill_free(&spill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_stays_in_memory_and_large_goes_to_a_file),
        cmocka_unit_test(a_directory_that_is_not_there_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
