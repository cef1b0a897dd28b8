/* DESIGN: kiln_ws.h: streams. A stream is a buffer for each direction above a layer; a WebSocket is the lowest
 * layer, others are the program's. Reading and writing have a lock each, so that two threads can have a half
 * each; a reader that has to wait sends first what is gathered, if nobody is writing right now,
 * because a peer that waits for it would never answer. That sending does not wait (socket_only_queues): a reader that
 * waits for the peer to read, whose reader does the same, would be the end of both. The stream owns its layer. */
#include "kilnws/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_BUFFER = 65536, LINE_MAX_SIZE = 32768 };

struct kiln_ws_stream {
    const kiln_ws_layer *layer;
    void *self;
    pthread_mutex_t reading;
    pthread_mutex_t writing;
    size_t in_at;
    size_t in_len;
    size_t out_len;
    int failed; /* a kiln_result of writing that stays */
    bool closed;
    uint8_t in[STREAM_BUFFER];
    uint8_t out[STREAM_BUFFER];
};

/* ---- the lowest layer --------------------------------------------------------------------------------- */

static ssize_t ws_layer_read(void *self, void *buffer, size_t size)
{
    return kiln_ws_read(self, buffer, size);
}

static int ws_layer_write(void *self, const void *data, size_t length)
{
    return kiln_ws_write(self, data, length);
}

static int ws_layer_flush(void *self)
{
    return socket_flush(self);
}

static int ws_layer_close(void *self)
{
    return kiln_ws_close(self, WS_CLOSE_NORMAL, NULL);
}

static void ws_layer_free(void *self)
{
    kiln_ws_free(self);
}

static const kiln_ws_layer ws_layer = {.read = ws_layer_read,
                                       .write = ws_layer_write,
                                       .flush = ws_layer_flush,
                                       .close = ws_layer_close,
                                       .free = ws_layer_free};

kiln_ws_stream *kiln_ws_stream_wrap(const kiln_ws_layer *layer, void *self)
{
    kiln_ws_stream *stream = malloc(sizeof *stream);
    if (stream == NULL) {
        layer->free(self);
        return NULL;
    }
    memset(stream, 0, offsetof(kiln_ws_stream, in));
    stream->layer = layer;
    stream->self = self;
    pthread_mutex_init(&stream->reading, NULL);
    pthread_mutex_init(&stream->writing, NULL);
    return stream;
}

kiln_ws_stream *kiln_ws_stream_open(kiln_ws *ws)
{
    return ws != NULL ? kiln_ws_stream_wrap(&ws_layer, ws) : NULL;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static int flush(kiln_ws_stream *s)
{
    if (s->failed == KILN_OK && s->out_len > 0) {
        s->failed = s->layer->write(s->self, s->out, s->out_len);
        s->out_len = 0;
    }
    return s->failed;
}

/* All the way down. */
static int flush_all(kiln_ws_stream *s)
{
    int result = flush(s);
    return result == KILN_OK && s->layer->flush != NULL ? s->layer->flush(s->self) : result;
}

int kiln_ws_stream_flush(kiln_ws_stream *s)
{
    pthread_mutex_lock(&s->writing);
    int result = flush_all(s);
    pthread_mutex_unlock(&s->writing);
    return result;
}

static int write_all(kiln_ws_stream *s, const uint8_t *data, size_t length)
{
    while (length > 0 && s->failed == KILN_OK) {
        if (s->out_len == 0 && length >= STREAM_BUFFER) {
            s->failed = s->layer->write(s->self, data, STREAM_BUFFER); /* not through the buffer */
            data += STREAM_BUFFER;
            length -= STREAM_BUFFER;
            continue;
        }
        size_t room = STREAM_BUFFER - s->out_len;
        size_t n = length < room ? length : room;
        memcpy(s->out + s->out_len, data, n);
        s->out_len += n;
        data += n;
        length -= n;
        if (s->out_len == STREAM_BUFFER) {
            flush(s);
        }
    }
    return s->failed;
}

int kiln_ws_stream_write(kiln_ws_stream *s, const void *data, size_t length)
{
    pthread_mutex_lock(&s->writing);
    int result = s->closed ? KILN_GONE : write_all(s, data, length);
    pthread_mutex_unlock(&s->writing);
    return result;
}

int kiln_ws_stream_printf(kiln_ws_stream *s, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    if (len < 0) {
        return KILN_NO_MEMORY;
    }
    int result = kiln_ws_stream_write(s, text, (size_t)len);
    free(text);
    return result;
}

int kiln_ws_stream_close(kiln_ws_stream *s)
{
    pthread_mutex_lock(&s->writing);
    int result = flush_all(s);
    if (!s->closed) {
        s->closed = true;
        int closed = s->layer->close(s->self);
        result = result == KILN_OK ? closed : result;
    }
    pthread_mutex_unlock(&s->writing);
    return result;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static void flush_before_waiting(kiln_ws_stream *s)
{
    if (pthread_mutex_trylock(&s->writing) == 0) {
        bool before = socket_only_queues;
        socket_only_queues = true;
        flush_all(s);
        socket_only_queues = before;
        pthread_mutex_unlock(&s->writing);
    }
}

/* More bytes behind those that are there. 1, 0 at the end, or a kiln_result. */
static ssize_t fill(kiln_ws_stream *s)
{
    if (s->in_len == 0) {
        s->in_at = 0;
    }
    if (s->in_at > 0 && s->in_at + s->in_len == STREAM_BUFFER) {
        memmove(s->in, s->in + s->in_at, s->in_len);
        s->in_at = 0;
    }
    flush_before_waiting(s);
    size_t end = s->in_at + s->in_len;
    ssize_t n = s->layer->read(s->self, s->in + end, STREAM_BUFFER - end);
    if (n > 0) {
        s->in_len += (size_t)n;
    }
    return n > 0 ? 1 : n;
}

static ssize_t read_some(kiln_ws_stream *s, uint8_t *buffer, size_t size)
{
    if (size == 0) {
        return KILN_INVALID;
    }
    if (s->in_len == 0 && size >= STREAM_BUFFER) {
        flush_before_waiting(s);
        return s->layer->read(s->self, buffer, size); /* not through the buffer */
    }
    if (s->in_len == 0) {
        ssize_t n = fill(s);
        if (n <= 0) {
            return n;
        }
    }
    size_t n = size < s->in_len ? size : s->in_len;
    memcpy(buffer, s->in + s->in_at, n);
    s->in_at += n;
    s->in_len -= n;
    return (ssize_t)n;
}

ssize_t kiln_ws_stream_read(kiln_ws_stream *s, void *buffer, size_t size)
{
    pthread_mutex_lock(&s->reading);
    ssize_t n = read_some(s, buffer, size);
    pthread_mutex_unlock(&s->reading);
    return n;
}

int kiln_ws_stream_read_all(kiln_ws_stream *s, void *buffer, size_t size)
{
    uint8_t *at = buffer;
    int result = KILN_OK;
    pthread_mutex_lock(&s->reading);
    while (size > 0 && result == KILN_OK) {
        ssize_t n = read_some(s, at, size);
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        } else {
            result = n == 0 ? KILN_GONE : (int)n;
        }
    }
    pthread_mutex_unlock(&s->reading);
    return result;
}

static ssize_t read_line(kiln_ws_stream *s, char *buffer, size_t size)
{
    if (size < 2 || size > LINE_MAX_SIZE) {
        return KILN_INVALID;
    }
    size_t looked = 0;
    for (;;) {
        const uint8_t *end = memchr(s->in + s->in_at + looked, '\n', s->in_len - looked);
        size_t len = end != NULL ? (size_t)(end - (s->in + s->in_at)) + 1 : s->in_len;
        if (len > size - 1) {
            return KILN_TOO_LARGE;
        }
        looked = s->in_len;
        ssize_t more = end == NULL ? fill(s) : 0;
        if (more < 0) {
            return more;
        }
        if (more == 0) {
            memcpy(buffer, s->in + s->in_at, len);
            buffer[len] = '\0';
            s->in_at += len;
            s->in_len -= len;
            return (ssize_t)len;
        }
    }
}

ssize_t kiln_ws_stream_read_line(kiln_ws_stream *s, char *buffer, size_t size)
{
    pthread_mutex_lock(&s->reading);
    ssize_t n = read_line(s, buffer, size);
    pthread_mutex_unlock(&s->reading);
    return n;
}

void kiln_ws_stream_free(kiln_ws_stream *s)
{
    if (s == NULL) {
        return;
    }
    kiln_ws_stream_close(s);
    s->layer->free(s->self);
    pthread_mutex_destroy(&s->reading);
    pthread_mutex_destroy(&s->writing);
    free(s);
}

/* ---- as a FILE ------------------------------------------------------------------------------------------------- */

static ssize_t file_read(void *cookie, char *buffer, size_t size)
{
    ssize_t n = kiln_ws_stream_read(cookie, buffer, size);
    return n < 0 ? -1 : n;
}

static ssize_t file_write(void *cookie, const char *data, size_t size)
{
    int result = kiln_ws_stream_write(cookie, data, size);
    result = result == KILN_OK ? kiln_ws_stream_flush(cookie) : result;
    return result == KILN_OK ? (ssize_t)size : 0;
}

static int file_close(void *cookie)
{
    kiln_ws_stream_free(cookie);
    return 0;
}

FILE *kiln_ws_stream_file(kiln_ws_stream *s)
{
    const cookie_io_functions_t functions = {.read = file_read, .write = file_write, .close = file_close};
    return fopencookie(s, "r+", functions);
}
