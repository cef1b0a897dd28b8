#include "supervisor/control.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int make_pair(void **state)
{
    static int ends[2];
    *state = ends;
    return !control_pair(ends);
}

static int close_pair(void **state)
{
    int *ends = *state;
    close(ends[0]);
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    return 0;
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void test_message_arrives_as_sent(void **state)
{
    int *ends = *state;
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "seconds", 2.5);
    cJSON_AddStringToObject(body, "text", "why \"so\"\n");
    cJSON_AddBoolToObject(body, "yes", true);
    assert_int_equal(control_send(ends[0], CONTROL_DRAIN, body, NULL, 0), CONTROL_OK);
    assert_int_equal(control_send(ends[0], CONTROL_STOP, NULL, NULL, 0), CONTROL_OK);
    cJSON_Delete(body);
    struct control_message message;
    assert_int_equal(control_receive(ends[1], &message, NULL), CONTROL_OK);
    assert_int_equal(message.kind, CONTROL_DRAIN);
    assert_true(control_number(&message, "seconds", 0) == 2.5);
    assert_true(control_number(&message, "text", 7) == 7);
    assert_string_equal(control_text(&message, "text"), "why \"so\"\n");
    assert_null(control_text(&message, "absent"));
    assert_true(control_bool(&message, "yes"));
    assert_false(control_bool(&message, "seconds"));
    assert_int_equal(control_take_fd(&message), -1);
    control_message_free(&message);
    assert_int_equal(control_receive(ends[1], &message, NULL), CONTROL_OK);
    assert_int_equal(message.kind, CONTROL_STOP);
    control_message_free(&message);
    assert_int_equal(control_receive(ends[1], &message, NULL), CONTROL_EMPTY);
}

static void test_descriptors_travel_in_order(void **state)
{
    int *ends = *state;
    int fds[CONTROL_FDS_MAX];
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    for (unsigned i = 0; i < CONTROL_FDS_MAX; i++) {
        fds[i] = pipes[i % 2];
    }
    unsigned before = open_descriptors();
    assert_int_equal(control_send(ends[0], CONTROL_CONFIG, NULL, fds, CONTROL_FDS_MAX), CONTROL_OK);
    struct control_message message;
    assert_int_equal(control_receive(ends[1], &message, NULL), CONTROL_OK);
    assert_int_equal(message.fd_count, CONTROL_FDS_MAX);
    int reader = control_take_fd(&message);
    int writer = control_take_fd(&message);
    assert_int_equal(fcntl(reader, F_GETFD), FD_CLOEXEC);
    assert_int_equal(write(writer, "x", 1), 1);
    char byte;
    assert_int_equal(read(reader, &byte, 1), 1);
    close(reader);
    close(writer);
    control_message_free(&message); /* closes the rest */
    assert_int_equal(open_descriptors(), before);
    close(pipes[0]);
    close(pipes[1]);
}

static void test_death_of_the_other_end_is_seen(void **state)
{
    int *ends = *state;
    assert_int_equal(control_send(ends[1], CONTROL_FAILED, NULL, NULL, 0), CONTROL_OK);
    close(ends[1]);
    ends[1] = -1;
    struct control_message message;
    assert_int_equal(control_receive(ends[0], &message, NULL), CONTROL_OK); /* last words are heard */
    control_message_free(&message);
    assert_int_equal(control_receive(ends[0], &message, NULL), CONTROL_CLOSED);
    assert_int_equal(control_send(ends[0], CONTROL_STOP, NULL, NULL, 0), CONTROL_CLOSED);
}

static void test_sending_never_waits(void **state)
{
    int *ends = *state;
    enum control_result result = CONTROL_OK;
    for (int i = 0; i < 100000 && result == CONTROL_OK; i++) {
        result = control_send(ends[0], CONTROL_STOP, NULL, NULL, 0);
    }
    assert_int_equal(result, CONTROL_BAD);
    assert_int_equal(errno, EAGAIN);
}

static void test_body_that_is_too_large_is_not_sent(void **state)
{
    int *ends = *state;
    char *text = malloc(CONTROL_BODY_MAX + 1);
    assert_non_null(text);
    memset(text, 'x', CONTROL_BODY_MAX);
    text[CONTROL_BODY_MAX] = '\0';
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "text", text);
    assert_int_equal(control_send(ends[0], CONTROL_FAILED, body, NULL, 0), CONTROL_BAD);
    cJSON_Delete(body);
    free(text);
    struct control_message message;
    assert_int_equal(control_receive(ends[1], &message, NULL), CONTROL_EMPTY);
}

/* Bytes as another version of this program, or another program, could send them. */
static void refused(int *ends, const void *bytes, size_t len, const char *expected)
{
    assert_int_equal(send(ends[0], bytes, len, 0), (ssize_t)len);
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(control_receive(ends[1], &message, &why), CONTROL_BAD);
    buffer_append_char(&why, '\0');
    assert_non_null(strstr(why.data, expected));
    buffer_free(&why);
}

static void test_foreign_messages_are_refused(void **state)
{
    int *ends = *state;
    refused(ends, "x", 1, "not a control message");
    refused(ends, "HTTP/1.1 200 OK", 15, "not a control message");
    refused(ends, "KILN\x02\0\x01\0{}", 10, "version 2, this program speaks 1");
    refused(ends, "KILN\x01\0\x01\0", 8, "not a JSON object");
    refused(ends, "KILN\x01\0\x01\0[1]", 11, "not a JSON object");
    refused(ends, "KILN\x01\0\x01\0{\"a\":", 13, "not a JSON object");
    size_t size = CONTROL_BODY_MAX + 100;
    char *large = calloc(1, size);
    assert_non_null(large);
    memcpy(large, "KILN\x01\0\x01\0{}", 10);
    refused(ends, large, size, "does not fit");
    free(large);
}

static void test_refused_message_leaves_no_descriptor(void **state)
{
    int *ends = *state;
    unsigned before = open_descriptors();
    struct iovec part = {"KILN\x09\0\x01\0{}", 10};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary = {0};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    int fd = STDERR_FILENO;
    memcpy(CMSG_DATA(first), &fd, sizeof fd);
    assert_int_equal(sendmsg(ends[0], &message, 0), 10);
    struct control_message received;
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(control_receive(ends[1], &received, &why), CONTROL_BAD);
    buffer_free(&why);
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_message_arrives_as_sent, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_descriptors_travel_in_order, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_death_of_the_other_end_is_seen, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_sending_never_waits, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_body_that_is_too_large_is_not_sent, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_foreign_messages_are_refused, make_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_refused_message_leaves_no_descriptor, make_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
