/* A hundred thousand files: all found; the cost of it is printed, not judged. */
#include "support.h"

#include <malloc.h>
#include <sys/resource.h>

enum { DIRECTORIES = 2000, FILES = 50 };

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void name_of(char out[96], int directory, int file)
{
    snprintf(out, 96, "www/s%d/d%d/a-file-of-usual-length-%d.html", directory % 20, directory, file);
}

static void hundred_thousand_files(void **state)
{
    (void)state;
    char path[96];
    for (int d = 0; d < DIRECTORIES; d++) {
        name_of(path, d, 0);
        put(path, "");
        for (int f = 1; f < FILES; f++) {
            name_of(path, d, f);
            int fd = open(at(path), O_CREAT | O_WRONLY, 0644);
            assert_true(fd >= 0);
            close(fd);
        }
    }
    struct mallinfo2 before = mallinfo2();
    double begun = cpu_seconds();
    start("{\"SiteDir\": \"www\"}");
    double indexed = cpu_seconds() - begun;
    struct mallinfo2 after = mallinfo2();
    size_t memory = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    struct site_index_counts counts;
    site_index_counts(&counts);
    assert_int_equal(counts.files, DIRECTORIES * FILES);
    for (int d = 0; d < DIRECTORIES; d++) {
        for (int f = 0; f < FILES; f++) {
            name_of(path, d, f);
            assert_int_equal(served(path + 3), 0);
        }
    }
    begun = cpu_seconds();
    site_index_rescan(STR(""));
    printf("%llu files: indexed in %.2f s of CPU, looked through again in %.2f s, %zu bytes a file\n",
           (unsigned long long)counts.files, indexed, cpu_seconds() - begun, memory / (size_t)counts.files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ROUTE_TEST(hundred_thousand_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
