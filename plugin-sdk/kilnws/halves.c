/* kiln_ws.h: the reading and the writing half of a socket. Each is the socket itself seen through another type;
 * what counts is who is left. */
#include "kilnws/socket.h"

#include <stdlib.h>

struct kiln_ws_reader {
    kiln_ws *ws;
};

struct kiln_ws_writer {
    kiln_ws *ws;
};

int kiln_ws_split(kiln_ws *ws, kiln_ws_reader **reader, kiln_ws_writer **writer)
{
    *reader = malloc(sizeof **reader);
    *writer = malloc(sizeof **writer);
    if (*reader == NULL || *writer == NULL) {
        free(*reader);
        free(*writer);
        *reader = NULL;
        *writer = NULL;
        return KILN_NO_MEMORY;
    }
    (*reader)->ws = ws;
    (*writer)->ws = ws;
    atomic_store(&ws->halves, 2);
    return KILN_OK;
}

static void let_go(kiln_ws *ws)
{
    if (atomic_fetch_sub(&ws->halves, 1) == 1) {
        kiln_ws_free(ws);
    }
}

int kiln_ws_reader_recv(kiln_ws_reader *reader, kiln_ws_message *message)
{
    return kiln_ws_recv(reader->ws, message);
}

ssize_t kiln_ws_reader_read(kiln_ws_reader *reader, void *buffer, size_t size)
{
    return kiln_ws_read(reader->ws, buffer, size);
}

int kiln_ws_reader_close_code(const kiln_ws_reader *reader)
{
    return kiln_ws_close_code(reader->ws);
}

void kiln_ws_reader_free(kiln_ws_reader *reader)
{
    if (reader != NULL) {
        let_go(reader->ws);
        free(reader);
    }
}

int kiln_ws_writer_send(kiln_ws_writer *writer, int type, const void *data, size_t length)
{
    return kiln_ws_send(writer->ws, type, data, length);
}

int kiln_ws_writer_write(kiln_ws_writer *writer, const void *data, size_t length)
{
    return kiln_ws_write(writer->ws, data, length);
}

int kiln_ws_writer_close(kiln_ws_writer *writer, int code, const char *reason)
{
    return kiln_ws_close(writer->ws, code, reason);
}

void kiln_ws_writer_free(kiln_ws_writer *writer)
{
    if (writer != NULL) {
        kiln_ws_close(writer->ws, WS_CLOSE_NORMAL, NULL);
        let_go(writer->ws);
        free(writer);
    }
}
