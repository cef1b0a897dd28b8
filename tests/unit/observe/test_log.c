#include "base/buffer.h"
#include "base/file.h"
#include "observe/escape.h"
#include "observe/log.h"
#include "observe/log_writer.h"
#include "observe/metrics.h"

#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/kiln-test-log-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) == NULL;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory);
}

static int open_log(char path[64], const char *name)
{
    snprintf(path, 64, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static struct buffer contents(const char *path)
{
    struct buffer text = BUFFER_EMPTY;
    assert_true(file_read(path, 64 << 20, &text));
    unlink(path);
    buffer_append_char(&text, '\0');
    return text;
}

static bool matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    bool found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static unsigned count_lines(const char *text)
{
    unsigned lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void test_line_has_time_level_and_pid(void **state)
{
    (void)state;
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, LOG_ERROR, false, "all is lost");
    line[len] = '\0';
    assert_true(matches(line, "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z error "
                              "\\[[0-9]+\\] all is lost\n$"));
    assert_null(memchr(line, 033, len));
    len = log_format(line, LOG_WARNING, true, "x");
    assert_non_null(memmem(line, len, "\033[33mwarning\033[0m", 16));
}

static void test_line_cannot_be_forged(void **state)
{
    (void)state;
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, LOG_NOTICE, false, "a\nb\r\033[2Jc\x7f \xc3\xa9 \xff\xc2\x9b.");
    line[len - 1] = '\0';
    assert_string_equal(strstr(line, "] ") + 2, "a\\nb\\x0d\\x1b[2Jc\\x7f \xc3\xa9 \\xff\\xc2\\x9b.");
}

static void test_long_line_is_cut_and_says_so(void **state)
{
    (void)state;
    char text[2 * LOG_LINE_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, LOG_NOTICE, false, text);
    assert_true(len <= sizeof line && len > sizeof line - 8);
    assert_memory_equal(line + len - 5, "x...\n", 5);
    memset(text, '\n', sizeof text - 1);
    len = log_format(line, LOG_NOTICE, false, text);
    assert_true(len <= sizeof line);
    assert_memory_equal(line + len - 5, "n...\n", 5);
}

static void check_escape(size_t (*escape)(char *, size_t, struct str *), const char *in, size_t in_len,
                         const char *expected)
{
    char out[256];
    struct str text = {in, in_len};
    size_t len = escape(out, sizeof out, &text);
    assert_int_equal(text.len, 0);
    assert_int_equal(len, strlen(expected));
    assert_memory_equal(out, expected, len);
}

static void test_escapes(void **state)
{
    (void)state;
    check_escape(escape_quoted, "a\"b\\c\n\xe9", 7, "a\\\"b\\\\c\\x0a\\xe9");
    check_escape(escape_json, "a\"b\\c\n\0\xe9.", 9, "a\\\"b\\\\c\\u000a\\u0000\xef\xbf\xbd.");
    check_escape(escape_json, "\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate */
    check_escape(escape_json, "\xf0\x9f\x98\x80\xe2\x82", 6,
                 "\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd"); /* cut short */
    check_escape(escape_text, "\xc0\xaf", 2, "\\xc0\\xaf"); /* overlong */
}

static void test_escape_stops_at_whole_characters(void **state)
{
    (void)state;
    char out[8];
    struct str text = STR("\n\n\n");
    assert_int_equal(escape_quoted(out, 7, &text), 4);
    assert_int_equal(text.len, 2);
}

static void test_change_of_file_keeps_order(void **state)
{
    (void)state;
    char first[64];
    char second[64];
    log_files_use((struct log_files){open_log(first, "first"), -1});
    log_error("before the thread");
    assert_true(log_writer_start());
    for (int i = 0; i < 100; i++) {
        log_error("one %d", i);
    }
    log_files_use((struct log_files){open_log(second, "second"), -1});
    for (int i = 0; i < 50; i++) {
        log_error("two %d", i);
    }
    log_stop();
    log_error("after the thread");
    log_files_use((struct log_files){-1, -1});
    struct buffer a = contents(first);
    struct buffer b = contents(second);
    assert_int_equal(count_lines(a.data), 101);
    assert_int_equal(count_lines(b.data), 51);
    assert_non_null(strstr(a.data, "one 99\n"));
    assert_non_null(strstr(b.data, "two 0\n"));
    assert_non_null(strstr(b.data, "after the thread\n"));
    buffer_free(&a);
    buffer_free(&b);
}

static void test_level_filters(void **state)
{
    (void)state;
    char path[64];
    log_files_use((struct log_files){open_log(path, "level"), -1});
    log_level_set(LOG_WARNING);
    log_debug("no");
    log_notice("no");
    log_warning("yes");
    log_level_set(LOG_DEBUG);
    log_debug("also");
    log_level_set(LOG_NOTICE);
    log_files_use((struct log_files){-1, -1});
    struct buffer text = contents(path);
    assert_int_equal(count_lines(text.data), 2);
    assert_null(strstr(text.data, "] no"));
    buffer_free(&text);
}

static void *write_many(void *arg)
{
    for (int i = 0; i < 1000; i++) {
        log_error("thread %s line %d", (const char *)arg, i);
    }
    return NULL;
}

static void test_threads_write_whole_lines(void **state)
{
    (void)state;
    char path[64];
    log_files_use((struct log_files){open_log(path, "threads"), -1});
    assert_true(log_writer_start());
    pthread_t threads[3];
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)&"a\0b\0c\0"[2 * i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    log_stop();
    log_files_use((struct log_files){-1, -1});
    struct buffer text = contents(path);
    assert_int_equal(count_lines(text.data), 3000);
    for (char *line = strtok(text.data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(matches(line, "^[-0-9T:.]+Z error \\[[0-9]+\\] thread [abc] line [0-9]+$"));
    }
    buffer_free(&text);
}

/* A pipe that nobody reads stands for a disk that hangs. */
static void test_queue_is_bounded_and_drops_are_said(void **state)
{
    (void)state;
    char path[64];
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    log_files_use((struct log_files){open_log(path, "drops"), pipes[1]});
    assert_true(log_writer_start());
    int64_t counted = metric_sum(METRIC_LOG_LINES_DROPPED);
    const size_t size = 1 << 20;
    unsigned refused = 0;
    for (unsigned i = 0; i < 40; i++) {
        char *block = malloc(size);
        assert_non_null(block);
        memset(block, '\n', size);
        refused += !log_writer_put(LOG_SINK_ACCESS, block, size, 10);
    }
    /* 16 MB wait, one may be with the thread. */
    assert_in_range(refused, 23, 24);
    assert_int_equal(metric_sum(METRIC_LOG_LINES_DROPPED) - counted, refused * 10);
    char *sink = malloc(size);
    size_t seen = 0;
    while (seen < (40 - refused) * size) {
        ssize_t n = read(pipes[0], sink, size);
        assert_true(n > 0);
        seen += (size_t)n;
    }
    free(sink);
    log_stop();
    log_files_use((struct log_files){-1, -1});
    close(pipes[0]);
    struct buffer text = contents(path);
    char expected[64];
    snprintf(expected, sizeof expected, "%u lines of the access log were dropped", refused * 10);
    assert_non_null(strstr(text.data, expected));
    buffer_free(&text);
}

static void *count_many(void *arg)
{
    metrics_attach(*(unsigned *)arg);
    for (int i = 0; i < 10000; i++) {
        metric_add(METRIC_REQUESTS, 1);
        metric_add_status(404);
    }
    return NULL;
}

static void test_metrics_sum_over_threads(void **state)
{
    (void)state;
    pthread_t threads[2];
    unsigned index[2] = {0, 7};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count_many, &index[i]), 0);
    }
    metric_add(METRIC_REQUESTS, 5); /* a thread without a row */
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(metric_sum(METRIC_REQUESTS), 20005);
    assert_int_equal(metric_sum(METRIC_RESPONSES_4XX), 20000);
    assert_int_equal(metric_of_loop(METRIC_REQUESTS, 7), 10000);
    metric_add_status(0);
    metric_add_status(600);
    assert_int_equal(metric_sum(METRIC_RESPONSES_5XX) + metric_sum(METRIC_RESPONSES_1XX), 0);
    assert_string_equal(metric_infos[METRIC_REQUESTS].name, "kiln_requests_total");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_has_time_level_and_pid),
        cmocka_unit_test(test_line_cannot_be_forged),
        cmocka_unit_test(test_long_line_is_cut_and_says_so),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_escape_stops_at_whole_characters),
        cmocka_unit_test(test_change_of_file_keeps_order),
        cmocka_unit_test(test_level_filters),
        cmocka_unit_test(test_threads_write_whole_lines),
        cmocka_unit_test(test_queue_is_bounded_and_drops_are_said),
        cmocka_unit_test(test_metrics_sum_over_threads),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
