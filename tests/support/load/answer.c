/* An HTTP/1.1 answer, as strictly as a test wants it. */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void copy_value(char *to, size_t size, const char *value)
{
    snprintf(to, size, "%s", value);
}

static const char *take_header(struct answer *answer, const char *name, const char *value)
{
    if (strcasecmp(name, "Content-Length") == 0) {
        char *end;
        if (answer->has_length) {
            return "two Content-Length";
        }
        answer->has_length = true;
        answer->left = strtoull(value, &end, 10);
        return *value != '\0' && *end == '\0' ? NULL : "a Content-Length that is no number";
    }
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        answer->chunked = strcasecmp(value, "chunked") == 0;
        return answer->chunked ? NULL : "a Transfer-Encoding that is not chunked";
    }
    if (strcasecmp(name, "Connection") == 0) {
        answer->close = answer->close || strcasecmp(value, "close") == 0;
    } else if (strcasecmp(name, "Content-Range") == 0) {
        copy_value(answer->content_range, sizeof answer->content_range, value);
    } else if (strcasecmp(name, "Content-Type") == 0) {
        copy_value(answer->content_type, sizeof answer->content_type, value);
    } else if (strcasecmp(name, "Set-Cookie") == 0) {
        copy_value(answer->set_cookie, sizeof answer->set_cookie, value);
    }
    return NULL;
}

/* The head is whole, with a NUL in the place of its last line's end. */
static const char *parse_head(struct answer *answer)
{
    char *line = answer->head;
    if (strncmp(line, "HTTP/1.1 ", 9) != 0) {
        return "no HTTP/1.1 status line";
    }
    answer->status = atoi(line + 9);
    line = strstr(line, "\r\n");
    while (line != NULL && line[2] != '\0') {
        line += 2;
        char *end = strstr(line, "\r\n");
        char *colon = strchr(line, ':');
        if (end == NULL || colon == NULL || colon > end) {
            return "a header line without a colon";
        }
        *end = '\0';
        *colon = '\0';
        const char *why = take_header(answer, line, colon + 1 + strspn(colon + 1, " "));
        if (why != NULL) {
            return why;
        }
        *end = '\r';
        line = end;
    }
    return NULL;
}

static const char *begin_body(struct answer *answer, const struct sent *sent)
{
    if (answer->status != sent->status) {
        return "another status";
    }
    if (sent->bodiless || answer->status == 304 || answer->status == 204) {
        answer->state = BODY_LENGTH;
        answer->left = 0;
    } else if (answer->chunked) {
        if (answer->has_length) {
            return "Content-Length beside Transfer-Encoding";
        }
        answer->state = BODY_SIZE_LINE;
        answer->head_size = 0;
    } else if (answer->has_length) {
        answer->state = BODY_LENGTH;
    } else {
        return "a body without framing";
    }
    return NULL;
}

static const char *take_body(struct sent *sent, const char *data, size_t size)
{
    if (sent->expected == NULL) {
        if (sent->got + size >= TEXT_MAX) {
            return "a body that is too long";
        }
        memcpy(sent->text + sent->got, data, size);
    } else if (sent->got + size > sent->expected_size) {
        return "a body that is too long";
    } else if (memcmp(sent->expected + sent->got, data, size) != 0) {
        return "a body with other bytes";
    }
    sent->got += size;
    return NULL;
}

/* A line of chunked framing, in answer->head. True when it is whole. */
static bool take_line(struct answer *answer, const char *data, size_t size, size_t *used, const char **why)
{
    while (*used < size) {
        char c = data[(*used)++];
        if (answer->head_size + 1 >= HEAD_MAX) {
            *why = "a line that is too long";
            return false;
        }
        answer->head[answer->head_size++] = c;
        if (c == '\n') {
            if (answer->head_size < 2 || answer->head[answer->head_size - 2] != '\r') {
                *why = "a bare line feed";
                return false;
            }
            answer->head[answer->head_size - 2] = '\0';
            return true;
        }
    }
    return false;
}

static bool take_head(struct answer *answer, const struct sent *sent, const char *data, size_t size, size_t *used,
                      const char **why)
{
    while (*used < size) {
        if (answer->head_size + 1 >= HEAD_MAX) {
            *why = "a head that is too long";
            return false;
        }
        answer->head[answer->head_size++] = data[(*used)++];
        size_t n = answer->head_size;
        if (n >= 4 && memcmp(answer->head + n - 4, "\r\n\r\n", 4) == 0) {
            answer->head[n - 2] = '\0';
            *why = parse_head(answer);
            if (*why == NULL) {
                *why = begin_body(answer, sent);
            }
            return *why == NULL;
        }
    }
    return false;
}

/* Bytes of the body, or of a chunk. True when they were all there. */
static bool take_piece(struct answer *answer, struct sent *sent, const char *data, size_t size, size_t *used,
                       const char **why)
{
    size_t n = size - *used < answer->left ? size - *used : (size_t)answer->left;
    *why = take_body(sent, data + *used, n);
    *used += n;
    answer->left -= n;
    return *why == NULL && answer->left == 0;
}

static bool take_size(struct answer *answer, const char **why)
{
    char *end;
    answer->left = strtoull(answer->head, &end, 16);
    if (end == answer->head || *end != '\0') {
        *why = "a chunk size that is no number";
    }
    answer->head_size = 0;
    return *why == NULL;
}

enum parse_result answer_parse(struct answer *answer, struct sent *sent, const char *data, size_t size, size_t *used,
                               const char **why)
{
    *used = 0;
    *why = NULL;
    bool whole = false;
    while (!whole) {
        bool on = false;
        switch (answer->state) {
        case BODY_HEAD:
            on = take_head(answer, sent, data, size, used, why);
            whole = on && answer->state == BODY_LENGTH && answer->left == 0;
            break;
        case BODY_LENGTH: whole = on = take_piece(answer, sent, data, size, used, why); break;
        case BODY_SIZE_LINE:
            on = take_line(answer, data, size, used, why) && take_size(answer, why);
            answer->state = on ? (answer->left == 0 ? BODY_TRAILER : BODY_CHUNK) : answer->state;
            break;
        case BODY_CHUNK:
            on = take_piece(answer, sent, data, size, used, why);
            answer->state = on ? BODY_CHUNK_END : answer->state;
            break;
        case BODY_CHUNK_END:
            on = take_line(answer, data, size, used, why);
            if (on && answer->head[0] != '\0') {
                *why = "a chunk that is longer than its size";
                on = false;
            }
            answer->head_size = on ? 0 : answer->head_size;
            answer->state = on ? BODY_SIZE_LINE : answer->state;
            break;
        case BODY_TRAILER:
            on = take_line(answer, data, size, used, why);
            whole = on && answer->head[0] == '\0';
            answer->head_size = on ? 0 : answer->head_size;
            break;
        }
        if (*why != NULL) {
            return PARSE_WRONG;
        }
        if (!on) {
            return PARSE_MORE;
        }
    }
    if (sent->expected != NULL && sent->got != sent->expected_size) {
        *why = "a body that is too short";
        return PARSE_WRONG;
    }
    if (sent->expected == NULL) {
        sent->text[sent->got] = '\0';
    }
    *why = sent->kind->check != NULL ? sent->kind->check(sent, answer) : NULL;
    return *why == NULL ? PARSE_DONE : PARSE_WRONG;
}
